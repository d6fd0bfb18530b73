"""Task shards, written: `check_task` admits a row, `ShardWriter` writes shards, `publish` gives them their final names.

Nothing appears under a final name before all of it is on the disk.
"""

import ast
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from ..schemas.errors import Problem, UsageError
from ..schemas.records import BadRow, Task
from ..schemas.tables import TASK
from .durable import claim_name, sync_folder
from .task_rows import TEST_KINDS, make_task

ROW_GROUP = 1_000  # rows; readers stream one group at a time


class RowRejected(ValueError):
    """A row is no task. The message says why, for the person who can mend the source."""


def nearest(name: str, valid: Sequence[str]) -> str:
    """Hint at the valid name that was probably meant, or at all of them."""
    close = get_close_matches(name, valid, n=1)
    return f"did you mean `{close[0]}`?" if close else "valid: " + ", ".join(valid)


def check_task(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` as a row of tables.TASK, all fields there, absent ones None.

    An integer task_id becomes a string and metadata that is no string becomes JSON; nothing else is converted.
    Raises RowRejected for what the reader (task_rows.py) would not take, for wrong types and for tests that cannot run.
    """
    values = dict(values)
    if isinstance(values.get("task_id"), int) and not isinstance(values["task_id"], bool):
        values["task_id"] = str(values["task_id"])
    values["metadata"] = _metadata(values.get("metadata"))
    row = {field.name: _conform(values.get(field.name), field.type, field.name) for field in TASK}
    task = make_task(row, shard="", row=0)
    if isinstance(task, BadRow):
        raise RowRejected(task.error.message)
    _check_test(task)
    return row


def _metadata(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise RowRejected("column metadata: cannot be written as JSON") from None


def _conform(value: Any, kind: pa.DataType, where: str) -> Any:
    """Return `value` if it is of the Arrow type `kind`, with absent members of structs as None."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise RowRejected(f"column {where}: must be a list, not {type(value).__name__}")
        items = [_conform(item, kind.value_type, f"{where}[{index}]") for index, item in enumerate(value)]
        if None in items:
            raise RowRejected(f"column {where}[{items.index(None)}]: must not be null")
        return items
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            raise RowRejected(f"column {where}: must be an object, not {type(value).__name__}")
        fields = {field.name: field.type for field in kind}
        for name in value:
            if name not in fields:
                raise RowRejected(f"column {where}: has no member {name!r}; {nearest(str(name), list(fields))}")
        return {name: _conform(value.get(name), member, f"{where}.{name}") for name, member in fields.items()}
    return _conform_scalar(value, kind, where)


def _conform_scalar(value: Any, kind: pa.DataType, where: str) -> Any:
    if pa.types.is_string(kind):
        if not isinstance(value, str):
            raise RowRejected(f"column {where}: must be a string, not {type(value).__name__}")
        with suppress(UnicodeEncodeError):
            value.encode()
            return value
        raise RowRejected(f"column {where}: holds a lone surrogate, which is no valid text")
    if isinstance(value, bool) or not isinstance(value, int if pa.types.is_integer(kind) else int | float):
        raise RowRejected(f"column {where}: must be of type {kind}, not {type(value).__name__}")
    try:
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowException, OverflowError):
        raise RowRejected(f"column {where}: is out of range for {kind}") from None


def _check_test(task: Task) -> None:
    """Refuse what could never be judged: a test without its kind or the other way round, Python that does not parse."""
    kind = task.test_kind
    needed, given = ("stdio_cases", task.stdio_cases) if kind == "stdio" else ("test", task.test)
    if kind is not None and not given:
        raise RowRejected(f"column {needed}: is missing, but test_kind is {kind!r}")
    if kind is None and (task.test or task.stdio_cases):
        raise RowRejected(f"column test_kind: is missing, but there is a test; one of {', '.join(TEST_KINDS)}")
    if kind == "check" and task.entry_point is None:
        raise RowRejected("column entry_point: is missing, but test_kind is 'check'")
    if task.language != "python":
        return
    defined = top_level_names(parse_python(task.test or "", "test"))
    if kind == "check" and "check" not in defined:
        raise RowRejected("column test: does not define check(candidate)")
    if task.reference is not None:
        defined = top_level_names(parse_python(task.reference, "reference"))
        if task.entry_point and not defined & {task.entry_point, "*"}:
            raise RowRejected(f"column reference: does not define {task.entry_point!r}")


def parse_python(source: str, column: str) -> ast.Module:
    """Parse Python of the running version. Raises RowRejected with the line of the first error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in somebody's test is not the user's business
            return ast.parse(source)
    except SyntaxError as error:
        raise RowRejected(f"column {column}: is not valid Python: {error.msg} (line {error.lineno})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise RowRejected(f"column {column}: cannot be parsed as Python: {error}") from None


def top_level_names(module: ast.Module) -> set[str]:
    """Names that running the module's top level binds, also inside of its if, try, for and with blocks."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(module.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            waiting += ast.iter_child_nodes(node)
    return names


class ShardWriter:
    """Writes checked rows to numbered Parquet files in `scratch`, at most `rows_per_shard` rows each.

    Holds one row group in memory. After the `with` block every file in `parts` is complete and on the disk.
    """

    def __init__(self, scratch: Path, rows_per_shard: int) -> None:
        assert rows_per_shard >= 1
        self.parts: list[Path] = []
        self._scratch = scratch
        self._rows_per_shard = rows_per_shard
        self._room = 0  # rows that the open shard still takes
        self._group: list[dict[str, Any]] = []
        self._file: pq.ParquetWriter | None = None

    def add(self, row: dict[str, Any]) -> None:
        """Write a row that came from check_task."""
        if self._file is None:
            self.parts.append(self._scratch / f"{len(self.parts):05d}.parquet")
            self._file = pq.ParquetWriter(self.parts[-1], TASK, compression="zstd")
            self._room = self._rows_per_shard
        self._group.append(row)
        self._room -= 1
        if len(self._group) == ROW_GROUP:
            self._flush()
        if self._room == 0:
            self._close_shard()

    def _flush(self) -> None:
        assert self._file is not None
        if self._group:
            self._file.write_table(pa.Table.from_pylist(self._group, schema=TASK))
            self._group = []

    def _close_shard(self) -> None:
        if self._file is not None:
            self._flush()
            self._file.close()
            self._file = None
            sync_file(self.parts[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._close_shard()
        elif self._file is not None:
            self._file.close()


def existing_shards(out: Path) -> list[Path]:
    """Shards in `out` that an import wrote."""
    return sorted(out.glob("shard-*-of-*.parquet"))


def publish(parts: Sequence[Path], out: Path, *, overwrite: bool) -> tuple[Path, ...]:
    """Give complete files their final names, `shard-00000-of-00003.parquet` and so on, and return these.

    Each shard appears whole or not at all. With `overwrite` the shards of an earlier import disappear; without it a name
    that is taken raises UsageError, and no shard in `out` changes.
    """
    targets = tuple(out / f"shard-{index:05d}-of-{len(parts):05d}.parquet" for index in range(len(parts)))
    if overwrite:
        stale = set(existing_shards(out)) - set(targets)
        for part, target in zip(parts, targets, strict=True):
            os.replace(part, target)
        for shard in stale:
            shard.unlink(missing_ok=True)
    else:
        _claim_all(parts, targets)
    sync_folder(out)
    return targets


def _claim_all(parts: Sequence[Path], targets: Sequence[Path]) -> None:
    for done, (part, target) in enumerate(zip(parts, targets, strict=True)):
        if not claim_name(part, target):
            for mine in targets[:done]:
                mine.unlink()
            raise taken(target)


def taken(shard: Path) -> UsageError:
    """The error for a shard that is already there."""
    return UsageError(Problem(str(shard), "the shard exists already", "choose another folder, or say --overwrite"))


def sync_file(path: Path) -> None:
    """Waits until the disk has a file's content."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
