"""Runs a task's test, apart from the candidate or beside it, and reports what happened.

Apart, the candidate's functions are proxies: arguments and results cross as plain data (wire.py), so the candidate can
reach neither the test nor its own report, and no method of an object of its own ever runs here. Beside, candidate
and test share a process; what guards the report there (a token that arrives only after the test, comparisons
that refuse objects posing as plain data, an audit hook against walking frames) raises the price of cheating, no more.
"""

import linecache
import operator
import os
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn

from . import child, guard
from .instrument import COUNTER, TEST_FILE
from .remote import Abandoned, Remote, Session
from .wire import Channel


class Counter:
    """Counts assertions begun and assertions held."""

    def __init__(self) -> None:
        self.run = self.passed = 0

    def begin(self) -> None:
        self.run += 1

    def end(self) -> None:
        self.passed += 1

    def compare(self, operators: list[str], values: list[Any]) -> bool:
        """A comparison of a guarded test, left to right as Python does it."""
        guard.refuse_impostors(values)
        return all(_COMPARE[op](a, b) for op, a, b in zip(operators, values, values[1:], strict=False))


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda a, b: a in b,
    "NotIn": lambda a, b: a not in b,
}


def run_apart(job: Channel, call: Channel) -> NoReturn:
    """The role `tester`."""
    spec = job.receive()
    session, counter = Session(call), Counter()
    namespace: dict[str, Any] = {"__name__": "test", COUNTER: counter}
    try:
        if spec["preamble"]:
            exec(child.unpack(spec["preamble"]), namespace)
        for name in spec["functions"]:
            namespace[name] = Remote(session, name)
        session.loaded()
        candidate = Remote(session, spec["entry_point"])
        report = _run_test(spec, namespace, candidate)
    except BaseException as e:
        report = _failure(e)
    report = session.fatal or report
    if report["outcome"] == "assert" and session.last:
        report["detail"] += f"; the last call returned {session.last}"
    _finish(job, report | {"run": counter.run, "passed": counter.passed, "calls": session.calls})


def run_beside(job: Channel, call: Channel) -> NoReturn:
    """The role `beside`."""
    call.close()
    spec = job.receive()
    job.send({"start_cpu_ms": time.process_time() * 1000})
    pid, counter = os.getpid(), Counter()
    seal = guard.Seal()
    try:
        module = child.load(spec)
        own = {k: v for k, v in vars(module).items() if k not in seal.builtins or k == spec["entry_point"]}
        namespace = own | {"__builtins__": seal.builtins, "__name__": "test", COUNTER: counter}
        candidate = module.__dict__.get(spec["entry_point"])
        if spec["kind"] == "check" and candidate is None:
            missing = NameError(f"name {spec['entry_point']!r} is not defined by the candidate")
            report = {"outcome": "raised", **child.describe(missing)}
        else:
            report = _run_test(spec, namespace, candidate)
        if report["outcome"] == "done" and (broken := seal.broken()):
            report = {"outcome": "violation", "detail": f"replaced {broken}"}
    except SystemExit as e:
        report = {"outcome": "exited", "detail": f"exit status {child.exit_code(e)}"}
    except BaseException as e:
        seal.lift()
        report = _failure(e)
    if os.getpid() != pid:
        os._exit(0)
    seal.lift()
    child.flush()
    token = job.receive()["token"]
    _finish(job, report | {"run": counter.run, "passed": counter.passed, "token": token})


def _run_test(spec: dict[str, Any], namespace: dict[str, Any], candidate: object) -> dict[str, Any]:
    source = spec["test"]
    linecache.cache[TEST_FILE] = (len(source), None, source.splitlines(keepends=True), TEST_FILE)
    exec(child.unpack(spec["test_program"]), namespace)
    if spec["kind"] == "check":
        namespace["check"](candidate)
    return {"outcome": "done", "detail": ""}


def _failure(error: BaseException) -> dict[str, Any]:
    """Whose fault is it: a false assertion, an exception of the candidate's, or one of the test's own."""
    if isinstance(error, Abandoned):
        return {"outcome": "lost", "detail": ""}  # Session.fatal says more
    described = getattr(error, "described", None)
    if isinstance(described, dict):
        return {"outcome": "raised", **described}
    frames = [f for f, _ in _walk(error.__traceback__)]
    line = next((n for f, n in reversed(list(_walk(error.__traceback__))) if f == TEST_FILE), 0)
    where = f"line {line} of the test: {linecache.getline(TEST_FILE, line).strip()[:300]}" if line else "the test"
    if isinstance(error, guard.Impostor):
        return {"outcome": "assert", "detail": f"{where}; {error}"}
    if child.FILE in frames or not frames:
        return {"outcome": "raised", **child.describe(error)}
    if isinstance(error, AssertionError):
        return {"outcome": "assert", "detail": where}
    return {"outcome": "test_raised", "detail": f"{where}; {type(error).__name__}: {str(error)[:300]}"}


def _walk(trace: types.TracebackType | None) -> list[tuple[str, int]]:
    steps = []
    while trace:
        steps.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return steps


def _finish(job: Channel, report: dict[str, Any]) -> NoReturn:
    """Reports and ends at once, whatever threads the candidate left."""
    job.send(report)
    os._exit(0)
