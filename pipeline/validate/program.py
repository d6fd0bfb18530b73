"""Programs from parts: what a task's prompt and the other blocks of a completion add to the chosen code."""

import ast
import builtins
import functools
from dataclasses import dataclass

from ...schemas.records import Task
from .blocks import split
from .instrument import bound_names
from .syntax import parse


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that is itself the beginning of a program, as HumanEval's are."""

    text: str  # ends in the entry point's header and docstring
    preamble: str  # what stands before the entry point


@functools.lru_cache(maxsize=256)
def prompt_program(task: Task) -> Prompt | None:
    """The program that the task's prompt begins, if it begins one with the entry point's header."""
    texts = [task.prompt] if task.prompt else [m.content for m in task.messages if m.role == "user"][-1:]
    for text in texts:
        for piece in [text, *(b.text for b in split(text) if b.fenced)]:
            tree = parse(piece + "\n    pass\n")
            if isinstance(tree, str) or not tree.body or not task.entry_point:
                continue
            last = tree.body[-1]
            if isinstance(last, ast.FunctionDef | ast.AsyncFunctionDef) and last.name == task.entry_point:
                first = min([last.lineno, *(d.lineno for d in last.decorator_list)])
                return Prompt(piece, "".join(piece.splitlines(keepends=True)[: first - 1]))
    return None


@functools.lru_cache(maxsize=256)
def targets(task: Task) -> frozenset[str]:
    """Names that the program must define: the entry point, or what the test calls and nobody else defines."""
    if task.entry_point:
        return frozenset({task.entry_point})
    tree = parse(task.test or "")
    if isinstance(tree, str):
        return frozenset()
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    return frozenset(called - bound_names(tree) - set(dir(builtins)))


def binds(statement: ast.stmt) -> set[str]:
    """Names that a top-level statement binds at the top level."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case _:
            return bound_names(statement)


def join(code: str, others: list[str], wanted: frozenset[str], prompt: Prompt | None) -> str:
    """Puts before `code` the other blocks' definitions of names that it uses and does not have, the last one of each."""
    tree = parse(code)
    assert not isinstance(tree, str)
    have = bound_names(tree) | set(dir(builtins))
    if prompt and not isinstance(before := parse(prompt.preamble), str):
        have |= bound_names(before)
    homes: dict[str, tuple[int, ast.stmt, str]] = {}
    for number, other in enumerate(others):
        parsed = parse(other)
        for statement in [] if isinstance(parsed, str) else parsed.body:
            for name in binds(statement) - wanted:
                homes[name] = (number * 1_000_000 + statement.lineno, statement, other)
    taken: dict[int, str] = {}
    missing = _loads(tree) - have
    while missing:
        found = {homes[name][0]: homes[name] for name in missing if name in homes}
        new = {key: home for key, home in found.items() if key not in taken}
        taken |= {key: _source(other, statement) for key, (_, statement, other) in new.items()}
        have |= missing
        missing = {name for _, statement, _ in new.values() for name in _loads(statement)} - have
    return _after_future("\n".join(taken[key] for key in sorted(taken)), code)


def with_preamble(code: str, prompt: Prompt | None) -> str:
    """A whole function as the answer: the imports and helpers that the prompt gave go before it."""
    if prompt is None or prompt.preamble.strip() in code:
        return code
    return _after_future(prompt.preamble.rstrip("\n"), code)


def _loads(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _source(code: str, statement: ast.stmt) -> str:
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
    return "\n".join(code.split("\n")[first - 1 : statement.end_lineno])


def _after_future(first: str, code: str) -> str:
    """`first`, then `code`; statements `from __future__` stay on top."""
    if not first:
        return code
    tree = parse(code)
    body = [] if isinstance(tree, str) else tree.body
    future = [s for s in body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    lines = code.split("\n")
    top = "\n".join(f"from __future__ import {a.name}" for s in future for a in s.names)
    for statement in future:
        lines[statement.lineno - 1 : statement.end_lineno] = [""] * ((statement.end_lineno or 0) - statement.lineno + 1)
    return "\n".join(filter(None, [top, first, "\n".join(lines)]))
