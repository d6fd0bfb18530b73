"""How much memory the cache may take, and which number type this processor multiplies fast."""

import re
from pathlib import Path

from ...schemas.errors import EnvironmentFailure, Problem
from .control_groups import memory_bytes

SHARE = 0.4  # of what is free, for the cache, where the job says auto
UNITS = {"MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}


def parse_bytes(text: str) -> int:
    """Bytes in `2GiB`, `512 MB` and the like. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([MG]i?B)\s*", text)
    if not match:
        raise ValueError(f"{text!r} is no amount of memory; write it like 2GiB or 512MiB")
    return int(float(match[1]) * UNITS[match[2]])


def cache_pages(memory: str, page_bytes: int, fixed_bytes: int, least: int, most: int) -> int:
    """Sealed pages for kv_cache.memory: as many as fit beside `fixed_bytes`, between `least` and `most`.

    Raises EnvironmentFailure if not even `least` fit: a single sequence could not run.
    """
    budget = int(memory_bytes()[1] * SHARE) if memory == "auto" else parse_bytes(memory)
    pages = min((budget - fixed_bytes) // page_bytes, most)
    if pages < least:
        need = fixed_bytes + least * page_bytes
        hint = f"it needs {need / 2**20:.0f} MiB: raise kv_cache.memory, or lower batching.max_sequences or model.max_context"
        raise EnvironmentFailure(Problem("kv_cache.memory", f"{budget / 2**20:.0f} MiB is too little", hint))
    return pages


def fast_dtype() -> str:
    """bfloat16 where the processor has instructions for it, else float32."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text() if cpuinfo.exists() else ""
    return "bfloat16" if re.search(r"\b(avx512_bf16|amx_bf16)\b", flags) else "float32"
