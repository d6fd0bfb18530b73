"""A task's test, made ready once for all samples of the task."""

import ast
import base64
import functools
import marshal
import types
from dataclasses import dataclass
from typing import Any

from ...schemas.records import Task, Verdict
from .instrument import TEST_FILE, TestPlan, instrument, plan
from .program import prompt_program
from .syntax import parse
from .verdict import Finding


@dataclass(frozen=True, slots=True)
class Prepared:
    """A task's test, compiled for both ways to run it."""

    needs: TestPlan
    apart: dict[str, Any]
    beside: dict[str, Any]


@functools.lru_cache(maxsize=256)
def prepare(task: Task) -> Prepared | Finding:
    """Done once for all samples of a task. A finding where the task's test cannot be run."""
    test = parse(task.test or "")
    if isinstance(test, str):
        return Finding(Verdict.INFRA_ERROR, f"the task's test does not parse: {test}")
    if task.test_kind == "check" and not task.entry_point:
        return Finding(Verdict.INFRA_ERROR, "a test of kind check needs the task's entry_point")
    prompt = prompt_program(task)
    preamble = parse(prompt.preamble if prompt else "")
    assert isinstance(preamble, ast.Module)
    needs = plan(test, preamble, task.entry_point)
    checks = any(isinstance(s, ast.FunctionDef) and s.name == "check" for s in test.body)
    if not needs.asserts or (task.test_kind == "check" and not checks):
        what = "defines no check" if needs.asserts else "asserts nothing"
        return Finding(Verdict.NO_TESTS, f"the task's test {what}")
    try:
        plain, guarded = (_compile_test(task.test or "", guarded) for guarded in (False, True))
    except (SyntaxError, ValueError, RecursionError) as e:
        return Finding(Verdict.INFRA_ERROR, f"the task's test does not compile: {e}")
    job = {"test": task.test, "kind": task.test_kind, "entry_point": task.entry_point, "functions": needs.functions}
    before = packed(compile(preamble, "prompt.py", "exec", dont_inherit=True)) if preamble.body else ""
    return Prepared(needs, job | {"test_program": plain, "preamble": before}, job | {"test_program": guarded})


def _compile_test(source: str, guarded: bool) -> str:
    return packed(compile(instrument(ast.parse(source), guarded), TEST_FILE, "exec", dont_inherit=True))


def packed(program: types.CodeType | str) -> str:
    """What child.unpack takes."""
    assert isinstance(program, types.CodeType)
    return base64.b64encode(marshal.dumps(program)).decode()
