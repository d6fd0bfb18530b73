"""One row of a task shard, as Python values, into a Task; or into a BadRow that says what is wrong with it."""

import json
import math
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..schemas.errors import RowFailure
from ..schemas.records import BadRow, Compare, ContextFile, Limits, Message, RowError, StdioCase, Task

ROLES = ("system", "user", "assistant")
TEST_KINDS = ("check", "asserts", "unittest", "stdio")
PRIORITIES = ("P0", "P1", "P2")
COMPARE_MODES = ("exact", "tokens", "float")
LANGUAGE_ALIASES = {"py": "python", "py3": "python", "python3": "python"}


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands for a text in a shard that is not UTF-8."""

    reason: str


def make_task(values: Mapping[str, Any], shard: str, row: int) -> Task | BadRow:
    """Checks one row. A row without a usable task_id gets the id `SHARD#ROW`.

    Args:
        values: column to value, None for null, Undecodable for text that is not UTF-8; columns may be missing.
        shard: the shard's name, unique over the job.
        row: from 0.
    """
    try:
        return _task(values, shard, row)
    except RowFailure as failure:
        task_id = values.get("task_id")
        usable = isinstance(task_id, str) and task_id != ""
        error = RowError(failure.stage, failure.code, failure.message)
        return BadRow(str(task_id) if usable else made_up_id(shard, row), shard, row, error)


def made_up_id(shard: str, row: int) -> str:
    """The id of a row that has none of its own."""
    return f"{shard}#{row}"


def _task(values: Mapping[str, Any], shard: str, row: int) -> Task:
    for column, value in values.items():
        if isinstance(value, Undecodable):
            raise RowFailure("read", "invalid_utf8", f"column {column}: {value.reason}")
    task_id = values.get("task_id")
    if not task_id:
        _bad("task_id", task_id, "must not be empty")
    prompt, messages = _prompt(values)
    return Task(
        task_id=task_id,
        shard=shard,
        row=row,
        prompt=prompt,
        messages=messages,
        language=_language(values.get("language")),
        entry_point=values.get("entry_point") or None,
        test=values.get("test"),
        test_kind=_choice("test_kind", values.get("test_kind"), TEST_KINDS),
        stdio_cases=tuple(
            StdioCase(stdin=case["stdin"] or "", stdout=_given(f"{place}.stdout", case["stdout"]))
            for place, case in _items(values, "stdio_cases")
        ),
        reference=values.get("reference"),
        priority=_choice("priority", values.get("priority"), PRIORITIES) or "P1",
        session_id=values.get("session_id"),
        turn=_whole("turn", values.get("turn"), least=0),
        context=tuple(
            ContextFile(_given(f"{place}.path", file["path"]), _given(f"{place}.text", file["text"]))
            for place, file in _items(values, "context")
        ),
        limits=_limits(values.get("limits") or {}),
        compare=_compare(values.get("compare") or {}),
        metadata=_json("metadata", values.get("metadata")),
    )


def _prompt(values: Mapping[str, Any]) -> tuple[str | None, tuple[Message, ...]]:
    prompt = values.get("prompt") or None
    messages = tuple(
        Message(
            _choice(f"{place}.role", _given(f"{place}.role", turn["role"]), ROLES) or "",
            _given(f"{place}.content", turn["content"]),
        )
        for place, turn in _items(values, "messages")
    )
    if prompt is None and not messages:
        raise RowFailure("read", "null_prompt", "columns prompt and messages: both are empty; one of them must be given")
    if prompt is not None and messages:
        _bad("prompt", prompt, "must be null where messages are given")
    return prompt, messages


def _limits(values: Mapping[str, Any]) -> Limits:
    return Limits(
        cpu_s=_real("limits.cpu_s", values.get("cpu_s"), zero=False),
        wall_s=_real("limits.wall_s", values.get("wall_s"), zero=False),
        memory_mb=_whole("limits.memory_mb", values.get("memory_mb"), least=1),
    )


def _compare(values: Mapping[str, Any]) -> Compare:
    return Compare(
        mode=_choice("compare.mode", values.get("mode"), COMPARE_MODES) or "exact",
        abs_tol=_real("compare.abs_tol", values.get("abs_tol"), zero=True) or 0.0,
        rel_tol=_real("compare.rel_tol", values.get("rel_tol"), zero=True) or 0.0,
    )


def _language(value: str | None) -> str:
    language = (value or "python").strip().lower()
    return LANGUAGE_ALIASES.get(language, language)


def _items(values: Mapping[str, Any], column: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The structs of a list column, each with its place such as `messages[0]`."""
    items: Sequence[Mapping[str, Any] | None] = values.get(column) or ()
    for i, item in enumerate(items):
        yield f"{column}[{i}]", _given(f"{column}[{i}]", item)


def _given(place: str, value: Any) -> Any:
    if value is None:
        _bad(place, value, "must not be null")
    return value


def _choice(place: str, value: str | None, allowed: Collection[str]) -> str | None:
    if value is not None and value not in allowed:
        _bad(place, value, f"must be one of {', '.join(allowed)}")
    return value


def _whole(place: str, value: float | None, least: int) -> int | None:
    """A whole number. Floats count if they are whole: writers turn integer columns with nulls into floats."""
    if value is None:
        return None
    if not math.isfinite(value) or value != int(value) or value < least:
        _bad(place, value, f"must be a whole number of at least {least}")
    return int(value)


def _real(place: str, value: float | None, zero: bool) -> float | None:
    if value is None:
        return None
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        _bad(place, value, f"must be a finite number {'of at least' if zero else 'above'} 0")
    return float(value)


def _json(place: str, value: str | None) -> str | None:
    if value is not None:
        try:
            json.loads(value, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            _bad(place, value, f"must be JSON: {error}")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _bad(place: str, value: Any, rule: str) -> NoReturn:
    shown = "null" if value is None else reprlib.repr(value)
    raise RowFailure("read", "bad_value", f"column {place}: {rule}, not {shown}")
