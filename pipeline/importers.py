"""Other people's tasks into task shards: HumanEval, MBPP, any JSONL, and what `datasets` can load.

Every importer streams: memory is one row group and the set of ids. A row that is no task goes to OUT/rejected.jsonl, one
object a line with `where`, `reason` and `row`, and the import goes on. Shards appear at the end, each whole or not at all.
"""

import ast
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from ..schemas.errors import EnvironmentFailure, InputDataError, Problem, UsageError
from .import_columns import ColumnMap
from .import_sources import SourceRow, is_json_list, read_dataset, read_json_list, read_jsonl
from .shard_writer import (
    ROW_GROUP,
    RowRejected,
    ShardWriter,
    check_task,
    existing_shards,
    parse_python,
    publish,
    sync_file,
    taken,
)

REJECTED = "rejected.jsonl"
ROWS_PER_SHARD = 10_000
SHOWN = 5  # rejected rows that an error message names

Progress = Callable[[int], None]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import wrote: `rows` into `shards`, and `rejected` rows into rejected.jsonl."""

    rows: int
    rejected: int
    shards: tuple[Path, ...]


def import_humaneval(
    src: Path,
    out: Path,
    *,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
    on_progress: Progress | None = None,
) -> ImportReport:
    """Import OpenAI's HumanEval.jsonl or .jsonl.gz into the folder `out`. `on_progress` is told the rows written so far.

    Raises:
        InputDataError: `src` cannot be read, or not one of its rows is a task.
        UsageError: `out` holds shards and `overwrite` is False.
        EnvironmentFailure: `out` cannot be written.
    """
    return _import(read_jsonl(src), humaneval_task, out, rows_per_shard, overwrite, on_progress)


def import_mbpp(
    src: Path,
    out: Path,
    *,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
    on_progress: Progress | None = None,
) -> ImportReport:
    """Import Google's mbpp.jsonl(.gz), or sanitized-mbpp.json, a small JSON list that is read at once.

    Progress and errors as in import_humaneval.
    """
    rows = read_json_list(src) if is_json_list(src) else read_jsonl(src)
    return _import(rows, mbpp_task, out, rows_per_shard, overwrite, on_progress)


def import_jsonl(
    src: Path,
    out: Path,
    columns: Mapping[str, str],
    *,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
    on_progress: Progress | None = None,
) -> ImportReport:
    """Import any JSONL or JSONL.gz. ColumnMap explains `columns`.

    Raises UsageError also for a column that is no task field, or whose source is in no row; else as import_humaneval.
    """
    mapping = ColumnMap(columns)
    return _import(_mapped(read_jsonl(src), mapping), mapping.apply, out, rows_per_shard, overwrite, on_progress)


def import_hf(
    src: Path | str,
    out: Path,
    columns: Mapping[str, str],
    split: str | None = None,
    config: str | None = None,
    *,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
    on_progress: Progress | None = None,
) -> ImportReport:
    """Import through `datasets`: a folder of data files, a folder written by save_to_disk, or a hub id.

    `split` may be left out where there is only one. Columns and errors as in import_jsonl.
    """
    mapping = ColumnMap(columns)
    rows = _mapped(read_dataset(str(src), split, config), mapping)
    return _import(rows, mapping.apply, out, rows_per_shard, overwrite, on_progress)


def humaneval_task(row: Row) -> Row:
    """The task in one row of HumanEval: the reference is the prompt, continued by the canonical solution."""
    return {
        "task_id": _text(row, "task_id"),
        "prompt": _text(row, "prompt"),
        "language": "python",
        "entry_point": _text(row, "entry_point"),
        "test": _text(row, "test"),
        "test_kind": "check",
        "reference": _text(row, "prompt") + _text(row, "canonical_solution"),
        "priority": "P1",
        "metadata": {"source": "HumanEval"},
    }


def mbpp_task(row: Row) -> Row:
    """The task in one row of MBPP, or of its sanitized form (`prompt` for `text`, `test_imports` for `test_setup_code`).

    As in the paper (Austin et al. 2021, arXiv:2108.07732) the prompt shows the tests of test_list. The challenge tests go
    into the metadata.
    """
    reference = _text(row, "code").replace("\r\n", "\n")
    tests = _texts(row, "test_list")
    setup = _texts(row, "test_imports") if "test_imports" in row else [_text(row, "test_setup_code")]
    entry_point = mbpp_entry_point(reference, tests)
    text = _text(row, "prompt" if "prompt" in row else "text").strip()
    shown = "\n".join(tests)
    return {
        "task_id": f"MBPP/{row['task_id']}" if "task_id" in row else None,
        "prompt": f"{text}\n\nName the Python function `{entry_point}`. It must pass these tests:\n\n{shown}\n",
        "language": "python",
        "entry_point": entry_point,
        "test": "\n".join(part for part in [*setup, *tests] if part).replace("\r\n", "\n") + "\n",
        "test_kind": "asserts",
        "reference": reference,
        "priority": "P1",
        "metadata": {"source": "MBPP", "challenge_test_list": row.get("challenge_test_list", [])},
    }


def mbpp_entry_point(reference: str, tests: Sequence[str]) -> str:
    """The function or class of the reference that the tests call, outermost first: f in `assert set(f(Pair(1, 2))) == x`."""
    defined = {
        node.name
        for node in parse_python(reference, "code").body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    for test in tests:
        for node in ast.walk(parse_python(test, "test_list")):  # breadth first, so outer calls come before inner ones
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
                return node.func.id
    raise RowRejected("column test_list: calls nothing that code defines")


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise RowRejected(
            f"column {name}: " + ("is missing" if value is None else f"must be a string, not {type(value).__name__}")
        )
    return value


def _texts(row: Row, name: str) -> list[str]:
    value = row.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RowRejected(f"column {name}: must be a list of strings")
    return value


def _mapped(rows: Iterator[SourceRow], mapping: ColumnMap) -> Iterator[SourceRow]:
    yield from rows
    mapping.raise_if_unused()


def _import(
    source: Iterator[SourceRow],
    convert: Callable[[Row], Row],
    out: Path,
    rows_per_shard: int,
    overwrite: bool,
    on_progress: Progress | None,
) -> ImportReport:
    if rows_per_shard < 1:
        raise UsageError(Problem("rows per shard", f"must be at least 1, not {rows_per_shard}"))
    with _writing(out):
        _prepare(out, overwrite)
        with TemporaryDirectory(prefix=".import-", dir=out) as scratch:
            rejects = Path(scratch) / REJECTED
            with ShardWriter(Path(scratch), rows_per_shard) as writer, rejects.open("w", encoding="utf-8") as log:
                rows, rejected, first = _copy(source, convert, writer, log, on_progress or _silent)
            _publish_rejects(rejects, out, rejected)
            if not rows:
                raise _nothing(out, rejected, first)
            return ImportReport(rows, rejected, publish(writer.parts, out, overwrite=overwrite))


def _copy(
    source: Iterator[SourceRow], convert: Callable[[Row], Row], writer: ShardWriter, log: TextIO, on_progress: Progress
) -> tuple[int, int, list[Problem]]:
    """Writes good rows to `writer` and others to `log`. Returns how many of each, and why the first of the others failed."""
    rows = rejected = 0
    first: list[Problem] = []
    seen: set[str] = set()
    for item in source:
        try:
            writer.add(_new_task(item, convert, seen))
        except RowRejected as reason:
            rejected += 1
            # ASCII, since a rejected row may hold what UTF-8 cannot; repr, since `datasets` gives more types than JSON has.
            entry = {"where": item.where, "reason": str(reason), "row": item.value}
            log.write(json.dumps(entry, default=repr) + "\n")
            if len(first) < SHOWN:
                first.append(Problem(item.where, str(reason)))
            continue
        rows += 1
        if rows % ROW_GROUP == 0:
            on_progress(rows)
    on_progress(rows)
    return rows, rejected, first


def _new_task(item: SourceRow, convert: Callable[[Row], Row], seen: set[str]) -> dict[str, Any]:
    if item.fault:
        raise RowRejected(item.fault)
    task = check_task(convert(item.value))
    if task["task_id"] in seen:
        raise RowRejected(f"column task_id: {task['task_id']!r} is already the id of an earlier row")
    seen.add(task["task_id"])
    return task


def _silent(rows: int) -> None:
    pass


def _prepare(out: Path, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(Problem(str(out), "is a file, not a folder", "name a folder for the shards"))
    out.mkdir(parents=True, exist_ok=True)
    if not overwrite and (shards := existing_shards(out)):
        raise taken(shards[0])


def _publish_rejects(rejects: Path, out: Path, rejected: int) -> None:
    """Replace the report of an earlier import, or remove it if nothing was rejected this time."""
    if rejected:
        sync_file(rejects)
        os.replace(rejects, out / REJECTED)
    else:
        (out / REJECTED).unlink(missing_ok=True)


def _nothing(out: Path, rejected: int, first: Sequence[Problem]) -> InputDataError:
    if not rejected:
        return InputDataError(
            Problem(str(out), "nothing was imported: the source has no rows", "check that it is the right file")
        )
    summary = Problem(str(out), f"nothing was imported: all {rejected} rows were rejected", f"see {out / REJECTED}")
    return InputDataError(summary, *first)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Turns failures to write into EnvironmentFailure; sources have turned theirs into InputDataError already."""
    try:
        yield
    except OSError as error:
        message = f"cannot be written: {error.strerror or error}"
        raise EnvironmentFailure(Problem(str(out), message, "make room there, or choose another folder")) from error
