"""Facts about code, sound or broken, and errors that never escape."""

import pytest
from codegen_batch.pipeline.validate.syntax import compile_error, facts

CODE = """\
from __future__ import annotations
import os.path, numpy as np
from typing import List
from . import sibling

class Tree:
    def __init__(self):
        def inner():
            pass

    class Node:
        pass

async def walk(tree):
    for node in tree:
        if node:
            while True:
                break
"""


def test_facts() -> None:
    found = facts(CODE)
    assert found.syntax_ok
    assert found.functions == ("Tree.__init__", "Tree.__init__.inner", "walk")
    assert found.classes == ("Tree", "Tree.Node")
    assert set(found.imports) == {"__future__", "os.path", "numpy", "typing", "."}
    assert found.max_nesting == 4


def test_flat_code_has_no_nesting() -> None:
    assert facts("x = 1\n").max_nesting == 0


BROKEN = {
    "missing bracket": ("def f(x):\n    return (x\n", "2:12:"),
    "prose": ("This is some prose\n", "1:14:"),
    "bad indentation": ("def f():\n    a = 1\n  b = 2\n", "3:"),
    "tabs and spaces": ("if x:\n        a\n\tb\n", "3:"),
    "return outside": ("x = 1\nreturn x\n", "2:1:"),
    "break outside": ("break\n", "1:1:"),
    "unterminated string": ("x = 'a\n", "1:5:"),
    "NUL": ("x = 1\0\n", "1:1:"),
    "lone surrogate": ("x = 1\ny = '\ud800'\n", "2:6:"),
    "python 2": ("print 'x'\n", "1:1:"),
    "deep brackets": ("(" * 100_000, "1:"),
    "deep operators": ("x = " + "-" * 100_000 + "1", "1:1:"),
    "deep attributes": ("x" + ".a" * 200_000, "1:1:"),
    "deep blocks": ("".join(" " * i + "if x:\n" for i in range(200)) + " " * 200 + "pass\n", "101:"),
}


@pytest.mark.parametrize(("code", "where"), BROKEN.values(), ids=BROKEN.keys())
def test_errors_say_where(code: str, where: str) -> None:
    found = facts(code)
    assert not found.syntax_ok
    assert found.syntax_error is not None
    assert found.syntax_error.startswith(where), found.syntax_error


def test_facts_of_broken_code() -> None:
    assert facts("import os\ndef f():\n    return 1\ndef g(:\n").functions[:1] == ("f",)


@pytest.mark.filterwarnings("error")
def test_warnings_stay_inside() -> None:
    assert compile_error("x = '\\d'\nassert (x, 'y')\nx is 1\n") is None


@pytest.mark.parametrize(
    "code", ["", "\n", "x" * 1_000_000, "x = [" + "1, " * 200_000 + "]"], ids=["empty", "blank", "long name", "long list"]
)
def test_large_and_small_input(code: str) -> None:
    assert facts(code).syntax_ok


def test_a_language_without_a_grammar_gets_no_facts() -> None:
    found = facts("fn main() {}", "rust")
    assert (found.code, found.syntax_ok, found.syntax_error) == ("fn main() {}", False, None)
