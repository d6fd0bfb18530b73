"""A run: tasks in, judged rows out. `_generate` is the loop that all else serves.

Reading, prompting and planning happen a window at a time; judging and committing go on in the background (finish.py).
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from ..schemas.errors import ErrorRateExceeded, Problem, RowFailure
from ..schemas.job import Job
from ..schemas.records import BadRow, EngineStats, Json, Metric, RowError, Task
from .checks import refuse_parallel
from .config import LoadedJob, load_job
from .engine.memory import fast_dtype
from .engine.weights import load_config, locate, model_identity
from .finish import Finisher
from .metrics import DEFAULT_PRIORITY, compute_metrics
from .plan import order
from .progress import Progress, State
from .prompts import PROMPT_VERSION, Prompt, PromptBuilder
from .signals import StopSignals
from .store import RunFolder, RunInfo, fingerprint, read_run
from .tasks import check_shards, digests, find_shards, read_tasks
from .validate.judge import JUDGE_VERSION, Judge

if TYPE_CHECKING:
    from rich.console import Console

    from .engine.engine import Engine, Request

Row = TypeVar("Row", Task, Task | BadRow)

WINDOW = 4096  # tasks that are read and put in order together
VERSIONS = ("codegen-batch", "torch", "numba", "pyarrow", "tokenizers")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a run came to. `error` is set where more rows ended in an error than the job allows."""

    run: RunInfo
    metrics: list[Metric]
    error: ErrorRateExceeded | None = None


def run_job(
    job: LoadedJob | str | Path,
    *,
    output: Path | None = None,
    limit: int | None = None,
    console: "Console | None" = None,
    quiet: bool = True,
) -> RunOutcome:
    """Runs a job to its end, or goes on where an earlier run of it in the same folder stopped.

    Args:
        job: a job file's path, or what load_job made of it.
        output: the run's folder; the job's own by default.
        limit: take only the first tasks; the job's own limit by default.
        console: where progress goes, on stderr; needed unless quiet.

    Raises:
        CodegenBatchError: one of its kinds, see schemas/errors.py. Rows that were committed before stay.
        KeyboardInterrupt, Stopped: after an orderly end by SIGINT or SIGTERM; the same call resumes.
    """
    with StopSignals() as signals:
        loaded = job if isinstance(job, LoadedJob) else load_job(job)
        return _run(loaded, output, limit, signals, console, quiet)


def _run(
    loaded: LoadedJob, output: Path | None, limit: int | None, signals: StopSignals, console: "Console | None", quiet: bool
) -> RunOutcome:
    spec, began = loaded.job, datetime.now(UTC)
    refuse_parallel(spec)
    shards = find_shards(loaded.shard_patterns, Path())
    report = check_shards(shards)
    report.raise_if_fatal()
    model = locate(loaded.model_path, Path())
    identity = run_identity(spec, model)
    limit = limit or spec.tasks.limit
    with RunFolder.open(
        output or loaded.output_dir,
        job=_with_places(loaded, shards, model),
        fingerprint=fingerprint(identity),
        identity=identity,
        versions=versions(),
    ) as folder:
        folder.hold_to(digests(shards))
        work = _Work(spec, folder, lambda: read_tasks(shards, limit))
        missing = work.count_missing(min(report.rows, limit or report.rows))
        folder.set_expected(len(folder.committed()) + missing)
        if not missing and (metrics := folder.metrics()):
            return outcome(folder, metrics, spec.output.max_error_rate)
        stats: EngineStats | None = None
        seconds: dict[str, float] = {}
        if missing:
            start = State(len(folder.committed()) + missing, judged=len(folder.committed()))
            with Progress(console or stderr_console(), start, quiet=quiet) as progress:
                stats, seconds = work.run(model, progress, signals)
        metrics = compute_metrics(folder.results(), stats, seconds, spec.generation.samples, work.priorities, since=began)
        folder.write_metrics(metrics)
        return outcome(folder, metrics, spec.output.max_error_rate)


class _Work:
    """One invocation's work on a run's folder."""

    def __init__(self, job: Job, folder: RunFolder, read: Callable[[], Iterator[Task | BadRow]]) -> None:
        self.job, self.folder, self.read = job, folder, read
        self.samples = range(job.generation.samples)
        self.priorities: dict[str, str] = {}

    def count_missing(self, rows: int) -> int:
        """Samples that are not committed yet, of so many task rows. Reads the rows only where some are committed."""
        if not self.folder.committed():
            return rows * len(self.samples)
        return sum(len(self._missing(self._noted(row).task_id)) for row in self.read())

    def run(self, model: Path, progress: Progress, signals: StopSignals) -> tuple[EngineStats, dict[str, float]]:
        """Does all that is left; returns what the engine counted and the seconds of each stage."""
        began = time.perf_counter()
        with Judge(self.job.validators) as judge, Finisher(self.folder, judge, self.job.output, progress) as finisher:
            engine = load_engine(self.job, model)
            loaded = time.perf_counter()
            builder = PromptBuilder(engine.tokenizer, self.job.generation, engine.max_context)
            with signals.orderly():
                try:
                    _generate(engine, self._requests(builder, finisher), finisher, progress, signals)
                finally:
                    generated = time.perf_counter()
                    finisher.drain()
        ended = time.perf_counter()
        seconds = {
            "load": loaded - began,
            "generate": generated - loaded,
            "judge_wait": ended - generated,
            "commit": finisher.commit_seconds,
            "total": ended - began,
        }
        return engine.stats, seconds

    def _requests(self, builder: PromptBuilder, finisher: Finisher) -> "Iterator[Request]":
        """The prompts that are still to be answered, a planned window after the other; bad rows go straight to the end."""
        from .engine.engine import Request

        rows = self.read()
        while window := list(islice(rows, WINDOW)):
            tasks = [row for row in window if self._is_task(row, finisher)]
            prompts: list[tuple[Task, Prompt]] = []
            for task, prompt in zip(tasks, builder.build_many(tasks), strict=True):
                if isinstance(prompt, RowFailure):
                    self._fail(finisher, task.task_id, RowError(prompt.stage, prompt.code, prompt.message))
                else:
                    prompts.append((task, prompt))
            batching, page_size = self.job.batching, self.job.kv_cache.page_size
            buckets = batching.length_buckets if batching.mode == "static" else []
            for i in order([p.token_ids for _, p in prompts], [t.priority for t, _ in prompts], page_size, buckets):
                task, prompt = prompts[i]
                wanted = self._missing(task.task_id)
                finisher.expect(task, len(wanted))
                yield Request(task.task_id, prompt.token_ids, wanted)

    def _is_task(self, row: Task | BadRow, finisher: Finisher) -> TypeGuard[Task]:
        """Whether the row is a task with samples to make. A bad row is finished here."""
        if isinstance(row, BadRow):
            self._fail(finisher, row.task_id, row.error)
            return False
        return bool(self._missing(self._noted(row).task_id))

    def _noted(self, row: Row) -> Row:
        """The same row, its priority kept for the metrics."""
        if isinstance(row, Task) and row.priority != DEFAULT_PRIORITY:
            self.priorities[row.task_id] = row.priority
        return row

    def _missing(self, task_id: str) -> tuple[int, ...]:
        return tuple(i for i in self.samples if (task_id, i) not in self.folder.committed())

    def _fail(self, finisher: Finisher, task_id: str, error: RowError) -> None:
        for index in self._missing(task_id):
            finisher.failed(task_id, index, error)


def _generate(
    engine: "Engine", requests: "Iterator[Request]", finisher: Finisher, progress: Progress, signals: StopSignals
) -> None:
    """Feeds the engine, steps it, and hands over what it finishes."""
    while not signals.asked:
        while engine.room and (request := next(requests, None)):
            engine.add(request)
        if not engine.busy:
            return
        for finished in engine.step():
            finisher.generated(finished)
        finisher.collect()
        progress.update(tokens=engine.tokens_out, running=engine.running)


def load_engine(job: Job, model: Path) -> "Engine":
    """The engine that a job asks for."""
    from .engine.engine import Engine, Sampling

    how = job.generation
    sampling = Sampling(
        how.max_new_tokens, how.temperature, how.top_k, how.top_p, how.min_p, how.repetition_penalty, tuple(how.stop), how.seed
    )
    return Engine(model, sampling, job.batching, job.kv_cache, job.model.dtype, job.model.max_context)


def run_identity(job: Job, model: Path) -> Json:
    """All that can change a row, and nothing else: neither batch sizes nor workers, paths, or how many samples are made."""
    config, validators = load_config(model), job.validators
    return {
        "model": model_identity(model),
        "dtype": fast_dtype() if job.model.dtype == "auto" else job.model.dtype,
        "max_context": config.context(job.model.max_context),
        "generation": job.generation.model_dump(exclude={"samples"}),
        "kv_cache": {"dtype": job.kv_cache.dtype, "page_size": job.kv_cache.page_size},
        "prompt_version": PROMPT_VERSION,
        "judge_version": JUDGE_VERSION,
        "validators": validators.model_dump(exclude={"workers", "isolation"}),
    }


def _with_places(loaded: LoadedJob, shards: list[Path], model: Path) -> Json:
    """The job with the files that its patterns and names led to, so that `show` finds them from anywhere."""
    job: Json = loaded.job.model_dump()
    job["tasks"]["shards"] = [str(path.resolve()) for path in shards]
    job["model"]["path"] = str(model)
    return job


def outcome(folder: RunFolder, metrics: list[Metric], allowed: float) -> RunOutcome:
    """What the run came to, held against the share of error rows that is allowed."""
    values = {m.name: m.value or 0.0 for m in metrics if m.scope == "run"}
    errors, rows = values["error_rows"], values["rows"]
    error = None
    if rows and errors / rows > allowed:
        message = f"{errors:.0f} of {rows:.0f} rows ended in an error, more than the {allowed:.0%} allowed"
        hint = "see error_code and error_message in the results, or raise output.max_error_rate"
        error = ErrorRateExceeded(Problem(str(folder.path), message, hint))
    return RunOutcome(read_run(folder.path), metrics, error)


def versions() -> Json:
    """The releases that a run's speed and results may depend on."""
    return {name: version(name) for name in VERSIONS}


def stderr_console() -> "Console":
    from rich.console import Console

    return Console(stderr=True)
