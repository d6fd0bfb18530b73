"""From a step's sequences to the rows of a forward pass."""

import numpy as np
import torch
from torch import Tensor

from ...kernels.kv import KvPool, StepRows
from .model import Model
from .sequence import Sequence

Chunks = list[tuple[Sequence, int]]


def last_rows(chunks: Chunks) -> Tensor:
    """The row of each chunk's last token."""
    return torch.from_numpy(np.cumsum([n for _, n in chunks], dtype=np.int64) - 1)


@torch.inference_mode()
def forward(model: Model, pool: KvPool, chunks: Chunks) -> Tensor:
    """Computes each chunk's tokens; returns the output of all rows, [T, C] float32."""
    tokens = [t for s, n in chunks for t in s.tokens[s.cached : s.cached + n]]
    return model.forward(torch.tensor(tokens), step_rows(chunks, pool.layout.page_size), pool)


def step_rows(chunks: Chunks, page_size: int) -> StepRows:
    """Cuts chunks into blocks that end where pages end. Needs the pages that the scheduler has reserved."""
    positions: list[int] = []
    blocks: list[tuple[int, int, int, int]] = []  # row, length, sequence, raw page
    seals: list[tuple[int, int]] = []  # raw page, sealed page
    for index, (sequence, count) in enumerate(chunks):
        start, end = sequence.cached, sequence.cached + count
        for page in range(start // page_size, (end - 1) // page_size + 1):
            first, stop = max(start, page * page_size), min(end, (page + 1) * page_size)
            raw = sequence.raws[page - start // page_size]
            blocks.append((len(positions), stop - first, index, raw))
            positions.extend(range(first, stop))
            if stop == (page + 1) * page_size:
                seals.append((raw, sequence.sealed[page]))
    table = np.zeros((len(chunks), max(len(s.sealed) for s, _ in chunks) + 1), np.int32)
    for index, (sequence, _) in enumerate(chunks):
        table[index, : len(sequence.sealed)] = sequence.sealed
    row, length, owner, raws = np.array(blocks, np.int32).T.copy()
    raw_of, sealed_as = np.array(seals, np.int32).reshape(-1, 2).T.copy()
    return StepRows(np.array(positions, np.int32), row, length, owner, raws, table, raw_of, sealed_as)
