"""The doctor, on this machine and on descriptions of others."""

import io
import json
import subprocess
import sys
import time

import pytest
from codegen_batch.pipeline.doctor import (
    Check,
    cpu_features,
    diagnose,
    doctor_json,
    print_doctor,
    torch_build,
)
from rich.console import Console


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    return diagnose()


@pytest.mark.parametrize(
    "name", ["python", "packages", "torch build", "processor", "instructions", "memory", "disk", "sandbox", "models"]
)
def test_everything_is_looked_at(checks: list[Check], name: str) -> None:
    found = [check for check in checks if check.name == name]
    assert found
    assert all(check.detail and "cannot be found out" not in check.detail for check in found)


def test_gpus_or_their_absence_are_stated(checks: list[Check]) -> None:
    assert any(check.name.startswith("gpu") and check.detail for check in checks)


def test_it_is_quick_and_leaves_torch_alone() -> None:
    code = "import sys; from codegen_batch.pipeline.doctor import diagnose; diagnose(); sys.exit('torch' in sys.modules)"
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert time.monotonic() - start < 10  # 1 s on a free machine


def test_the_torch_build_is_the_one_that_torch_reports() -> None:
    torch_version = pytest.importorskip("torch").version
    assert torch_build() == (torch_version.cuda, torch_version.hip)


def test_printed_lines_are_plain_and_hints_stand_below(checks: list[Check]) -> None:
    file = io.StringIO()
    print_doctor([Check("disk", "warn", "1 B free [of 2]", "clean up"), *checks], Console(file=file, width=40))
    lines = file.getvalue().splitlines()
    assert lines[:2] == ["warn disk         1 B free [of 2]", " " * 18 + "clean up"]
    assert len(lines) == 2 + sum(1 + bool(check.hint) for check in checks)


@pytest.mark.parametrize(("outcome", "ok"), [("ok", True), ("warn", True), ("fail", False)])
def test_json_is_ok_unless_a_check_failed(outcome: str, ok: bool) -> None:
    content = json.loads(json.dumps(doctor_json([Check("a", outcome, "b")])))  # type: ignore[arg-type]
    assert content == {"ok": ok, "checks": [{"name": "a", "outcome": outcome, "detail": "b", "hint": ""}]}


@pytest.mark.parametrize(
    ("cpuinfo", "model", "features"),
    [
        (
            "processor\t: 0\nmodel name\t: A B\nflags\t\t: avx2 amx_bf16\nvmx flags\t: x\n\nprocessor\t: 1\n",
            "A B",
            {"avx2", "amx_bf16"},
        ),
        ("processor\t: 0\nFeatures\t: asimd sve\nCPU part\t: 0xd40\n\n", None, {"asimd", "sve"}),
        ("", None, set()),
    ],
    ids=["x86", "arm", "unknown"],
)
def test_processor_features(cpuinfo: str, model: str | None, features: set[str]) -> None:
    assert cpu_features(cpuinfo) == (model, frozenset(features))
