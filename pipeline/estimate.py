"""What a job needs of a machine: cache bytes and time, from the model's shape alone. Says what it assumes."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from ..kernels.layout import KvDtype, KvLayout
from ..schemas.job import Job
from .engine.control_groups import memory_bytes
from .engine.memory import SHARE, fast_dtype, parse_bytes
from .engine.model_config import ModelConfig

COMPLETION_SHARE = 0.5  # of max_new_tokens that completions are assumed to use
SLOWEST = 3.0  # a run takes up to so many times its matrix products: attention, sampling, and judges on the same cores
MEASURE_S = 0.15  # a rate
UNCACHED_BYTES = 64 << 20  # of weights that are gone through, so that no processor's cache holds them all


@dataclass(frozen=True, slots=True)
class KvNeed:
    """Cache bytes of a full batch of sequences that are all of one length."""

    of: str  # which length: p95, max
    tokens: int  # prompt and completion, a sequence
    sequences: int
    bytes_by_dtype: dict[str, int]
    job_dtype: str
    budget: int  # bytes that the cache may take

    @property
    def fits(self) -> bool:
        return self.bytes_by_dtype[self.job_dtype] <= self.budget


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """Seconds of generation, from products of the measured speed."""

    prefill_tokens: int
    decode_tokens: int
    prefill_flops: float  # a second, as measured here
    decode_flops: float
    low_s: float
    high_s: float


def weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of a model's matrices in memory; `dtype` as in a job."""
    body, head = matrix_sizes(config)
    return (body + head * (1 if config.tie_embeddings else 2)) * (4 if resolved(dtype) == "float32" else 2)


def resolved(dtype: str) -> str:
    """`auto` as what it means on this machine."""
    return fast_dtype() if dtype == "auto" else dtype


def matrix_sizes(config: ModelConfig) -> tuple[int, int]:
    """Parameters that a token is multiplied with: those of all layers, and those of the head."""
    attention = config.hidden_size * config.head_dim * 2 * (config.heads + config.kv_heads)
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.layers * (attention + mlp), config.vocab_size * config.hidden_size


def kv_needs(spec: Job, config: ModelConfig, lengths: Mapping[str, float], rows: int, context: int) -> tuple[KvNeed, ...]:
    """Cache bytes for prompts of each of the lengths, with completions as long as they may be."""
    cache = spec.kv_cache
    free = memory_bytes()[1] - weight_bytes(config, spec.model.dtype)
    budget = int(max(free, 0) * SHARE) if cache.memory == "auto" else parse_bytes(cache.memory)
    sequences = min(spec.batching.max_sequences, rows)
    needs = []
    for of, length in lengths.items():
        tokens = min(round(length) + spec.generation.max_new_tokens, context)
        dtypes: list[KvDtype] = ["int4", "bf16", *([cache.dtype] if cache.dtype == "float32" else [])]
        sizes: dict[str, int] = {dtype: sequences * kv_bytes(config, cache.page_size, dtype, tokens) for dtype in dtypes}
        needs.append(KvNeed(of, tokens, sequences, sizes, cache.dtype, budget))
    return tuple(needs)


def kv_bytes(config: ModelConfig, page_size: int, dtype: KvDtype, tokens: int) -> int:
    """Cache bytes of one sequence: sealed pages, and a raw one for the rest."""
    layout = KvLayout(config.layers, config.kv_heads, config.head_dim, page_size, dtype)
    full, rest = divmod(tokens, page_size)
    return full * layout.sealed_page_bytes + (layout.raw_page_bytes if rest else 0)


def estimate_time(spec: Job, config: ModelConfig, prefill_tokens: int, rows: int) -> TimeEstimate:
    """Seconds, from 2 operations a parameter and token, at the speed that this machine's products have now.

    Args:
        spec: the job.
        config: the model's shape.
        prefill_tokens: to be computed, without those that are shared.
        rows: completions.
    """
    decode_tokens = round(rows * spec.generation.max_new_tokens * COMPLETION_SHARE)
    dtype = resolved(spec.model.dtype)
    prefill = measure_flops(config, spec.batching.max_batch_tokens, dtype)
    decode = measure_flops(config, min(spec.batching.max_sequences, max(rows, 1)), dtype)
    body, head = matrix_sizes(config)
    low = 2 * body * prefill_tokens / prefill + 2 * (body + head) * decode_tokens / decode
    return TimeEstimate(prefill_tokens, decode_tokens, prefill, decode, low, low * SLOWEST)


def measure_flops(config: ModelConfig, rows: int, dtype: str) -> float:
    """Operations a second of products [rows, hidden] × [hidden, 2 intermediate], as the engine does them.

    The mean over a moment: on a busy machine the engine's products will be as slow as these.
    """
    import torch

    from ..kernels.ops import Linear

    kind = getattr(torch, dtype)
    shape = 2 * config.intermediate_size, config.hidden_size
    copies = -(-UNCACHED_BYTES // (shape[0] * shape[1] * kind.itemsize))
    with torch.inference_mode():
        weights = [Linear(torch.full(shape, 0.01, dtype=kind)) for _ in range(copies)]
        x = torch.full((rows, shape[1]), 0.01, dtype=kind)
        weights[0](x)  # warm up
        began, products = time.perf_counter(), 0
        while (seconds := time.perf_counter() - began) < MEASURE_S:
            weights[products % copies](x)
            products += 1
    return products * 2 * rows * shape[0] * shape[1] / seconds
