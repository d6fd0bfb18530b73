"""What makes cheating harder where test and candidate share a process. Not a wall: such judgements say `beside`."""

import builtins
import collections
import datetime
import decimal
import fractions
import math
import random
import sys
import types
import unittest
from typing import Any

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, range})
_CONTAINERS = (list, tuple, set, frozenset, dict, collections.deque)
_MODULE_OF = vars(type)["__module__"].__get__  # a class can shadow the attribute, not this
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__")
_WATCHED = (builtins, math, random, unittest, unittest.TestCase, decimal, fractions, datetime, sys)
_FRAME_USERS = frozenset({"collections", "typing", "enum", "dataclasses", "warnings", "logging", "abc", "functools"})
_FRAME_READS = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_DENIED = frozenset(
    {
        "sys._current_frames",
        "sys._current_exceptions",
        "sys.settrace",
        "sys.setprofile",
        "gc.get_objects",
        "gc.get_referrers",
        "gc.get_referents",
    }
)


class Impostor(Exception):
    """An object of the candidate's own class stands where plain data was compared."""


def refuse_impostors(values: list[Any]) -> None:
    """Raises Impostor if plain data is compared with an object whose class the candidate wrote."""
    foreign = [_foreign(value) for value in values]
    if any(foreign) and not all(foreign):
        raise Impostor(f"plain data compared with an object of type {next(filter(None, foreign))}")


def _foreign(value: Any) -> str:
    """The name of a class of the candidate's own among the value and its parts; empty if there is none."""
    todo, seen = [value], set()
    while todo:
        item = todo.pop()
        kind = type(item)
        if kind in _PLAIN:
            continue
        if kind in _CONTAINERS:
            if id(item) not in seen:
                seen.add(id(item))
                todo += [part for pair in item.items() for part in pair] if kind is dict else item
        elif _written_by_candidate(kind):
            return kind.__name__
    return ""


def _written_by_candidate(kind: type) -> bool:
    """True if the class takes one of its comparisons from a class that no library holds under its own name."""
    for name in _COMPARISONS:
        home = next((base for base in type.mro(kind) if name in vars(base)), object)
        module = sys.modules.get(_MODULE_OF(home))
        if module is None or module.__name__ == "candidate" or getattr(module, home.__name__, None) is not home:
            return True
    return False


class Seal:
    """Remembers the parts that tests rely on, and forbids walking frames and the heap until lifted."""

    def __init__(self) -> None:
        self.builtins = dict(vars(builtins))
        self._before = [(owner, dict(vars(owner))) for owner in _WATCHED]
        active = [True]
        self._lift = active.clear
        sys.addaudithook(_hook(active))

    def lift(self) -> None:
        """The test is over; our own report reads frames."""
        self._lift()

    def broken(self) -> str:
        """The first watched part that was replaced; empty if none was."""
        for owner, before in self._before:
            now = vars(owner)
            for name, value in before.items():
                if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type) and now.get(name) is not value:
                    return f"{owner.__name__}.{name}"
        return ""


def _hook(active: list[bool]) -> Any:
    busy: list[bool] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if not active or busy:
            return
        if event == "sys._getframe":
            busy.append(True)
            caller = sys._getframe(1).f_globals.get("__name__", "")
            busy.clear()
            if caller.partition(".")[0] not in _FRAME_USERS:
                raise RuntimeError("frames are closed while tests run")
        elif event in _DENIED or (event == "object.__getattr__" and args[1] in _FRAME_READS):
            raise RuntimeError(f"{event} is closed while tests run")

    return hook
