"""Ends a run on SIGTERM or SIGINT: in order while it generates, at once where there is nothing to bring home."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from ..schemas.errors import Stopped

HANDLED = (signal.SIGTERM, signal.SIGINT)
INTERRUPTED = 130
INTERRUPTED_MESSAGE = "interrupted; what is committed stays, and the same command goes on from there"


class StopSignals:
    """A context manager. Outside the main thread, where Python delivers no signals, it does nothing.

    Within `orderly` the first signal is only noted, for the loop to see. Any other goes to whoever had it before: the
    command line ends at once; elsewhere KeyboardInterrupt or Stopped is raised.
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

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked, signal.Signals(number)
        if again or not self._orderly:
            if callable(before := self._before[self.asked]):
                before(number, frame)
            raise _reason(self.asked)


def end_at_once() -> None:
    """From now on SIGTERM and SIGINT end this process with their exit code and a message, without unwinding.

    Nothing is lost: a run's folder is safe against a crash at any instant. An exception would be less safe: raised
    inside a library's import it can abort the process, or leave Python's mark that makes it die by SIGINT at its exit.
    """
    for number in HANDLED:
        signal.signal(number, _leave)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    asked = signal.Signals(number)
    text = INTERRUPTED_MESSAGE if asked is signal.SIGINT else str(_reason(asked))
    # the streams may be in the middle of a write; a progress display has hidden the cursor
    with suppress(OSError):
        os.write(2, ("\x1b[?25h" if os.isatty(2) else "").encode() + f"{text}\n".encode())
    os._exit(INTERRUPTED if asked is signal.SIGINT else Stopped.exit_code)


def _reason(number: signal.Signals) -> BaseException:
    """KeyboardInterrupt for SIGINT, Stopped for SIGTERM."""
    if number is signal.SIGINT:
        return KeyboardInterrupt()
    return Stopped(f"stopped by {number.name}; the same command goes on from here")
