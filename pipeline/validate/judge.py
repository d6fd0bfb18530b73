"""The judge: takes completions, gives judgements. Owns the worker processes; the engine's process only waits.

engine ── socket ── worker (extract, syntax, plan; trusted) ── warm parent ── tester │ candidate (isolated)
"""

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, InvalidStateError
from multiprocessing.connection import Connection
from types import TracebackType

from ...schemas.errors import EnvironmentFailure, Problem
from ...schemas.job import Validators
from ...schemas.records import CodeFacts, Judgement, Task, Verdict
from .sandbox import LEVELS, environment

JUDGE_VERSION = "1"  # part of a run's fingerprint: raise it with whatever changes a verdict
ATTEMPTS = 3  # a row whose worker died runs again, at most twice
START_S = 60.0  # for a worker to prove its sandbox
END_S = 10.0  # for a worker to end what it runs

_START = "import sys; sys.path[:] = {path!r}; from codegen_batch.pipeline.validate.worker import main; main()"
_Request = tuple[Task, str, "Future[Judgement]"]


class _WorkerDied(Exception):
    """The worker's process is gone, or could not start."""


class _WorkerProcess:
    """One worker and its socket. Raises _WorkerDied from every method once it is gone."""

    def __init__(self, level: str, settings: Validators) -> None:
        ours, theirs = socket.socketpair()
        code = _START.format(path=[os.path.abspath(p) for p in sys.path if p])
        arguments = [str(theirs.fileno()), level, json.dumps(settings.model_dump())]
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment() | {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self.socket = ours
        self.connection = Connection(os.dup(ours.fileno()))
        try:
            greeting = self.connection.recv() if self.connection.poll(START_S) else ("failed", "it did not answer")
        except (EOFError, OSError) as e:
            greeting = ("failed", f"its process died: {e}")
        if greeting[0] != "ready":
            self.end()
            raise _WorkerDied(greeting[1])

    def judge(self, task: Task, completion: str) -> Judgement:
        try:
            self.connection.send((task, completion))
            answer = self.connection.recv()
        except (EOFError, OSError, ValueError) as e:
            raise _WorkerDied(str(e) or "closed") from e
        assert isinstance(answer, Judgement)
        return answer

    def hang_up(self) -> None:
        """Asks the process to end; whoever waits for its answer wakes. Safe from any thread."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Ends the process and all below it, and waits until they are gone."""
        self.hang_up()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.connection.close()
        self.socket.close()


def available_levels() -> list[tuple[str, bool, str]]:
    """Each sandbox level, weakest first: its name, whether it works here, and why not. Proved by judging a sample."""
    return [_try(level) for level in LEVELS]


def _try(level: str) -> tuple[str, bool, str]:
    try:
        _WorkerProcess(level, Validators()).end()
    except _WorkerDied as e:
        return level, False, str(e)
    return level, True, ""


class Judge:
    """Judges completions in the background.

    The strongest sandbox level that works is used. Raises EnvironmentFailure where that is below the job's
    `isolation`. `level` forces one level, to measure or to test it. A context manager; `submit` is thread-safe.
    """

    def __init__(self, settings: Validators, *, level: str | None = None) -> None:
        self._settings = settings
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._closed = False
        self.level, first = self._strongest((level,) if level else tuple(reversed(LEVELS)))
        count = settings.workers or len(os.sched_getaffinity(0))
        self._workers: list[_WorkerProcess | None] = [first, *[None] * (count - 1)]
        self._threads = [threading.Thread(target=self._serve, args=(i,), daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def _strongest(self, levels: tuple[str, ...]) -> tuple[str, _WorkerProcess]:
        refused = []
        for level in levels:
            if LEVELS.index(level) < LEVELS.index(self._settings.isolation):
                break
            try:
                return level, _WorkerProcess(level, self._settings)
            except _WorkerDied as e:
                refused.append(f"{level}: {e}")
        hint = "allow user namespaces, or accept a weaker level in the job"
        wanted = self._settings.isolation
        raise EnvironmentFailure(Problem("validators.isolation", f"no sandbox of level {wanted}: {'; '.join(refused)}", hint))

    def submit(self, task: Task, completion: str) -> "Future[Judgement]":
        """The judgement to come. A bad candidate is a verdict; a judge that fails is the verdict `infra_error`."""
        future: Future[Judgement] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the judge is closed")
            self._pending += 1
            self._queue.put((task, completion, future))
        return future

    @property
    def pending(self) -> int:
        """Samples submitted and not yet judged."""
        return self._pending

    def _serve(self, index: int) -> None:
        while request := self._queue.get():
            task, completion, future = request
            if future.set_running_or_notify_cancel():
                judgement = self._judge(index, task, completion)
                with contextlib.suppress(InvalidStateError):
                    future.set_result(judgement)
            with self._lock:
                self._pending -= 1

    def _judge(self, index: int, task: Task, completion: str) -> Judgement:
        why = ""
        for _ in range(ATTEMPTS):
            if self._closed:
                why = "the judge was closed"
                break
            try:
                worker = self._workers[index] or _WorkerProcess(self.level, self._settings)
                self._workers[index] = worker
                return worker.judge(task, completion)
            except _WorkerDied as e:
                why = str(e)
                if dead := self._workers[index]:
                    dead.end()
                self._workers[index] = None
        facts = CodeFacts(language=task.language)
        return Judgement(facts, Verdict.INFRA_ERROR, f"the judge's worker died: {why}", isolation=self.level)

    def close(self) -> None:
        """Cancels what has not begun, ends what has (as `infra_error`), and leaves no process behind."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(queue.Empty):
            while request := self._queue.get_nowait():
                request[2].cancel()
                self._pending -= 1
        for worker in self._workers:
            if worker:
                worker.hang_up()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            if worker:
                worker.end()

    def __enter__(self) -> "Judge":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
