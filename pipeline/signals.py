"""Asks a run to stop in order: the first SIGTERM or SIGINT is noted, a second one ends at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from ..schemas.errors import Stopped

HANDLED = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """A context manager. Outside the main thread, where Python delivers no signals, it does nothing."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in HANDLED}
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number)

    def raise_if_asked(self) -> None:
        """Ends an interrupted run once its rows are safe: KeyboardInterrupt for SIGINT, Stopped for SIGTERM."""
        if self.asked is signal.SIGINT:
            raise KeyboardInterrupt
        if self.asked:
            raise Stopped(f"stopped by {self.asked.name}; the same command goes on from here")
