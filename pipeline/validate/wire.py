"""The language between judge and candidate: plain data in frames. Nothing that is received can run.

A frame is a four-byte big-endian length and a JSON document. Values that JSON has (None, bool, float, str, int) stand
for themselves; others are a list whose head is a tag: `["l", ...]` list, `["t", ...]` tuple, `["d", k, v, ...]` dict.
An object that is no plain data travels as `["ref", n, type]`, a handle that its owner resolves.
"""

import collections
import datetime
import decimal
import fractions
import json
import socket
from collections.abc import Callable, Iterable
from typing import Any

MAX_FRAME = 16 << 20
_ARRAY_KINDS = "biufcU"  # of numpy: plain numbers and text
_BIG = 1 << 53  # larger ints travel in hexadecimal: decimal conversion is quadratic, and Python limits it


class WireError(Exception):
    """The other side broke the channel: closed it, or sent what is no frame of ours."""


class FrameTooLarge(WireError):
    """A frame over MAX_FRAME."""


class Channel:
    """Frames over a stream socket. Owns the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, message: object) -> None:
        """Raises FrameTooLarge, or OSError if the other side is gone."""
        data = json.dumps(message, separators=(",", ":")).encode()
        if len(data) > MAX_FRAME:
            raise FrameTooLarge(f"{len(data)} bytes")
        self._sock.sendall(len(data).to_bytes(4, "big") + data)

    def receive(self) -> Any:
        """Raises WireError."""
        size = int.from_bytes(self._exactly(4), "big")
        if size > MAX_FRAME:
            raise FrameTooLarge(f"{size} bytes")
        try:
            return json.loads(self._exactly(size))
        except (ValueError, RecursionError) as e:
            raise WireError(f"no JSON: {e}") from e

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                data = self._sock.recv(min(size - len(parts), 1 << 20))
            except OSError as e:
                raise WireError(str(e)) from e
            if not data:
                raise WireError("closed")
            parts += data
        return bytes(parts)

    def close(self) -> None:
        self._sock.close()


def encode(value: object, refer: Callable[[object], list[Any]]) -> Any:
    """`value` as JSON-ready data; subclasses of plain types travel as their base, without overridden methods.

    `refer` makes the handle of an object that is no plain data. Raises RecursionError for deep or cyclic data.
    """
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is str:
        return value
    if kind is int:
        return value if -_BIG < value < _BIG else ["i", hex(value)]  # type: ignore[operator, arg-type]
    if kind is list:
        return ["l", *[encode(v, refer) for v in value]]  # type: ignore[attr-defined]
    if kind is tuple:
        return ["t", *[encode(v, refer) for v in value]]  # type: ignore[attr-defined]
    for base, tag, parts in _ENCODERS:
        if isinstance(value, base):
            return [tag, *[encode(v, refer) for v in parts(value)]]
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and hasattr(value, "tolist"):
        listed = value.tolist()
        if kind.__name__ == "ndarray" and value.dtype.kind in _ARRAY_KINDS:
            return ["array", value.dtype.str, encode(listed, refer)]
        if kind.__name__ != "ndarray" and type(listed) is not kind:
            return encode(listed, refer)
    return refer(value)


def _pairs(value: dict[Any, Any]) -> Iterable[object]:
    return [part for item in dict.items(value) for part in item]


_Encoder = tuple[type, str, Callable[[Any], Iterable[object]]]
_ENCODERS: list[_Encoder] = [
    (bool, "b", lambda v: [bool(v)]),
    (int, "i", lambda v: [hex(int.__index__(v))]),
    (float, "f", lambda v: [float.__float__(v)]),
    (str, "s", lambda v: [str.__str__(v)]),
    (complex, "c", lambda v: [v.real, v.imag]),
    (bytes, "y", lambda v: [bytes.hex(v)]),
    (bytearray, "ba", lambda v: [bytearray.hex(v)]),
    (collections.Counter, "counter", _pairs),
    (collections.OrderedDict, "odict", _pairs),
    (dict, "d", _pairs),
    (list, "l", list.__iter__),
    (tuple, "t", tuple.__iter__),
    (set, "set", set.__iter__),
    (frozenset, "fset", frozenset.__iter__),
    (collections.deque, "deque", lambda v: [v.maxlen, *collections.deque.__iter__(v)]),
    (range, "range", lambda v: [v.start, v.stop, v.step]),
    (decimal.Decimal, "dec", lambda v: [decimal.Decimal.__str__(v)]),
    (fractions.Fraction, "frac", lambda v: [v.numerator, v.denominator]),
    (datetime.datetime, "datetime", lambda v: [v.isoformat()]),
    (datetime.date, "date", lambda v: [v.isoformat()]),
    (datetime.time, "time", lambda v: [v.isoformat()]),
    (datetime.timedelta, "delta", lambda v: [v.days, v.seconds, v.microseconds]),
]


def _array(parts: list[Any]) -> Any:
    import numpy as np

    kind = np.dtype(str(parts[0]))
    if kind.kind not in _ARRAY_KINDS:
        raise WireError(f"an array of {kind}")
    return np.array(parts[1], dtype=kind)


def _dict(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


_DECODERS: dict[str, Callable[[list[Any]], Any]] = {
    "b": lambda p: bool(p[0]),
    "i": lambda p: int(p[0], 16),
    "f": lambda p: float(p[0]),
    "s": lambda p: str(p[0]),
    "l": lambda p: p,
    "t": tuple,
    "c": lambda p: complex(*p),
    "y": lambda p: bytes.fromhex(p[0]),
    "ba": lambda p: bytearray.fromhex(p[0]),
    "counter": lambda p: collections.Counter(_dict(p)),
    "odict": lambda p: collections.OrderedDict(_dict(p)),
    "d": _dict,
    "set": set,
    "fset": frozenset,
    "deque": lambda p: collections.deque(p[1:], p[0]),
    "range": lambda p: range(*p),
    "dec": lambda p: decimal.Decimal(p[0]),
    "frac": lambda p: fractions.Fraction(*p),
    "datetime": lambda p: datetime.datetime.fromisoformat(p[0]),
    "date": lambda p: datetime.date.fromisoformat(p[0]),
    "time": lambda p: datetime.time.fromisoformat(p[0]),
    "array": _array,
    "delta": lambda p: datetime.timedelta(*p),
}


def decode(data: Any, resolve: Callable[[list[Any]], object]) -> Any:
    """The value that `encode` was given. `resolve` turns a handle into an object. Raises WireError for anything else."""
    if not isinstance(data, list):
        if isinstance(data, dict):
            raise WireError("an object where a value was due")
        return data
    try:
        tag, *parts = data
        if tag == "ref":
            return resolve(parts)
        return _DECODERS[tag]([decode(part, resolve) for part in parts])
    except WireError:
        raise
    except Exception as e:  # a bad tag, unhashable keys, numbers out of range: whatever an adversary sends
        raise WireError(f"bad value: {type(e).__name__}: {e}") from e
