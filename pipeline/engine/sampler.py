"""From logits to tokens: a random stream that belongs to the sample alone, then the filters in kernels/."""

from collections.abc import Sequence as Items
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from ...kernels.ops import Ops
from .sequence import Sampling, Sequence

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
COLDEST = 1e-3  # below it, sampling is greedy: logits divided by less overflow


def stream_key(seed: int, key: str, sample: int) -> int:
    """The random stream of one sample: 64 bits that depend on (seed, task, sample) and nothing else."""
    digest = blake2b(f"{seed}\0{sample}\0".encode() + key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def uniforms(streams: Items[int], positions: Items[int]) -> Tensor:
    """Number `position` of each stream, in [0, 1), float64: the finalizer of SplitMix64 (Steele et al., 2014) over a counter."""
    x = np.array(streams, np.uint64) + (np.array(positions, np.uint64) + np.uint64(1)) * GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return torch.from_numpy((x >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def sample(ops: Ops, logits: Tensor, hidden: Tensor, head: Tensor, sequences: Items[Sequence], how: Sampling) -> list[int]:
    """The next token of each sequence. logits: [S, V], hidden: [S, C], one row a sequence; may change logits."""
    if how.repetition_penalty != 1:
        logits = logits.float()
        for row, sequence in zip(logits, sequences, strict=True):
            _penalize(row, sequence.tokens, how.repetition_penalty)
    if how.temperature < COLDEST:
        return ops.best_tokens(logits, hidden, head).tolist()
    uniform = uniforms([s.stream for s in sequences], [s.generated for s in sequences])
    tokens = ops.draw_tokens(logits, uniform, how.temperature, how.top_k, how.top_p, how.min_p)
    return tokens.tolist()


def _penalize(row: Tensor, tokens: Items[int], penalty: float) -> None:
    """Makes tokens that have occurred less likely (Keskar et al., 2019). row: [V], changed in place."""
    seen = torch.tensor(sorted(set(tokens)))
    values = row[seen]
    row[seen] = torch.where(values > 0, values / penalty, values * penalty)
