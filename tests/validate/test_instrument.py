"""Which tests may run apart from the candidate, and how assertions are counted."""

import ast

import pytest
from codegen_batch.pipeline.validate.instrument import COUNTER, instrument, plan
from codegen_batch.pipeline.validate.tester import Counter

APART = {
    "asserts": "assert f(1) == 2",
    "check": "def check(candidate):\n    for x in range(3):\n        assert candidate(x) == x",
    "passed on": "def check(candidate):\n    assert list(map(candidate, [1])) == [1]",
    "None is": "assert f(1) is None",
    "helpers of the prompt": "assert f(helper(1)) == 2",
    "pure modules": "import math, random\nfrom copy import deepcopy\nassert math.isclose(f(deepcopy(1)), random.random())",
    "another function of the candidate": "assert g(f(1)) == 2",
}
BESIDE = {
    "candidate's class": ("assert isinstance(f(1), Thing)", "Thing as an object"),
    "identity": ("x = []\nassert f(x) is x", "identities"),
    "other modules": ("import sys\nassert f(1)", "imports sys"),
    "other modules, from": ("from unittest.mock import patch\nassert f(1)", "imports unittest.mock"),
    "seed": ("import random\nrandom.seed(1)\nassert f(1)", "seeds"),
    "eval": ("assert eval('f(1)')", "uses eval"),
    "await": ("async def g():\n    assert await f(1)", "asynchronous"),
}


@pytest.mark.parametrize("test", APART.values(), ids=APART.keys())
def test_runs_apart(test: str) -> None:
    assert plan(ast.parse(test), ast.parse("def helper(x): return x"), "f").beside == ""


@pytest.mark.parametrize(("test", "why"), BESIDE.values(), ids=BESIDE.keys())
def test_runs_beside(test: str, why: str) -> None:
    assert why in plan(ast.parse(test), None, "f").beside


def test_functions_taken_from_the_candidate() -> None:
    found = plan(ast.parse("assert f(len(g(1))) == helper(2)"), ast.parse("def helper(x): return x"), "f")
    assert found.functions == ("f", "g")
    assert found.asserts == 1


@pytest.mark.parametrize("guarded", [False, True], ids=["plain", "guarded"])
def test_assertions_are_counted_as_they_run(guarded: bool) -> None:
    counter = Counter()
    source = "for i in range(5):\n    assert 0 <= i < 9\nassert 1 in [1], 'no'\n"
    source += "try:\n    assert i != 4\nexcept AssertionError:\n    pass\n"
    exec(compile(instrument(ast.parse(source), guarded), "t", "exec"), {COUNTER: counter})
    assert (counter.run, counter.passed) == (7, 6)


@pytest.mark.parametrize("expression", ["1 < 2 < 3", "1 < 3 < 2", "2 in [1] or 1 not in [1]", "1 < 2 != 0", "[1] == [1.0]"])
def test_guarded_comparisons_mean_what_python_means(expression: str) -> None:
    namespace = {COUNTER: Counter()}
    exec(compile(instrument(ast.parse(f"result = {expression}"), True), "t", "exec"), namespace)
    assert namespace["result"] == eval(expression)
