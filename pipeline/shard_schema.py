"""Whether a Parquet file has the columns of a task shard (schemas/tables.py's TASK), in types that can be read as those.

Writers differ: text may be large, dictionary encoded or a view, integers may be wider, or floats where some are null.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..schemas.errors import Problem

if TYPE_CHECKING:
    import pyarrow as pa


def schema_problems(shard: str, schema: "pa.Schema", metadata: dict[bytes, bytes]) -> Iterator[Problem]:
    """What makes a file no task shard. `metadata` is the footer's own; a file without our version in it is welcome."""
    from ..schemas.tables import TASK, TASK_VERSION, VERSION_KEY

    version = metadata.get(VERSION_KEY, TASK_VERSION)
    if version != TASK_VERSION:
        message = f"its schema is {version.decode(errors='replace')!r}, not {TASK_VERSION.decode()!r}"
        yield Problem(shard, message, "this file was written for another purpose or by another version")
        return
    for column, times in Counter(schema.names).items():
        if times > 1 and column in TASK.names:
            yield Problem(f"{shard} {column}", f"there are {times} columns of this name", "keep one of them")
    if "task_id" not in schema.names:
        yield Problem(shard, "has no column task_id", _similar("task_id", schema.names))
    if "prompt" not in schema.names and "messages" not in schema.names:
        yield Problem(shard, "has neither a column prompt nor a column messages", _similar("prompt", schema.names))
    for field in schema:
        if field.name in TASK.names and not _fits(field.type, TASK.field(field.name).type):
            yield Problem(f"{shard} {field.name}", f"the column's type is {field.type}, not {TASK.field(field.name).type}")


def schema_warnings(shard: str, schema: "pa.Schema") -> Iterator[Problem]:
    """What is odd about a task shard, and harmless."""
    from ..schemas.tables import TASK

    for column in schema.names:
        if column not in TASK.names:
            yield Problem(f"{shard} {column}", "unknown column, ignored", _similar(column, TASK.names))
    if "test" in schema.names and "test_kind" not in schema.names:
        yield Problem(shard, "has tests but no column test_kind", "without a kind nothing is run")


def _similar(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {near[0]}?" if near else ""


def _fits(actual: "pa.DataType", wanted: "pa.DataType") -> bool:
    """Whether values of a column's type can be read as the wanted one: text as text, number as number, by structure."""
    import pyarrow as pa

    is_ = pa.types
    if isinstance(actual, pa.BaseExtensionType):
        return _fits(actual.storage_type, wanted)
    if is_.is_dictionary(actual):
        return _fits(actual.value_type, wanted)
    if is_.is_null(actual):
        return True
    if is_.is_string(wanted):
        return bool(is_.is_string(actual) or is_.is_large_string(actual) or is_.is_string_view(actual))
    if is_.is_list(wanted):
        lists = (is_.is_list, is_.is_large_list, is_.is_fixed_size_list, is_.is_list_view, is_.is_large_list_view)
        return any(test(actual) for test in lists) and _fits_item(actual.value_type, wanted.value_type)
    if is_.is_struct(wanted):
        if not is_.is_struct(actual) or len({field.name for field in actual}) < actual.num_fields:
            return False
        return all(
            _fits(field.type, wanted.field(field.name).type) for field in actual if wanted.get_field_index(field.name) >= 0
        )
    return bool(is_.is_integer(actual) or is_.is_floating(actual))


def _fits_item(actual: "pa.DataType", wanted: "pa.DataType") -> bool:
    """As _fits, for the structs in a list: there every field must be present."""
    import pyarrow as pa

    complete = pa.types.is_struct(actual) and all(actual.get_field_index(field.name) >= 0 for field in wanted)
    return _fits(actual, wanted) and (complete or pa.types.is_null(actual))
