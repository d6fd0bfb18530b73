"""From generations to committed rows: judging and writing go on in the background while the engine works."""

import queue
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..schemas.job import Output
from ..schemas.records import Judgement, Result, RowError, Task, Verdict
from .progress import Progress
from .store import RunFolder
from .validate.judge import Judge

if TYPE_CHECKING:
    from .engine.sequence import Finished

MOST_PENDING = 20_000  # samples that wait for the judge before the engine is held back ...
MOST_PENDING_BYTES = 256 * 2**20  # ... or bytes of their text
COMMIT_EVERY_S = 60.0  # rows wait no longer than this for their part to fill


class Finisher:
    """Judges generations and commits rows, each exactly once. A context manager; used by one thread.

    `expect` a task before its first `generated`; call `collect` often and `drain` at the end. On leaving after an error,
    rows that were judged are committed still, if the folder takes them.
    """

    def __init__(self, folder: RunFolder, judge: Judge, output: Output, progress: Progress) -> None:
        self._folder, self._judge, self._progress = folder, judge, progress
        self._rows_per_part = output.rows_per_part
        self._tasks: dict[str, tuple[Task, int, datetime]] = {}  # with the samples that are still to come
        self._judged: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._pending = self._pending_bytes = 0
        self._ready: list[Result] = []
        self._last_commit = time.monotonic()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._commits: deque[Future[Path | None]] = deque()
        self._done, self._passed = len(folder.committed()), 0
        self.commit_seconds = 0.0

    def expect(self, task: Task, samples: int) -> None:
        """Announces a task and how many of its samples will be generated."""
        self._tasks[task.task_id] = task, samples, datetime.now(UTC)

    def generated(self, finished: "Finished") -> None:
        """Takes a sample from the engine and has it judged; waits while too many are pending."""
        task, left, started = self._tasks[finished.key]
        if left > 1:
            self._tasks[finished.key] = task, left - 1, started
        else:
            del self._tasks[finished.key]
        row = Result(task.task_id, finished.sample, started, finished.generation, error=finished.error)
        if finished.generation is None:
            self._add(row)
            return
        while self._pending >= MOST_PENDING or self._pending_bytes >= MOST_PENDING_BYTES:
            self._take(self._judged.get())
        self._pending += 1
        self._pending_bytes += len(finished.generation.completion)
        future = self._judge.submit(task, finished.generation.completion)
        future.add_done_callback(lambda done: self._judged.put(_judged(row, done)))

    def failed(self, task_id: str, sample: int, error: RowError) -> None:
        """Takes a sample that could not be generated."""
        self._add(Result(task_id, sample, datetime.now(UTC), error=error))

    def collect(self) -> None:
        """Takes what has been judged, and commits if it is time. Raises what a commit raised."""
        while not self._judged.empty():
            self._take(self._judged.get())
        if self._ready and time.monotonic() - self._last_commit > COMMIT_EVERY_S:
            self._commit()
        while self._commits and self._commits[0].done():
            self._commits.popleft().result()
        self._progress.update(judged=self._done, passed=self._passed)

    def drain(self) -> None:
        """Waits for all judgements and commits everything."""
        while self._pending:
            self._take(self._judged.get())
            self._progress.update(judged=self._done, passed=self._passed, running=0)
        self._commit()
        while self._commits:
            self._commits.popleft().result()

    def _take(self, row: Result) -> None:
        self._pending -= 1
        assert row.generation is not None
        self._pending_bytes -= len(row.generation.completion)
        self._passed += row.judgement is not None and row.judgement.verdict is Verdict.PASSED
        self._add(row)

    def _add(self, row: Result) -> None:
        row.finished_at = datetime.now(UTC)
        self._done += 1
        self._ready.append(row)
        if len(self._ready) >= self._rows_per_part:
            self._commit()

    def _commit(self) -> None:
        if self._ready:
            self._commits.append(self._writer.submit(self._write, self._ready))
            self._ready = []
        self._last_commit = time.monotonic()

    def _write(self, rows: list[Result]) -> Path | None:
        began = time.perf_counter()
        part = self._folder.commit(rows)
        self.commit_seconds += time.perf_counter() - began
        return part

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        self._writer.shutdown(wait=True)


def _judged(row: Result, future: "Future[Judgement]") -> Result:
    """The row with its judgement, or with the error that kept it from one."""
    if future.cancelled():
        row.error = RowError("judge", "judge_failure", "the judge was closed before this sample's turn")
    elif error := future.exception():
        row.error = RowError("judge", "judge_failure", f"{type(error).__name__}: {error}")
    else:
        row.judgement = future.result()
    return row
