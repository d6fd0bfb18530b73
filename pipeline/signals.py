"""Ends a run on SIGTERM or SIGINT: in order while it generates, at once where there is nothing to bring home."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from ..schemas.errors import Stopped

HANDLED = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """A context manager. Outside the main thread, where Python delivers no signals, it does nothing.

    A signal raises KeyboardInterrupt or Stopped. Within `orderly` the first one is only noted, for the loop to see.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._orderly = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in HANDLED}
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def orderly(self) -> Iterator[None]:
        """Leaves it to the block to look at `asked` and to end; raises afterwards if a signal came meanwhile."""
        self._orderly = True
        try:
            yield
        finally:
            self._orderly = False
        if self.asked:
            raise _reason(self.asked)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        again, self.asked = self.asked, signal.Signals(number)
        if again or not self._orderly:
            raise _reason(self.asked)


def _reason(number: signal.Signals) -> BaseException:
    """KeyboardInterrupt for SIGINT, Stopped for SIGTERM."""
    if number is signal.SIGINT:
        return KeyboardInterrupt()
    return Stopped(f"stopped by {number.name}; the same command goes on from here")
