"""Task shards: find them, check them by their footers, and stream their rows.

The contract of a shard is schemas/tables.py's TASK. Reading is strict, and one bad row never ends a job: it becomes a
BadRow with an id of its own, so that a job has exactly as many rows as its shards.
"""

import difflib
import glob
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.errors import InputDataError, Problem
from ..schemas.records import BadRow, RowError, Task
from .engine.locations import sha256_of
from .shard_schema import schema_problems, schema_warnings
from .task_rows import Undecodable, made_up_id, make_task

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

BATCH_ROWS = 256  # rows held in memory at once
BUFFER_BYTES = 1 << 20  # read ahead of a column


@dataclass(frozen=True)
class ShardReport:
    """What the footers say: `fatal` problems make a run impossible, `warnings` do not."""

    fatal: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    rows: int  # over all shards that can be read

    def raise_if_fatal(self) -> None:
        """Raises InputDataError with all fatal problems, if there are any."""
        if self.fatal:
            raise InputDataError(*self.fatal)


def find_shards(patterns: Iterable[str], base: Path) -> list[Path]:
    """The files that the patterns name: sorted, each once.

    Args:
        patterns: paths or globs (`**` for folders in folders), relative to `base`.
        base: the job file's folder.

    Raises:
        InputDataError: patterns that name no file, all at once.
    """
    found: list[Path] = []
    problems = []
    for pattern in map(os.path.expanduser, patterns):
        literal = base / pattern
        matches = [literal] if literal.exists() else [base / m for m in glob.glob(pattern, root_dir=base, recursive=True)]
        files = [path for path in matches if path.is_file()]
        if not files:
            problems.append(_no_match(pattern, literal))
        found += files
    if problems:
        raise InputDataError(*problems)
    by_content = {os.path.realpath(path): path for path in sorted(found, reverse=True)}  # of links to one file, the first
    return sorted(by_content.values())


def check_shards(shards: Sequence[Path]) -> ShardReport:
    """Checks what footers can tell: readable Parquet, columns and their types, schema version, number of rows.

    An empty shard is a warning, unless no shard has any row.
    """
    fatal: list[Problem] = []
    warnings: list[Problem] = []
    rows = 0
    for shard in shards:
        try:
            with _open(shard) as file:
                schema, metadata = file.schema_arrow, file.metadata
        except _unreadable() as error:
            fatal.append(Problem(str(shard), f"not a readable Parquet file: {_first_line(error)}", "write the shard again"))
            continue
        fatal += schema_problems(str(shard), schema, metadata.metadata or {})
        warnings += schema_warnings(str(shard), schema)
        rows += metadata.num_rows
        if metadata.num_rows == 0:
            warnings.append(Problem(str(shard), "the shard has no rows", "remove it, or write it again"))
    if not fatal and rows == 0:
        fatal.append(Problem("tasks", f"there are no tasks: none of {len(shards)} shard(s) has a row"))
    return ShardReport(tuple(fatal), tuple(warnings), rows)


def count_rows(shards: Sequence[Path]) -> int:
    """Rows of all shards, from their footers. Raises InputDataError if one cannot be read."""
    total = 0
    for shard in shards:
        with _open_or_fail(shard) as file:
            total += file.metadata.num_rows
    return total


def shard_names(shards: Sequence[Path]) -> list[str]:
    """A name a shard: its file name, with as many folders before it as it takes to tell the shards apart."""
    parts = [Path(os.path.abspath(shard)).parts for shard in shards]
    deepest = max(map(len, parts), default=0)
    names = [""] * len(shards)
    pending = list(range(len(shards)))
    for depth in range(1, deepest + 1):
        for i in pending:
            names[i] = "/".join(parts[i][-depth:])
        shared = Counter(names[i] for i in pending)
        pending = [i for i in pending if shared[names[i]] > 1]
    return names


def digests(shards: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each shard's content, by its name."""
    return dict(zip(shard_names(shards), map(sha256_of, shards), strict=True))


def read_tasks(shards: Sequence[Path], limit: int | None = None) -> Iterator[Task | BadRow]:
    """Streams the rows of checked shards, in order, in constant memory but for 16 bytes and their set entry an id.

    Every id that comes out is unique over the job. A row whose task_id an earlier row has becomes a BadRow with the id
    `TASK_ID@SHARD#ROW`; where a page cannot be decoded, the rest of its row group becomes BadRows and the next group is read.

    Args:
        shards: as from find_shards, accepted by check_shards.
        limit: take the first so many rows, good and bad.

    Raises:
        InputDataError: a shard's footer can no longer be read.
    """
    names = shard_names(shards)
    rows = chain.from_iterable(_read_shard(shard, name) for shard, name in zip(shards, names, strict=True))
    seen: set[bytes] = set()
    for row in islice(rows, limit):
        yield _with_unique_id(row, seen)


def _with_unique_id(row: Task | BadRow, seen: set[bytes]) -> Task | BadRow:
    """The row as it is, or, if its id is taken, as a BadRow with an id that is not. Adds the id's digest to `seen`."""
    task_id = row.task_id
    while (digest := hashlib.blake2b(task_id.encode(), digest_size=16).digest()) in seen:
        task_id = f"{task_id}@{made_up_id(row.shard, row.row)}"
    seen.add(digest)
    if task_id == row.task_id:
        return row
    if isinstance(row, BadRow):
        return replace(row, task_id=task_id)
    message = f"column task_id: {row.task_id!r} is already the id of an earlier row"
    return BadRow(task_id, row.shard, row.row, RowError("read", "duplicate_task_id", message))


def _read_shard(shard: Path, name: str) -> Iterator[Task | BadRow]:
    from ..schemas.tables import TASK

    with _open_or_fail(shard) as file:
        columns = [column for column in file.schema_arrow.names if column in TASK.names]
        row = end = 0
        for group in range(file.num_row_groups):
            end += file.metadata.row_group(group).num_rows
            reason = "it holds fewer rows than its footer says"
            try:
                for batch in file.iter_batches(BATCH_ROWS, [group], columns, use_threads=False):
                    for values in _row_values(batch):
                        yield make_task(values, name, row)
                        row += 1
            except _unreadable() as failure:
                reason = _first_line(failure)
            error = RowError("read", "unreadable_row_group", f"row group {group} cannot be decoded: {reason}")
            for lost in range(row, end):
                yield BadRow(made_up_id(name, lost), name, lost, error)
            row = end


def _row_values(batch: "pa.RecordBatch") -> Iterator[dict[str, Any]]:
    columns = [_values(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _values(column: "pa.Array") -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:  # rare: then value by value, so that only the bad ones are lost
        values = [_value(scalar) for scalar in column]
    return values


def _value(scalar: "pa.Scalar") -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return Undecodable(f"not UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}")


# Files


def _open(shard: Path) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    return pq.ParquetFile(shard, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)


def _open_or_fail(shard: Path) -> "pq.ParquetFile":
    try:
        return _open(shard)
    except _unreadable() as error:
        raise InputDataError(Problem(str(shard), f"not a readable Parquet file: {_first_line(error)}")) from None


def _unreadable() -> tuple[type[BaseException], ...]:
    """What Arrow raises for damaged files; a damaged length may ask for more memory than there is."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, MemoryError)


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]


def _no_match(pattern: str, literal: Path) -> Problem:
    if literal.is_dir():
        return Problem(pattern, "is a folder, not a shard", f"write {pattern.rstrip('/')}/*.parquet")
    folder = literal.parent
    while glob.has_magic(str(folder)) and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return Problem(pattern, f"there is no folder {folder}")
    near = difflib.get_close_matches(literal.name, sorted(os.listdir(folder)), n=1)
    return Problem(pattern, f"no such file in {folder}", f"did you mean {near[0]}?" if near else "")
