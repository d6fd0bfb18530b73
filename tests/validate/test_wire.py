"""The plain-data language between judge and candidate."""

import collections
import datetime
import decimal
import enum
import fractions
import json
import socket
from typing import Any

import pytest
from codegen_batch.pipeline.validate.wire import MAX_FRAME, Channel, FrameTooLarge, WireError, decode, encode
from hypothesis import given
from hypothesis import strategies as st

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
plain = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner) | st.sets(keys) | st.frozensets(keys)
    ),
    max_leaves=20,
)


def no_handles(value: object) -> list[Any]:
    raise AssertionError(f"{value!r} is plain data")


def there_and_back(value: object) -> Any:
    return decode(json.loads(json.dumps(encode(value, no_handles))), no_handles)


def shape(value: Any) -> Any:
    """Types all the way down, since 1 == True == 1.0."""
    if isinstance(value, dict):
        return dict, [(shape(k), shape(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [shape(v) for v in value]
    return type(value), repr(value) if isinstance(value, float) else None


@given(plain)
def test_plain_data_crosses_unchanged(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    assert shape(back) == shape(value)


RICH = [
    collections.Counter("abca"),
    collections.OrderedDict(b=1, a=2),
    collections.deque([1, 2], maxlen=3),
    decimal.Decimal("1.10"),
    fractions.Fraction(1, 3),
    datetime.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
    datetime.date(2024, 1, 2),
    datetime.time(1, 2),
    datetime.timedelta(days=1, microseconds=3),
    range(1, 9, 2),
    bytearray(b"x"),
    10**6000,
    -0.0,
    "\ud800",
]


@pytest.mark.parametrize("value", RICH, ids=lambda v: type(v).__name__)
def test_library_types_cross_as_themselves(value: object) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


class Colour(enum.IntEnum):
    RED = 1


class Liar(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


@pytest.mark.parametrize(
    ("value", "back"), [(Colour.RED, 1), (Liar("x"), "x"), ([Liar("x")], ["x"])], ids=["IntEnum", "str", "nested"]
)
def test_subclasses_lose_their_methods(value: object, back: object) -> None:
    found = there_and_back(value)
    assert found == back
    assert type(found) is type(back)


def test_other_objects_become_handles() -> None:
    thing = object()
    assert encode([thing], lambda value: ["ref", 7, "object"]) == ["l", ["ref", 7, "object"]]
    assert decode(["t", ["ref", 7, "object"]], lambda parts: parts) == ([7, "object"],)


def test_cycles_and_depth_end_in_an_error() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(RecursionError):
        encode(cycle, no_handles)


BAD = {
    "object": {"__class__": "int"},
    "unknown tag": ["os.system", "true"],
    "no tag": [],
    "tag that is no text": [["l"], 1],
    "bad number": ["i", "zz"],
    "odd dict": ["d", 1],
    "unhashable key": ["d", ["l"], 1],
    "unhashable member": ["set", ["l"]],
    "bad date": ["date", "yesterday"],
    "huge exponent": ["frac", 1, 0],
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_what_is_no_data_is_refused(data: object) -> None:
    with pytest.raises(WireError):
        decode(data, no_handles)


def test_frames() -> None:
    ours, theirs = (Channel(s) for s in socket.socketpair())
    ours.send({"a": [1, "é"]})
    assert theirs.receive() == {"a": [1, "é"]}
    with pytest.raises(FrameTooLarge):
        ours.send("x" * (MAX_FRAME + 1))
    ours.close()
    with pytest.raises(WireError, match="closed"):
        theirs.receive()
    theirs.close()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\xff\xff\xff\xff", FrameTooLarge),
        (b"\0\0\0\x02{]", WireError),
        (b"\0\0\0\x09{", WireError),
        (b"\0\0\0\x02\xff\xfe", WireError),
    ],
    ids=["too large", "no JSON", "cut short", "no UTF-8"],
)
def test_bad_frames(data: bytes, error: type[WireError]) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(data)
    ours.close()
    channel = Channel(theirs)
    with pytest.raises(error):
        channel.receive()
    channel.close()
