"""Looks into a run's folder: one task with all that became of it, and how far the run is."""

import difflib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.errors import InputDataError, Problem, UsageError
from ..schemas.records import Json, Task, Verdict
from .metrics import count_verdicts
from .report import LOUD, WHOLE, aligned, plural, progress_of, run_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from .store import RunInfo

LOG_LINES = 5
_LOG_TAIL_BYTES = 1 << 16
_CONTROL = {code: "\N{REPLACEMENT CHARACTER}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


# One task


def find_rows(run: "RunInfo", task_id: str, sample: int | None = None) -> list[Json]:
    """The result rows of a task by sample index, each as a dictionary of columns; all samples, or one.

    Raises:
        UsageError: there is no such row (yet); names alike are given.
        InputDataError: a part cannot be read.
    """
    import polars as pl

    try:
        frame = pl.scan_parquet(list(run.parts)) if run.parts else pl.LazyFrame({"task_id": []})
        rows = frame.filter(pl.col("task_id") == task_id).collect(engine="streaming")
        ids = [] if rows.height else frame.select("task_id").unique().collect(engine="streaming")["task_id"].to_list()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputDataError(Problem(str(run.path), f"a part cannot be read: {error}", "run the job again to mend it")) from error
    if not rows.height:
        near = difflib.get_close_matches(task_id, ids, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the folder has {progress_of(run)}"
        raise UsageError(Problem(str(run.path), f"there is no result of task {task_id!r}", hint))
    found = [row for row in rows.sort("sample_index").to_dicts() if sample in (None, row["sample_index"])]
    if not found:
        there = ", ".join(map(str, rows["sample_index"].sort()))
        raise UsageError(Problem(str(run.path), f"task {task_id!r} has no sample {sample}", f"it has {there}"))
    return found


def show_task(rows: Sequence[Json], task: Task | None, console: "Console") -> None:
    """Prints the prompt, then each sample: completion, code, verdict and what its tests printed.

    Text of models and candidates is shown without control characters, so that none can drive the terminal.

    Args:
        rows: what `find_rows` found.
        task: the task, for its prompt; None where its shard is gone.
    """
    _heading(console, f"task {rows[0]['task_id']}", "bold")
    _section(console, "prompt", _prompt_text(task) if task else "(the task's shard was not found)")
    for row in rows:
        passed = row["verdict"] == Verdict.PASSED
        _heading(
            console, f"sample {row['sample_index']}: {row['verdict'] or row['error_code']}", "bold green" if passed else LOUD
        )
        _section(console, "facts", "\n".join(_facts(row)))
        _section(console, "completion", row["completion"])
        _section(console, "code", row["code"], row["language"] or "python")
        for label, column in (
            ("syntax error", "syntax_error"),
            ("error", "error_message"),
            ("verdict", "verdict_detail"),
            ("standard output", "stdout_tail"),
            ("standard error", "stderr_tail"),
        ):
            _section(console, label, row[column])


def _prompt_text(task: Task) -> str:
    files = [f"[{file.path}]\n{file.text}" for file in task.context]
    turns = [f"[{message.role}]\n{message.content}" for message in task.messages]
    return "\n\n".join([*files, *turns, *([task.prompt] if task.prompt is not None else [])])


def _facts(row: Json) -> Iterator[str]:
    if row["completion_tokens"] is not None:
        yield f"{row['prompt_tokens']} prompt tokens, {row['cached_prompt_tokens']} of them cached"
        yield f"{plural(row['completion_tokens'], 'token')} generated, finished by {row['finish_reason']}"
        yield f"first token after {row['ttft_ms']:,.0f} ms, last after {row['latency_ms']:,.0f} ms"
    if row["tests_run"] is not None:
        yield f"{row['tests_passed'] or 0} of {plural(row['tests_run'], 'test')} passed, sandbox {row['isolation']}"


def _heading(console: "Console", text: str, style: str) -> None:
    console.print(printable(text), style=style, soft_wrap=True, markup=False, highlight=False)


def _section(console: "Console", label: str, text: str | None, language: str | None = None) -> None:
    """A label and its text, which is left out if it is empty; code is coloured on a terminal."""
    if not text or not text.strip():
        return
    console.print(f"-- {label}", style="dim", markup=False, highlight=False)
    shown = printable(text).rstrip()
    if language and console.is_terminal:
        from rich.syntax import Syntax

        console.print(Syntax(shown, language, theme="ansi_dark", background_color="default", word_wrap=True))
    else:
        console.print(shown, soft_wrap=True, markup=False, highlight=False)
    console.print()


def printable(text: str) -> str:
    """Text whose control characters, but for line ends and tabs, are replaced."""
    return text.replace("\r\n", "\n").translate(_CONTROL)


# How far a run is


@dataclass(frozen=True)
class Status:
    """What `status` shows."""

    run: "RunInfo"
    holder: str | None  # the process that writes, as it calls itself; None: none does
    verdicts: dict[str, int] | None  # rows; None: a part cannot be read
    log: tuple[Json, ...]  # the last events, oldest first


def read_status(run: "RunInfo") -> Status:
    """Reads what a run's folder says now, while it runs or afterwards."""
    import polars as pl

    verdicts: dict[str, int] | None
    try:
        verdicts = count_verdicts(run.parts)
    except (pl.exceptions.PolarsError, OSError):
        verdicts = None
    return Status(run, lock_holder(run.path), verdicts, tuple(_last_events(run.path / "log.jsonl")))


def lock_holder(folder: Path) -> str | None:
    """Who writes to a run's folder; None if nobody does. Holds a shared lock for a moment to find out."""
    try:
        lock = os.open(folder / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(lock, 1000, 0).decode(errors="replace") or "a process that has not said which"
    finally:
        os.close(lock)
    return None


def _last_events(log: Path) -> list[Json]:
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES, 0))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    events: list[Json] = []
    for line in lines[-LOG_LINES - 1 :]:  # one more, as the last may be half written
        try:
            event = json.loads(line)
        except ValueError:
            continue
        events += [event] if isinstance(event, dict) else []
    return events[-LOG_LINES:]


def status_table(status: Status) -> "RenderableType":
    """Rows done and expected, verdicts so far, parts, who writes, and the last events."""
    run = status.run
    lines = [("run", f"{run.job.get('name', run.path.name)}: {progress_of(run)}", "bold"), ("written by", _writer(status), "")]
    if status.verdicts is None:
        lines.append(("ATTENTION", "a part cannot be read; the next run of the job sets it aside and does its rows again", LOUD))
    elif status.verdicts:
        lines.append(("verdicts", ", ".join(f"{name} {rows:,}" for name, rows in status.verdicts.items()), ""))
    lines.append(("parts", f"{plural(len(run.parts), 'part')} in {run.path / 'results'}", WHOLE))
    lines += [("log" if i == 0 else "", _event_text(event), "") for i, event in enumerate(status.log)]
    return aligned(lines)


def status_json(status: Status) -> Json:
    """The same for machines."""
    events = list(status.log)
    return {"run": run_json(status.run), "writer": status.holder, "verdicts": status.verdicts, "log": events}


def _writer(status: Status) -> str:
    if status.holder:
        return status.holder
    return "nobody now" if status.run.finished else "nobody now; the same command resumes"


def _event_text(event: Json) -> str:
    fields = [f"{name}={_short(value)}" for name, value in event.items() if name not in ("time", "event")]
    return printable(" ".join([str(event.get("time", ""))[:19], str(event.get("event", "")), *fields]))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
