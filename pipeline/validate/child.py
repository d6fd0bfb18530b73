"""What runs in a child of the warm parent after it is confined: the candidate's side of a judging.

Three roles. `candidate` loads the program and answers calls over a socket; it never holds a test. `tester` (tester.py)
runs the test against proxies of the candidate's functions. `beside` (tester.py) runs both in one process, for
tests that need the candidate's own objects.
"""

import base64
import builtins
import contextlib
import linecache
import marshal
import operator
import os
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

from .wire import Channel, FrameTooLarge, WireError, decode, encode

JOB_FD = 1020  # the job comes in, reports go out; out of the way of programs that close what they see
CALL_FD = 1021  # calls between tester and candidate
SETUP_FAILED = 97  # exit status of a child that could not be confined
FILE = "candidate.py"  # as tracebacks name it
MODULE = "candidate"

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, *args, **kwargs: target(*args, **kwargs),
    "getattr": getattr,
    "iter": iter,
    "next": next,
    "len": len,
    "getitem": operator.getitem,
    "contains": operator.contains,
    "str": str,
    "repr": repr,
    "bool": bool,
}


def start(role: Callable[[Channel, Channel], NoReturn]) -> NoReturn:
    """Takes up a role with the descriptors that the warm parent put in place."""
    sys.argv = [FILE]
    job, call = (Channel(socket.socket(fileno=fd)) for fd in (JOB_FD, CALL_FD))
    role(job, call)


def report_setup_failure(error: BaseException) -> None:
    """Tells the worker why this child never came to its job."""
    with contextlib.suppress(OSError):
        Channel(socket.socket(fileno=JOB_FD)).send({"setup_failed": f"{type(error).__name__}: {error}"})


def load(spec: dict[str, Any]) -> types.ModuleType:
    """Runs the program's top level as a module that is not `__main__`. Raises whatever it raises.

    `code` is the text, for tracebacks; `program` is what the worker compiled from it, marshalled, in base64.
    """
    code = spec["code"]
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    linecache.cache[FILE] = (len(code), None, code.splitlines(keepends=True), FILE)
    exec(unpack(spec["program"]), module.__dict__)
    return module


def unpack(program: str) -> types.CodeType:
    """A code object from the worker, which is trusted; the way back carries no code."""
    code = marshal.loads(base64.b64decode(program))
    assert isinstance(code, types.CodeType)
    return code


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: its name, those of its bases that are built in, its text and its last frames."""
    bases = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
    text, trace = "", ""
    with contextlib.suppress(BaseException):  # the class may be the candidate's, and so its __str__
        text = str(error)[:500]
        trace = "".join(traceback.format_exception(error, limit=-6))[-3000:]
    return {"type": str(type(error).__name__)[:100], "bases": bases, "text": text, "trace": trace}


def flush() -> None:
    """Hands buffered output to the pipes: the process is going to be killed."""
    for stream in {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}:
        with contextlib.suppress(BaseException):
            stream.flush()  # type: ignore[union-attr]


def exit_code(error: SystemExit) -> int:
    """What the shell would see of sys.exit's argument."""
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def serve(job: Channel, call: Channel) -> NoReturn:
    """The role `candidate`: loads the program, then answers calls until the judge ends the process."""
    spec = job.receive()
    job.send({"start_cpu_ms": time.process_time() * 1000})
    job.close()
    server = _Server(call)
    server.answer(0, lambda: server.load(spec))
    while True:
        try:
            request = call.receive()
        except WireError:
            os._exit(0)
        server.answer(request["id"], lambda: server.perform(request))  # noqa: B023 - called before the next round


class _Server:
    def __init__(self, call: Channel) -> None:
        self.channel = call
        self.pid = os.getpid()
        self.objects: list[object] = []
        self.names: dict[str, Any] = {}

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        self.names = load(spec).__dict__
        return {"value": None}

    def refer(self, value: object) -> list[Any]:
        """The handle by which the tester names an object that stays here."""
        self.objects.append(value)
        return ["ref", len(self.objects) - 1, type(value).__name__]

    def resolve(self, parts: list[Any]) -> object:
        return self.objects[parts[0]]

    def perform(self, request: dict[str, Any]) -> dict[str, Any]:
        sent = request["args"]
        args = [decode(a, self.resolve) for a in sent]
        kwargs = {name: decode(a, self.resolve) for name, a in request["kwargs"].items()}
        on = request["on"]
        if isinstance(on, str):
            if on not in self.names:
                raise NameError(f"name {on!r} is not defined by the candidate")
            target = self.names[on]
        else:
            target = self.resolve(on[1:])
        value = _OPERATIONS[request["op"]](target, *args, **kwargs)
        answer = {"value": encode(value, self.refer)}
        changed = [(i, after) for i, a in enumerate(args) if (after := self.mutated(a, sent[i])) is not None]
        return answer | {"changed": changed} if changed else answer

    def mutated(self, arg: object, sent: object) -> object | None:
        """The argument as it is now, if the call changed it."""
        if type(arg) not in (list, dict, set, bytearray):
            return None
        now = encode(arg, self.refer)
        return None if now == sent else now

    def answer(self, number: int, act: Callable[[], dict[str, Any]]) -> None:
        try:
            reply = act()
        except SystemExit as e:
            reply = {"exit": exit_code(e)}
        except BaseException as e:
            reply = {"raised": describe(e)}
        flush()
        if os.getpid() != self.pid:  # a fork of the candidate ran on into our loop
            os._exit(0)
        try:
            self.channel.send(reply | {"id": number})
        except FrameTooLarge as e:
            self.channel.send({"id": number, "too_large": str(e)})
