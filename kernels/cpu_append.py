"""rope_append and seal_pages on the CPU."""

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from .cpu_math import FAST, float_to_half, half_to_float, narrow, widen
from .kv import KvPool, StepRows, as_array


def rope_append(qkv: Tensor, cos: Tensor, sin: Tensor, pool: KvPool, layer: int, rows: StepRows) -> Tensor:
    """Rotates queries and keys by their position and writes keys and values to their raw pages.

    qkv: [T, (H + 2 Hkv) * D] bfloat16 or float32; cos, sin: [max context, D/2] float32.
    Returns the queries, [T, H, D] float32, scaled by D ** -0.5.
    """
    layout, pages = pool.layout, pool.layers[layer].arrays
    heads = qkv.shape[1] // layout.head_dim - 2 * layout.kv_heads
    q = torch.empty(qkv.shape[0], heads, layout.head_dim)
    _rope_append(
        as_array(qkv.view(qkv.shape[0], -1, layout.head_dim)), as_array(cos), as_array(sin), rows.position,
        rows.block_row, rows.block_len, rows.block_raw, pages[6], pages[7], as_array(q),
    )  # fmt: skip
    return q


def seal_pages(pool: KvPool, layer: int, rows: StepRows) -> None:
    """Makes sealed pages of the raw pages that this pass has filled (rows.seal_raw -> rows.seal_page)."""
    if not len(rows.seal_raw):
        return
    pages = pool.layers[layer].arrays
    if pool.layout.dtype == "int4":
        _seal_int4(*pages, rows.seal_raw, rows.seal_page)
    else:
        pages[0][rows.seal_page] = pages[6][rows.seal_raw]
        pages[1][rows.seal_page] = pages[7][rows.seal_raw]


@njit(fastmath=FAST, inline="always")
def _rotate(x: Any, i: Any, half: Any, cos: Any, sin: Any) -> Any:
    """Channels i and i + half of x, rotated (rotate-half convention)."""
    a, b = widen(x[i]), widen(x[i + half])
    return a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]


@njit(fastmath=FAST, parallel=True, nogil=True, cache=True)
def _rope_append(
    qkv: Any, cos: Any, sin: Any, position: Any, block_row: Any, block_len: Any, block_raw: Any,
    raw_k: Any, raw_v: Any, q: Any,
) -> None:  # fmt: skip
    kv_heads, dim, page = raw_k.shape[1], raw_k.shape[2], raw_k.shape[3]
    heads, half, scale = q.shape[1], dim // 2, np.float32(dim**-0.5)
    like = raw_k[0, 0, 0, 0]
    for b in prange(block_row.shape[0]):
        raw = block_raw[b]
        for row in range(block_row[b], block_row[b] + block_len[b]):
            at = position[row]
            c, s, t = cos[at], sin[at], at % page
            for h in range(heads):
                for i in range(half):
                    x, y = _rotate(qkv[row, h], i, half, c, s)
                    q[row, h, i], q[row, h, i + half] = x * scale, y * scale
            for h in range(kv_heads):
                for i in range(half):
                    x, y = _rotate(qkv[row, heads + h], i, half, c, s)
                    raw_k[raw, h, i, t], raw_k[raw, h, i + half, t] = narrow(x, like), narrow(y, like)
                for i in range(dim):
                    raw_v[raw, h, t, i] = narrow(widen(qkv[row, heads + kv_heads + h, i]), like)


@njit(inline="always")
def _grid(low: Any, high: Any) -> Any:
    """(scale bits, minimum bits, scale, minimum) of sixteen even steps from low to high, as float16 holds them."""
    m = float_to_half(low)
    s = float_to_half((high - half_to_float(m)) / np.float32(15))
    return s, m, half_to_float(s), half_to_float(m)


@njit(inline="always")
def _code(x: Any, scale: Any, minimum: Any) -> Any:
    if scale == np.float32(0):
        return np.uint8(0)
    return np.uint8(min(max(np.rint((x - minimum) / scale), np.float32(0)), np.float32(15)))


@njit(parallel=True, nogil=True, cache=True)
def _seal_int4(
    k: Any, v: Any, k_scale: Any, k_min: Any, v_scale: Any, v_min: Any, raw_k: Any, raw_v: Any, source: Any, target: Any
) -> None:
    heads, dim, page = raw_k.shape[1], raw_k.shape[2], raw_k.shape[3]
    groups = v_scale.shape[3]
    width, half_page, half_dim = dim // groups, page // 2, dim // 2
    for item in prange(source.shape[0] * heads):
        i, h = item // heads, item % heads
        raw, to = source[i], target[i]
        codes = np.empty(max(page, dim), np.uint8)
        for d in range(dim):
            x = raw_k[raw, h, d]
            low = high = widen(x[0])
            for t in range(page):
                low, high = min(low, widen(x[t])), max(high, widen(x[t]))
            k_scale[to, h, d], k_min[to, h, d], s, m = _grid(low, high)
            for t in range(page):
                codes[t] = _code(widen(x[t]), s, m)
            for t in range(half_page):
                k[to, h, d, t] = codes[t] | (codes[t + half_page] << np.uint8(4))
        for t in range(page):
            x = raw_v[raw, h, t]
            for g in range(groups):
                low = high = widen(x[g * width])
                for d in range(g * width, (g + 1) * width):
                    low, high = min(low, widen(x[d])), max(high, widen(x[d]))
                v_scale[to, h, t, g], v_min[to, h, t, g], s, m = _grid(low, high)
                for d in range(g * width, (g + 1) * width):
                    codes[d] = _code(widen(x[d]), s, m)
            for d in range(half_dim):
                v[to, h, t, d] = codes[d] | (codes[d + half_dim] << np.uint8(4))
