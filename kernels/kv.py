"""Paged KV storage and the indices of one forward pass.

A page holds `page_size` tokens of every KV head of one layer. Pages are *raw* while they fill and *sealed* afterwards:
sealed pages are immutable, may be shared, and are INT4 (or a copy of the raw page where the cache is bf16 or float32).
Attention reads a sequence as its sealed pages followed by the raw page of the row itself, also inside a prefill chunk:
what a token sees depends on its sequence alone, never on chunking, batching or cache hits.

INT4 format: keys are quantized per channel over the page's tokens, values per token over groups of channels; code in
0..15, value = code * scale + minimum, scale and minimum in float16. Key codes are [D, P/2], where byte i holds token i
(low nibble) and token i + P/2; value codes are [P, D/2], where byte i holds channel i (low) and channel i + D/2.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .layout import KvLayout

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class LayerPages:
    """One layer's storage. N sealed pages, M raw pages; sealed scales are empty unless the cache is INT4."""

    k: Tensor  # int4: uint8 [N, Hkv, D, P/2]; else raw type [N, Hkv, D, P]
    v: Tensor  # int4: uint8 [N, Hkv, P, D/2]; else raw type [N, Hkv, P, D]
    k_scale: Tensor  # float16 [N, Hkv, D]
    k_min: Tensor
    v_scale: Tensor  # float16 [N, Hkv, P, D/group]
    v_min: Tensor
    raw_k: Tensor  # [M, Hkv, D, P]
    raw_v: Tensor  # [M, Hkv, P, D]
    arrays: tuple[npt.NDArray[Any], ...]  # the same memory for the CPU kernels, in this order; empty off the CPU


class KvPool:
    """All pages of one device. Memory is taken as pages are first written, not when the pool is made."""

    def __init__(self, layout: KvLayout, sealed_pages: int, raw_pages: int, device: torch.device) -> None:
        self.layout, self.sealed_pages, self.raw_pages = layout, sealed_pages, raw_pages
        self.layers = [self._layer(device) for _ in range(layout.layers)]

    def _layer(self, device: torch.device) -> LayerPages:
        lay, n, m = self.layout, self.sealed_pages, self.raw_pages
        heads, dim, page = lay.kv_heads, lay.head_dim, lay.page_size

        def new(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        raw = torch.float32 if lay.dtype == "float32" else torch.bfloat16
        pack, kind, scales = (2, torch.uint8, n) if lay.dtype == "int4" else (1, raw, 0)
        tensors = (
            new(n, heads, dim, page // pack, dtype=kind),
            new(n, heads, page, dim // pack, dtype=kind),
            new(scales, heads, dim, dtype=torch.float16),
            new(scales, heads, dim, dtype=torch.float16),
            new(scales, heads, page, dim // lay.group, dtype=torch.float16),
            new(scales, heads, page, dim // lay.group, dtype=torch.float16),
            new(m, heads, dim, page, dtype=raw),
            new(m, heads, page, dim, dtype=raw),
        )
        return LayerPages(*tensors, arrays=tuple(map(as_array, tensors)) if device.type == "cpu" else ())

    def copy_raw(self, source: int, target: int) -> None:
        """Copies a raw page in every layer, for samples that part ways inside a page."""
        for layer in self.layers:
            layer.raw_k[target] = layer.raw_k[source]
            layer.raw_v[target] = layer.raw_v[source]


@dataclass(frozen=True, slots=True)
class StepRows:
    """Where the rows of one forward pass stand. A block is a run of rows of one sequence inside one page.

    T rows, B blocks, S sequences; all int32. Rows of a block are contiguous, and blocks of a sequence are in order.
    """

    position: Int32  # [T] position of the row in its sequence
    block_row: Int32  # [B] first row
    block_len: Int32  # [B] rows, 1..P
    block_seq: Int32  # [B] row of `table`
    block_raw: Int32  # [B] raw page that holds the block's page
    table: Int32  # [S, max pages] sealed pages of each sequence, in order
    seal_raw: Int32  # [n] raw pages that this pass fills ...
    seal_page: Int32  # [n] ... and the sealed pages they become


def as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """The tensor's memory as numpy; 16-bit floats, which numpy and numba lack in part, as their bits (uint16)."""
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.view(torch.uint16)
    array: npt.NDArray[Any] = tensor.numpy()
    return array
