"""Reads a task's test: may it run apart from the candidate, and how do we count what it asserts?"""

import ast
import builtins
from dataclasses import dataclass

TEST_FILE = "test.py"  # as tracebacks name it
COUNTER = "__codegen_batch_tests__"  # the object that instrumented tests report to; see tester.py
_PURE_MODULES = frozenset(
    (
        *("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "hashlib", "heapq"),
        *("itertools", "json", "math", "numpy", "operator", "random", "re", "statistics", "string", "typing"),
    )
)
_NEEDS_ONE_PROCESS = frozenset(
    ["eval", "exec", "globals", "locals", "vars", "open", "id", "__import__", "input", "setattr", "delattr"]
)


@dataclass(frozen=True, slots=True)
class TestPlan:
    """What a test needs. Filled by `plan`."""

    asserts: int  # assertions in its text
    functions: tuple[str, ...]  # names that it takes from the candidate
    beside: str  # why it must run in the candidate's process; empty if it need not


def bound_names(tree: ast.AST) -> set[str]:
    """Every name that some statement of `tree` binds, in whichever scope."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def plan(test: ast.Module, preamble: ast.Module | None, entry_point: str | None) -> TestPlan:
    """`preamble` is the code that the task's prompt gives before the entry point; tests may use what it defines."""
    bound = bound_names(test)
    known = bound | (bound_names(preamble) if preamble else set()) | set(dir(builtins))
    known -= {entry_point} - bound  # tasks ask for functions named `sum` or `max`
    called = {n.func for n in ast.walk(test) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    free = [n for n in ast.walk(test) if isinstance(n, ast.Name) and n.id not in known]
    objects = sorted({n.id for n in free if n not in called and n.id != entry_point})
    why = f"the test uses {objects[0]} as an object" if objects else ""
    for node in ast.walk(test):
        why = why or _ties(node)
    return TestPlan(sum(map(_is_assertion, ast.walk(test))), tuple(sorted({n.id for n in free})), why)


def _ties(node: ast.AST) -> str:
    """Why this piece of a test works only in the candidate's own process; empty if it works apart."""
    match node:
        case ast.Import(names=names):
            modules = [alias.name for alias in names]
        case ast.ImportFrom(module=str(module)):
            modules = [module]
        case ast.Name(id=name) if name in _NEEDS_ONE_PROCESS:
            return f"the test uses {name}"
        case ast.Attribute(attr="seed"):
            return "the test seeds a generator"
        case ast.Await() | ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith():
            return "the test is asynchronous"
        case ast.Compare(left=left, ops=ops, comparators=others) if any(isinstance(o, ast.Is | ast.IsNot) for o in ops):
            singletons = [o for o in (left, *others) if isinstance(o, ast.Constant) and o.value in (None, True, False)]
            return "" if singletons else "the test compares identities"
        case _:
            return ""
    foreign = [m for m in modules if m.partition(".")[0] not in _PURE_MODULES]
    return f"the test imports {foreign[0]}" if foreign else ""


def _is_assertion(node: ast.AST) -> bool:
    """An assert statement, or a call such as `np.testing.assert_allclose(...)` that stands alone."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))):
            return name.startswith("assert")
        case _:
            return isinstance(node, ast.Assert)


class _Counting(ast.NodeTransformer):
    """Brackets each assertion with reports to COUNTER; `guarded` also sends comparisons through it."""

    def __init__(self, guarded: bool) -> None:
        self.guarded = guarded

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        counted = _is_assertion(node)
        node = self.generic_visit(node)
        if self.guarded and isinstance(node, ast.Compare):
            operators = ast.List([ast.Constant(type(op).__name__) for op in node.ops], ast.Load())
            values = ast.List([node.left, *node.comparators], ast.Load())
            node = ast.copy_location(ast.Call(_report("compare"), [operators, values], []), node)
        if not counted:
            return node
        assert isinstance(node, ast.stmt)
        before, after = (ast.Expr(ast.Call(_report(name), [], [])) for name in ("begin", "end"))
        return [ast.copy_location(before, node), node, ast.copy_location(after, node)]


def _report(name: str) -> ast.Attribute:
    return ast.Attribute(ast.Name(COUNTER, ast.Load()), name, ast.Load())


def instrument(test: ast.Module, guarded: bool) -> ast.Module:
    """The test with its assertions counted. Changes `test`."""
    changed = _Counting(guarded).visit(test)
    assert isinstance(changed, ast.Module)
    return ast.fix_missing_locations(changed)
