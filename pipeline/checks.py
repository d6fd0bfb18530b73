"""What is wrong with a job, all at once and before any work: job file, model, tokenizer, shards, rows, sandbox and output."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..schemas.errors import CodegenBatchError, EnvironmentFailure, InputDataError, JobFileError, OutputConflict, Problem
from ..schemas.job import Job
from ..schemas.records import Json, RowError, Task
from .config import LoadedJob, load_job
from .prompt_stream import BadRows, each_prompt
from .report import bytes_text, plural

if TYPE_CHECKING:
    from .engine.model_config import ModelConfig
    from .prompts import PromptBuilder

ROWS_SHOWN = 20  # bad rows of each error code that are named
ROW_BYTES = 4096  # of a result beside its completion, at most
TOKEN_BYTES = 8  # of a completion and the code in it
LEAST_DISK = 64 << 20


@dataclass(frozen=True)
class JobCheck:
    """What was found. `problems` keep the job from running, `warnings` do not; `exit_code` is 0 without problems."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    exit_code: int
    tasks: int  # good rows


def check_file(path: str | Path, overrides: Sequence[str] = ()) -> JobCheck:
    """As check_job, from the job file on."""
    try:
        job = load_job(path, overrides)
    except JobFileError as error:
        return JobCheck(tuple(error.problems), (), error.exit_code, 0)
    return check_job(job)


def check_job(job: LoadedJob) -> JobCheck:
    """Looks at everything that a run would need, reads every row, and loads no weights.

    A bad row becomes an error row in a run and does not end it, so it is a warning here, unless there are more of them
    than `output.max_error_rate` allows. Where several kinds of problem are found, the lowest of their exit codes is given.
    """
    spec, found = job.job, _Findings()
    with found.collecting():
        refuse_parallel(spec)
    builder = _check_model(job, found)
    tasks = _check_tasks(job, builder, found)
    with found.collecting():
        _check_sandbox(spec, found)
    with found.collecting():
        _check_output(job.output_dir, tasks * spec.generation.samples, spec.generation.max_new_tokens, found)
    problems = dict.fromkeys(problem for error in found.errors for problem in error.problems)  # each once
    return JobCheck(
        tuple(problems), tuple(dict.fromkeys(found.warnings)), min((e.exit_code for e in found.errors), default=0), tasks
    )


def check_json(check: JobCheck) -> Json:
    """The same for machines; `ok` is false if there is any problem."""
    return {"ok": not check.problems, **asdict(check)}


def refuse_parallel(spec: Job) -> None:
    """Raises EnvironmentFailure for more devices than this version uses."""
    asked = {"parallel.data": spec.parallel.data, "parallel.tensor": spec.parallel.tensor}
    hint = "this version runs in one process on the CPU: set it to 1"
    problems = [Problem(key, f"{value} devices are asked for", hint) for key, value in asked.items() if value > 1]
    if problems:
        raise EnvironmentFailure(*problems)


class _Findings:
    """Errors and warnings as they are found."""

    def __init__(self) -> None:
        self.errors: list[CodegenBatchError] = []
        self.warnings: list[Problem] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keeps an error that is raised within, so that the checks after it still run."""
        try:
            yield
        except CodegenBatchError as error:
            self.errors.append(error)


# The model


def _check_model(job: LoadedJob, found: _Findings) -> "PromptBuilder | None":
    """The job's prompt builder; None where the model or the prompt settings do not allow one."""
    from .engine.tokenizer import Tokenizer
    from .engine.weights import load_config, locate
    from .prompts import PromptBuilder

    spec = job.job
    location = config = tokenizer = None  # as long as they cannot be had
    with found.collecting():
        location = locate(job.model_path, Path.cwd())
    if location is None:
        return None
    with found.collecting():
        config = load_config(location)
        _check_weights(location, spec, config, found)
    with found.collecting():
        tokenizer = Tokenizer.load(location)
    if config is None or tokenizer is None:
        return None
    if (wanted := spec.model.max_context) and wanted > config.max_context:
        message = f"{wanted:,} is more than the model's {config.max_context:,}, which is used"
        found.warnings.append(Problem("model.max_context", message))
    with found.collecting():
        return PromptBuilder(tokenizer, spec.generation, config.context(wanted))
    return None


def _check_weights(location: Path, spec: Job, config: "ModelConfig", found: _Findings) -> None:
    """Headers of the weight files, and whether the weights and a cache fit into memory."""
    from .engine.control_groups import memory_bytes
    from .engine.memory import cache_size
    from .engine.weights import check_model
    from .estimate import weight_bytes

    check_model(location)
    with found.collecting():
        cache_size(config, spec.batching, spec.kv_cache, config.context(spec.model.max_context))
    need, available = weight_bytes(config, spec.model.dtype), memory_bytes()[1]
    if need > available:
        message = f"the weights take {bytes_text(need)} of memory, and {bytes_text(available)} is available"
        found.warnings.append(Problem("model.path", message, "take a smaller model"))


# The tasks


def _check_tasks(job: LoadedJob, builder: "PromptBuilder | None", found: _Findings) -> int:
    """Checks shards and every row; returns how many rows are good. Where some shards are bad, reads the others."""
    from .tasks import check_shards, read_tasks

    shards = _find_shards(job, found)
    if not shards:
        return 0
    report = check_shards(shards)
    found.warnings += report.warnings
    with found.collecting():
        report.raise_if_fatal()
    readable = [shard for shard in shards if not _is_named(shard, report.fatal)]
    bad, good, untested = BadRows(ROWS_SHOWN), 0, 0
    with found.collecting():
        for row, prompt in each_prompt(read_tasks(readable, job.job.tasks.limit), builder):
            if isinstance(prompt, RowError):
                bad.add(row, prompt)
            else:
                good += 1
                untested += isinstance(row, Task) and row.test_kind is None
    found.warnings += bad.problems()
    allowed = job.job.output.max_error_rate
    if bad.total > allowed * (good + bad.total):
        message = f"{bad.total:,} of {plural(good + bad.total, 'row')} cannot be answered, more than the {allowed:.0%} allowed"
        found.errors.append(InputDataError(Problem("tasks", message, "mend the rows, or raise output.max_error_rate")))
    if untested and job.job.validators.tests:
        message = f"{untested:,} of {plural(good, 'task')} have no tests: their verdict will be no_tests"
        found.warnings.append(Problem("tasks", message))
    return good


def _find_shards(job: LoadedJob, found: _Findings) -> list[Path]:
    """All shards that exist, even where some patterns name none."""
    from .tasks import find_shards

    matching = []
    for pattern in job.job.tasks.shards:
        with found.collecting():
            find_shards([pattern], job.base)
            matching.append(pattern)
    return find_shards(matching, job.base)


def _is_named(shard: Path, problems: Iterable[Problem]) -> bool:
    """Whether a problem is about the shard: its place is the shard, or the shard and a column."""
    return any(problem.where == str(shard) or problem.where.startswith(f"{shard} ") for problem in problems)


# The machine


def _check_sandbox(spec: Job, found: _Findings) -> None:
    """Starts a judge, as a run would, and stops it."""
    from .validate.judge import Judge
    from .validate.sandbox import LEVELS

    with Judge(spec.validators.model_copy(update={"workers": 1})) as judge:
        level = judge.level
    if level != LEVELS[-1]:
        message = f"the sandbox will be {level}, as this machine allows no stronger one"
        found.warnings.append(Problem("validators.isolation", message, "codegen-batch doctor says why"))


def _check_output(folder: Path, rows: int, max_new_tokens: int, found: _Findings) -> None:
    """Whether results can be written, and fit."""
    if folder.exists() and not folder.is_dir():
        raise OutputConflict(Problem(str(folder), "is a file, not a run's folder", "choose another output.dir"))
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise EnvironmentFailure(Problem(str(existing), "cannot be written to", "choose another output.dir"))
    free, most = shutil.disk_usage(existing).free, rows * (ROW_BYTES + TOKEN_BYTES * max_new_tokens)
    if free < LEAST_DISK:
        raise EnvironmentFailure(Problem(str(existing), f"only {bytes_text(free)} of disk are free", "free some space"))
    if free < most:
        message = f"results may take up to {bytes_text(most)}, and {bytes_text(free)} of disk are free"
        found.warnings.append(Problem(str(existing), message))
