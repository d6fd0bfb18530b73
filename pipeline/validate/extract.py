"""From a completion to the program that is judged.

Readings of a completion are tried in this order, and the first that parses and defines what the task asks for wins:
the whole text as a program; a fenced block (the last that defines the entry point, with what it lacks taken from the
other blocks); code between lines of prose; the continuation of the task's prompt. A program that parses is never
shortened. The number of parses is bounded, so the time is linear in the completion.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from ...schemas.records import Task
from .blocks import Block, before_special, clean, split, without_reasoning
from .program import Prompt, binds, join, prompt_program, targets, with_preamble
from .syntax import compile_error, compiled, parse

_TAGS = {"python": frozenset({"", "python", "py", "python3", "py3", "pycon", "ipython", "python2"})}
_CODE_LINE = re.compile(r"^(?:import\s|from\s+\S+\s+import\s|def\s|async\s+def\s|class\s|@\w)")
_MAX_PREFIX_TRIES = 8
_MAX_REGIONS = 24


@dataclass(frozen=True, slots=True)
class Extracted:
    """The program, and how it was found."""

    code: str | None  # the whole program, the prompt's preamble included; None where nothing looks like code
    method: str  # whole, fence, fence_cut, prose_cut, body, body_reindented, fallback, none
    alternatives: int  # pieces that define the entry point


def extract(completion: str, task: Task) -> Extracted:
    """Finds the program in a completion. Never raises for what a completion may hold."""
    text = clean(completion)
    if task.language != "python":
        return _other_language(without_reasoning(text), task.language)
    wanted, prompt = targets(task), prompt_program(task)
    answer = text if _defined(text, wanted) else without_reasoning(text)
    blocks = split(answer)
    for reading in (_whole, _fenced, _between_prose, _continuation):
        found = reading(answer, blocks, wanted, prompt)
        if found:
            return found
    return _fallback(answer, blocks, wanted, prompt)


def _defined(code: str, wanted: frozenset[str]) -> bool:
    """True if the code parses and its top level binds a wanted name; with nothing wanted, if it does anything."""
    tree = parse(code)
    if isinstance(tree, str):
        return False
    if not wanted:
        return any(not isinstance(s, ast.Expr) or isinstance(s.value, ast.Call) for s in tree.body)
    return any(wanted & binds(statement) for statement in tree.body)


def _whole(text: str, blocks: list[Block], wanted: frozenset[str], prompt: Prompt | None) -> Extracted | None:
    for reading in (text, textwrap.dedent(text)):
        if _defined(reading, wanted):
            return Extracted(with_preamble(reading, prompt), "whole", 1)
    return None


def _fenced(text: str, blocks: list[Block], wanted: frozenset[str], prompt: Prompt | None) -> Extracted | None:
    fenced = [b for b in blocks if b.fenced and b.tag in _TAGS["python"]] or [b for b in blocks if b.fenced]
    return _last_that_defines(fenced, wanted, prompt, "fence") or _outermost_fence(text, wanted, prompt)


def _outermost_fence(text: str, wanted: frozenset[str], prompt: Prompt | None) -> Extracted | None:
    """From the first fence to the last: a docstring that shows Markdown has fences of its own."""
    first, last = re.search(r"^[ \t]*(?:```|~~~).*\n", text, re.M), text.rfind("\n```")
    code = textwrap.dedent(text[first.end() : last + 1]) if first else ""
    return Extracted(with_preamble(code, prompt), "fence", 1) if _defined(code, wanted) else None


def _between_prose(text: str, blocks: list[Block], wanted: frozenset[str], prompt: Prompt | None) -> Extracted | None:
    regions = [Block(r, "", fenced=True) for b in blocks if not b.fenced for r in _regions(b.text)]
    return _last_that_defines(regions, wanted, prompt, "prose_cut")


def _last_that_defines(blocks: list[Block], wanted: frozenset[str], prompt: Prompt | None, method: str) -> Extracted | None:
    """The last block that defines a wanted name, joined with what other blocks define and it lacks."""
    readings = []
    for block in blocks:
        code = textwrap.dedent(block.text)
        cut = code if block.closed or not isinstance(parse(code), str) else _parsing_prefix(code)
        readings.append((cut, cut != code, _defined(cut, wanted)))
    defining = [i for i, (_, _, defines) in enumerate(readings) if defines]
    if not defining:
        return None
    chosen = defining[-1]
    code, was_cut, _ = readings[chosen]
    others = [c for i, (c, _, _) in enumerate(readings) if i != chosen]
    joined = join(code, others, wanted, prompt)
    return Extracted(with_preamble(joined, prompt), f"{method}_cut" if was_cut else method, len(defining))


def _regions(text: str) -> list[str]:
    """Stretches of lines that parse, each beginning where a line looks like code."""
    lines = text.split("\n")
    found: list[str] = []
    at = 0
    tries = 0
    while at < len(lines) and tries < _MAX_REGIONS:
        if not _CODE_LINE.match(lines[at]):
            at += 1
            continue
        tries += 1
        prefix = _parsing_prefix("\n".join(lines[at:]))
        if prefix:
            found.append(prefix)
        at += max(1, prefix.count("\n") + 1)
    return found


def _parsing_prefix(code: str) -> str:
    """The code up to the first line that does not parse, at a statement's end; empty if there is none.

    The compiler names the line of the error, so each try cuts there, or, where that leaves a statement open, before
    the last line that is not indented.
    """
    lines = code.split("\n")
    for _ in range(_MAX_PREFIX_TRIES):
        result = parse("\n".join(lines))
        if not isinstance(result, str):
            return "\n".join(lines).rstrip() if result.body else ""
        line = min(int(result.partition(":")[0]), len(lines))
        rest = lines[: line - 1]
        while rest and not rest[-1].strip():
            rest.pop()
        if len(rest) == len(lines) or not isinstance(parse("\n".join(rest)), str):
            lines = rest
            continue
        flush = [i for i, text in enumerate(rest) if text[:1].strip() and not text.startswith((")", "]", "}"))]
        lines = rest[: _header_start(rest, flush[-1])] if flush else []
    return ""


def _header_start(lines: list[str], at: int) -> int:
    """The first of the decorators that belong to the statement at line index `at`."""
    while at > 0 and lines[at - 1].startswith("@"):
        at -= 1
    return at


def _continuation(text: str, blocks: list[Block], wanted: frozenset[str], prompt: Prompt | None) -> Extracted | None:
    """The completion as the rest of the entry point's body."""
    if prompt is None:
        return None
    fenced = [b.text for b in blocks if b.fenced]
    bare = [b.text for b in blocks if not b.fenced][:1] if not blocks or not blocks[0].fenced else []
    for piece in [text, *bare, *fenced]:
        for method, body in _indentations(piece):
            program = f"{prompt.text.rstrip(' ')}{_gap(prompt.text)}{body}"
            if _extends(program, prompt):
                return Extracted(program, method, 1)
    for piece in [*bare, *fenced]:
        for _, body in _indentations(piece):
            program = _parsing_prefix(f"{prompt.text.rstrip(' ')}{_gap(prompt.text)}{body}")
            if program and _extends(program, prompt):
                return Extracted(program, "body_cut", 1)
    return None


def _gap(text: str) -> str:
    return "" if text.rstrip(" ").endswith("\n") else "\n"


def _extends(program: str, prompt: Prompt) -> bool:
    """True if the program compiles and gives the prompt's last function statements beyond its docstring."""
    tree, stub = parse(program), parse(prompt.text + "\n    pass\n")
    assert not isinstance(stub, str)
    if isinstance(tree, str) or isinstance(compiled(program), str) or len(tree.body) < len(stub.body):
        return False
    function = tree.body[len(stub.body) - 1]
    own = stub.body[-1]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    assert isinstance(own, ast.FunctionDef | ast.AsyncFunctionDef)
    return len(function.body) >= len(own.body)


def _indentations(text: str) -> Iterator[tuple[str, str]]:
    """The body as it stands, then with its first line, or all lines, moved to a body's four spaces."""
    lines = text.split("\n")
    begin = next((i for i, line in enumerate(lines) if line.strip()), None)
    if begin is None:
        return
    lines = lines[begin:]
    body = "\n".join(lines)
    yield "body", body
    first = lines[0].lstrip()
    rest = [line for line in lines[1:] if line.strip()]
    if lines[0] == first and rest and rest[0] == rest[0].lstrip():
        yield "body_reindented", textwrap.indent(body, "    ")
    inner = min((len(r) - len(r.lstrip()) for r in rest if r[:1] in " \t"), default=4)
    for width in dict.fromkeys((4, inner)):
        yield "body_reindented", "\n".join([" " * width + first, *lines[1:]])
    yield "body_reindented", textwrap.indent(textwrap.dedent(body), "    ")
    yield "body_reindented", textwrap.indent(textwrap.dedent("\n".join([first, *lines[1:]])), "    ")


def _fallback(text: str, blocks: list[Block], wanted: frozenset[str], prompt: Prompt | None) -> Extracted:
    """Nothing parses and defines the entry point: the likeliest code, to be named a syntax error or to fail."""
    cut = before_special(text)
    if cut != text:
        inner = split(cut)
        for reading in (_whole, _fenced, _between_prose, _continuation):
            if found := reading(cut, inner, wanted, prompt):
                return found
    fenced = [b.text for b in blocks if b.fenced and b.tag in _TAGS["python"]]
    header = re.compile(
        rf"^[ \t]*(?:async\s+)?def\s+(?:{'|'.join(map(re.escape, sorted(wanted)))})\b" if wanted else r"^def\s", re.M
    )
    if defining := [b for b in fenced if header.search(b)]:
        return Extracted(with_preamble(textwrap.dedent(defining[-1]), prompt), "fallback", len(defining))
    if fenced:
        return Extracted(with_preamble(textwrap.dedent(fenced[-1]), prompt), "fallback", 0)
    if begins := header.search(text):
        return Extracted(with_preamble(text[begins.start() :].lstrip("\n"), prompt), "fallback", 1)
    first = next((line for line in text.split("\n") if line.strip()), "")
    if prompt and first[:1] in (" ", "\t"):
        return Extracted(f"{prompt.text}{_gap(prompt.text)}{text}", "fallback", 0)
    if regions := _regions(text):
        return Extracted("\n".join(regions), "fallback", 0)
    if first and compile_error(text) is None and prompt is None and _defined(text, frozenset()):
        return Extracted(text, "fallback", 0)
    return Extracted(None, "none", 0)


def _other_language(text: str, language: str) -> Extracted:
    """The last block with the language's tag, else the last block, else the text."""
    fenced = [b for b in split(text) if b.fenced]
    tagged = [b for b in fenced if b.tag == language.lower()] or fenced
    if tagged:
        return Extracted(tagged[-1].text, "fence", len(tagged))
    return Extracted(text, "whole", 1) if text.strip() else Extracted(None, "none", 0)
