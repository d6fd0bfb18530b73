"""The tree's rules: what may stand at the top, who may import whom, and how long a file may be."""

import ast
import fnmatch
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "codegen_batch"
TOP_LEVEL = {
    "pyproject.toml", "README.md", "pipeline", "kernels", "jobs", "schemas", "tests", "data", "Makefile",
    "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "__init__.py",
}  # fmt: skip
MAY_IMPORT = {  # house: houses of ours that it may import, besides itself
    "schemas": set[str](),
    "kernels": set[str](),
    "pipeline": {"schemas", "kernels", "pipeline.engine", "pipeline.validate"},
    "pipeline.engine": {"schemas", "kernels"},
    "pipeline.validate": {"schemas"},
}
KERNELS_MAY_IMPORT = {"torch", "triton", "numba", "llvmlite", "numpy", *sys.stdlib_module_names}
LINES = 300
SOURCES = sorted(path.relative_to(ROOT) for house in ("schemas", "kernels", "pipeline") for path in (ROOT / house).rglob("*.py"))


def house_of(module: str) -> str:
    """The house that a module of ours is in; `pipeline` for the rooms right in it."""
    first, _, rest = module.partition(".")
    inner = f"{first}.{rest.partition('.')[0]}"
    return inner if inner in MAY_IMPORT else first


def imports(file: Path, source: str) -> Iterator[tuple[int, str]]:
    """Every import as (line, absolute module); modules of ours begin with a dot, such as `.schemas.records`."""
    package = list(file.parent.parts)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            full = [*base, *(node.module.split(".") if node.module else [])]
            # `from ..schemas import x` imports from a house, `from .. import x` imports the house x itself
            yield from ((node.lineno, "." + ".".join([*full, alias.name])) for alias in node.names)


def broken_rules(file: Path, source: str) -> list[str]:
    """The import rules that a file breaks, each with its line. `file` is relative to the root."""
    own = house_of(".".join(file.with_suffix("").parts))
    broken = []
    for line, module in imports(file, source):
        top = module.partition(".")[0]
        if module == ".__version__":
            continue
        if module.startswith("."):
            target = house_of(module[1:])
            if target != own and target not in MAY_IMPORT[own]:
                broken.append(f"{line}: {own} may not import {target}")
        elif top == PACKAGE:
            broken.append(f"{line}: inside the package, import by dots")
        elif top in ("kernels", "pipeline", "schemas"):
            broken.append(f"{line}: `{top}` at the top is not ours")
        elif own == "kernels" and top not in KERNELS_MAY_IMPORT:
            broken.append(f"{line}: kernels may not import {top}")
    return broken


@pytest.mark.parametrize("file", SOURCES, ids=str)
def test_a_file_imports_only_what_its_house_may(file: Path) -> None:
    assert broken_rules(file, (ROOT / file).read_text()) == []


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("schemas/records.py", "from ..pipeline.config import load_job", "1: schemas may not import pipeline"),
        ("schemas/records.py", "import yaml\nfrom .. import kernels", "2: schemas may not import kernels"),
        ("kernels/ops.py", "from ..schemas import records", "1: kernels may not import schemas"),
        ("kernels/ops.py", "def f():\n    import pandas", "2: kernels may not import pandas"),
        ("kernels/cpu/attention.py", "from ...pipeline import run", "1: kernels may not import pipeline"),
        ("pipeline/validate/judge.py", "from ..engine import sampler", "1: pipeline.validate may not import pipeline.engine"),
        ("pipeline/validate/judge.py", "from .. import engine", "1: pipeline.validate may not import pipeline.engine"),
        ("pipeline/validate/judge.py", "from ..config import load_job", "1: pipeline.validate may not import pipeline"),
        ("pipeline/validate/judge.py", "from ...kernels import ops", "1: pipeline.validate may not import kernels"),
        ("pipeline/engine/a.py", "if X:\n    from ..validate.b import C", "2: pipeline.engine may not import pipeline.validate"),
        ("pipeline/engine/engine.py", "from ..store import RunFolder", "1: pipeline.engine may not import pipeline"),
        ("pipeline/run.py", "from codegen_batch.schemas import records", "1: inside the package, import by dots"),
        ("pipeline/run.py", "import kernels.ops", "1: `kernels` at the top is not ours"),
    ],
)
def test_the_rules_catch(file: str, source: str, expected: str) -> None:
    assert broken_rules(Path(file), source) == [expected]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("schemas/tables.py", "import pyarrow\nfrom .records import Task\nfrom . import errors"),
        ("kernels/ops.py", "import torch, numba.core\nfrom .naive import attention"),
        ("pipeline/run.py", "from .engine.engine import Engine\nfrom ..kernels import ops\nfrom .validate import judge"),
        ("pipeline/engine/engine.py", "from ...kernels import ops\nfrom ...schemas.job import Job\nfrom .pages import Pool"),
        ("pipeline/validate/judge.py", "from ...schemas.records import Verdict\nfrom .sandbox import run"),
    ],
    ids=["schemas", "kernels", "pipeline", "engine", "validate"],
)
def test_the_rules_allow(file: str, source: str) -> None:
    assert broken_rules(Path(file), source) == []


def test_nothing_else_stands_at_the_top() -> None:
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    names = [path.name for path in ROOT.iterdir() if not any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored)]
    assert [name for name in names if not name.startswith(".") and name not in TOP_LEVEL] == []


def test_kernels_is_no_package_of_its_own() -> None:
    assert not (ROOT / "kernels/__init__.py").exists(), "it would hide the other package of this name"


@pytest.mark.parametrize("file", SOURCES, ids=str)
def test_a_file_can_be_read_at_one_go(file: Path) -> None:
    assert len((ROOT / file).read_text().splitlines()) <= LINES
