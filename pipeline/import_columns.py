"""Which column of a foreign data set becomes which field of a task."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..schemas.errors import Problem, UsageError
from ..schemas.tables import TASK
from .shard_writer import nearest


def parse_columns(pairs: Sequence[str]) -> dict[str, str]:
    """Read `target=source` and `target:=value` from a command line into what ColumnMap takes. Raises UsageError."""
    columns: dict[str, str] = {}
    for pair in pairs:
        target, equals, source = pair.partition("=")
        if not equals:
            raise UsageError(Problem(pair, "is no column mapping", "write target=source, or target:=value for a constant"))
        if target in columns:
            raise UsageError(Problem(pair, f"`{target}` is mapped twice", "keep one of them"))
        columns[target] = source
    return columns


class ColumnMap:
    """Turns rows of a data set into the fields of tables.TASK.

    `columns` maps a field to where it comes from: a column's name, or a dotted path into nested objects and lists, such
    as `info.tests.0`. A field written with a colon, such as `language:`, has a constant value instead: text as it is for
    text fields, JSON for the others. Fields that are not mapped are taken from the column of the same name, if there is one.

    Raises UsageError, with all problems, if a field does not exist or is mapped twice, or a constant cannot be read.
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._paths: dict[str, str] = {}
        self._constants: dict[str, Any] = {}
        self._unused: set[str] = set()
        self._names: dict[str, None] = {}  # columns of the first row, in order
        problems = [problem for target, source in columns.items() if (problem := self._add(target, source))]
        if problems:
            raise UsageError(*problems)

    def _add(self, target: str, source: str) -> Problem | None:
        field = target.removesuffix(":")
        if field not in TASK.names:
            return Problem(f"{target}={source}", f"a task has no field {field!r}", nearest(field, TASK.names))
        if field in self._paths or field in self._constants:
            return Problem(f"{target}={source}", f"`{field}` is mapped twice", "keep one of them")
        if target == field:
            self._paths[field] = source
            self._unused.add(field)
        elif pa.types.is_string(TASK.field(field).type):
            self._constants[field] = source
        else:
            try:
                self._constants[field] = json.loads(source)
            except (ValueError, RecursionError) as error:
                return Problem(
                    f"{target}={source}", f"the value is not JSON: {error}", f"`{field}` takes {TASK.field(field).type}"
                )
        return None

    def apply(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of one row; fields that it lacks are left out."""
        if not self._names:
            self._names = dict.fromkeys(row)
        fields = {name: row[name] for name in TASK.names if name in row}
        fields |= self._constants
        for field, path in self._paths.items():
            fields.pop(field, None)
            try:
                fields[field] = _find(row, path)
            except LookupError:
                continue
            self._unused.discard(field)
        return fields

    def raise_if_unused(self) -> None:
        """Raises UsageError if a mapped source was in none of the rows, which is a misspelling and not a missing value."""
        names = list(self._names)
        if names and self._unused:
            pairs = [(field, self._paths[field]) for field in sorted(self._unused)]
            raise UsageError(*(Problem(f"{f}={path}", f"no row has {path!r}", nearest(path, names)) for f, path in pairs))


def _find(row: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; a column whose own name is the whole path comes first. Raises LookupError."""
    if path in row:
        return row[path]
    value: Any = row
    for step in path.split("."):
        if isinstance(value, Mapping):
            value = value[step]
        elif isinstance(value, list) and step.isdecimal():
            value = value[int(step)]
        else:
            raise LookupError(path)
    return value
