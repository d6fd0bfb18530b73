"""Syntax: does the code parse, and what does it hold? Python's own compiler says the first, tree-sitter the second."""

import ast
import functools
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...schemas.records import CodeFacts
from .child import FILE

if TYPE_CHECKING:
    from tree_sitter import Language, Node, QueryCursor

_T = TypeVar("_T")
MAX_BROKEN = 20_000  # characters; a grammar's recovery from errors can take quadratic time


def _python_grammar() -> "Language":
    import tree_sitter_python
    from tree_sitter import Language

    return Language(tree_sitter_python.language())


GRAMMARS: dict[str, Callable[[], "Language"]] = {"python": _python_grammar}
"""Language name → its tree-sitter grammar. A language joins with an entry here and one in QUERIES."""

QUERIES = {
    "python": """
        (function_definition name: (identifier) @function) @scope
        (class_definition name: (identifier) @class) @scope
        (import_statement name: (dotted_name) @import)
        (import_statement name: (aliased_import name: (dotted_name) @import))
        (import_from_statement module_name: (_) @import)
        (future_import_statement) @future
        (block) @block
    """,
}


def parse(code: str) -> ast.Module | str:
    """The syntax tree, or the error as `line:column: message`. Never raises, whatever the code is."""
    return _guarded(code, lambda: ast.parse(code))


@functools.lru_cache(maxsize=4)
def compiled(code: str) -> types.CodeType | str:
    """The compiled program, or the error as `line:column: message`. Never raises."""
    return _guarded(code, lambda: compile(code, FILE, "exec", dont_inherit=True))


def compile_error(code: str) -> str | None:
    """Why Python would not compile the code; None if it would. Never raises."""
    result = compiled(code)
    return result if isinstance(result, str) else None


def _guarded(code: str, act: Callable[[], _T]) -> _T | str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return act()
    except SyntaxError as e:
        return f"{e.lineno or 1}:{max(e.offset or 1, 1)}: {e.msg}"
    except UnicodeEncodeError as e:
        line = code.count("\n", 0, e.start) + 1
        return f"{line}:{e.start - code.rfind(chr(10), 0, e.start)}: a lone surrogate"
    except (RecursionError, MemoryError):
        return "1:1: nested too deeply for the compiler"
    except (ValueError, OverflowError) as e:
        return f"1:1: {e}"


@functools.cache
def _tools(language: str) -> tuple["Language", "QueryCursor"]:
    from tree_sitter import Query, QueryCursor

    grammar = GRAMMARS[language]()
    return grammar, QueryCursor(Query(grammar, QUERIES[language]))


def facts(code: str, language: str = "python") -> CodeFacts:
    """Facts about `code`, whether or not it parses. Fields of extract.py are left at their defaults, but for `code`.

    functions and classes are dotted paths in the order of the text; max_nesting is the depth of nested blocks,
    0 for a flat program. A language without a grammar gets neither facts nor a syntax error.
    """
    if language not in GRAMMARS:
        return CodeFacts(code=code, language=language)
    from tree_sitter import Parser

    error = compile_error(code) if language == "python" else None
    if error and len(code) > MAX_BROKEN:
        return CodeFacts(code=code, language=language, syntax_error=error)
    grammar, cursor = _tools(language)
    root = Parser(grammar).parse(code.encode("utf-8", "replace")).root_node
    found = cursor.captures(root)
    if language != "python" and root.has_error:
        error = _first_error(root)
    functions, classes = _dotted(found)
    imports = [_text(node) for node in found.get("import", [])] + ["__future__"] * bool(found.get("future"))
    return CodeFacts(
        code=code,
        language=language,
        syntax_ok=error is None,
        syntax_error=error,
        functions=functions,
        classes=classes,
        imports=tuple(dict.fromkeys(imports)),
        max_nesting=_nesting([(n.start_byte, n.end_byte) for n in found.get("block", [])]),
    )


def _text(node: "Node") -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _dotted(found: dict[str, list["Node"]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of functions and classes with those of the scopes around them."""
    names = {n.id for n in found.get("function", [])}
    headers = sorted([*found.get("function", []), *found.get("class", [])], key=lambda n: n.start_byte)
    scopes = sorted(found.get("scope", []), key=lambda n: (n.start_byte, -n.end_byte))
    functions: list[str] = []
    classes: list[str] = []
    around: list[tuple[int, str]] = []  # (end byte, dotted name)
    for header, scope in zip(headers, scopes, strict=False):
        while around and around[-1][0] <= scope.start_byte:
            around.pop()
        name = f"{around[-1][1]}.{_text(header)}" if around else _text(header)
        around.append((scope.end_byte, name))
        (functions if header.id in names else classes).append(name)
    return tuple(functions), tuple(classes)


def _nesting(spans: list[tuple[int, int]]) -> int:
    deepest = 0
    open_ends: list[int] = []
    for start, end in sorted(spans, key=lambda s: (s[0], -s[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        open_ends.append(end)
        deepest = max(deepest, len(open_ends))
    return deepest


def _first_error(root: "Node") -> str:
    """Where the tree first holds an error, without recursion."""
    node = root
    while True:
        inner = next((c for c in node.children if c.is_error or c.is_missing or c.has_error), None)
        if inner is None or node.is_error:
            row, column = node.start_point
            return f"{row + 1}:{column + 1}: syntax error"
        node = inner
