"""How much memory the cache may take, and which number type this processor multiplies fast."""

import re
from pathlib import Path

from ...kernels.layout import KvLayout
from ...schemas.errors import EnvironmentFailure, Problem
from ...schemas.job import Batching, KvCache
from .control_groups import memory_bytes
from .model_config import ModelConfig

SHARE = 0.4  # of what is free, for the cache, where the job says auto
CONTEXTS = 2  # full contexts a slot that the cache is sized for at most: one running, one kept for its prefix
UNITS = {"MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}


def parse_bytes(text: str) -> int:
    """Bytes in `2GiB`, `512 MB` and the like. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([MG]i?B)\s*", text)
    if not match:
        raise ValueError(f"{text!r} is no amount of memory; write it like 2GiB or 512MiB")
    return int(float(match[1]) * UNITS[match[2]])


def cache_size(config: ModelConfig, batching: Batching, cache: KvCache, max_context: int) -> tuple[KvLayout, int, int]:
    """The cache's layout, its sealed pages and its raw pages. Raises EnvironmentFailure where kv_cache.memory is too little."""
    size, width = cache.page_size, batching.max_sequences
    layout = KvLayout(config.layers, config.kv_heads, config.head_dim, size, cache.dtype)
    # A running sequence and a kept prompt hold one raw page each; a chunk touches one more at either end.
    raw = 4 * width + batching.max_batch_tokens // size
    sealed = cache_pages(
        cache.memory,
        layout.sealed_page_bytes,
        fixed_bytes=raw * layout.raw_page_bytes,
        least=1,
        most=CONTEXTS * width * -(-max_context // size),
    )
    return layout, sealed, raw


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
