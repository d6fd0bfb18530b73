"""paged_attention on the CPU: one work item is a block of rows of one KV head, with all the query heads of its group.

A page is unpacked once for the whole item, then two small matrix products and an online softmax (Milakov and
Gimelshein, 2018) take it in. Pages are read in order by one thread, so that a row's result depends on nothing else.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit, prange, set_parallel_chunksize
from torch import Tensor

from .cpu_math import FAST, exp, half_to_float, high_nibble, low_nibble, narrow
from .cpu_tile import LANES, add_matmul, unpack16, widen16
from .kv import KvPool, StepRows, as_array

NEVER = np.float32(-1e30)
CHUNK = 4  # work items a thread takes at once: sequences differ in length, so threads must not be dealt equal numbers


def paged_attention(q: Tensor, pool: KvPool, layer: int, rows: StepRows, dtype: torch.dtype) -> Tensor:
    """Causal attention of each row over its sequence's cache.

    q: [T, H, D] float32, already scaled. Returns [T, H * D] of `dtype` (bfloat16 or float32).
    """
    layout = pool.layout
    out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=dtype)
    group = q.shape[1] // layout.kv_heads
    start = rows.position[rows.block_row]
    set_parallel_chunksize(CHUNK)
    _kernel(layout.dtype == "int4")(
        as_array(q), *pool.layers[layer].arrays, rows.table, rows.block_row, rows.block_len, start, rows.block_seq,
        rows.block_raw, as_array(out.view(q.shape)), layout.page_size, layout.head_dim, group, layout.group,
    )  # fmt: skip
    return out


@njit(fastmath=FAST, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _load_int4(
    page: Any, h: Any, k: Any, v: Any, ks: Any, km: Any, vs: Any, vm: Any, P: Any, D: Any, VG: Any, K: Any, V: Any
) -> None:
    """Unpacks a sealed page: K [D, P], V [P, D]."""
    half_page, half_dim = P // 2, D // 2
    if half_page % LANES == 0 and half_dim % LANES == 0 and (VG == D or half_dim % VG == 0):
        for d in range(D):
            s, m = half_to_float(ks[page, h, d]), half_to_float(km[page, h, d])
            for t in range(0, half_page, LANES):
                unpack16(k[page, h, d], t, s, m, K, d, t, t + half_page)
        if VG == D:
            for t in range(P):
                s, m = half_to_float(vs[page, h, t, 0]), half_to_float(vm[page, h, t, 0])
                for d in range(0, half_dim, LANES):
                    unpack16(v[page, h, t], d, s, m, V, t, d, d + half_dim)
            return
    else:
        for d in range(D):
            s, m = half_to_float(ks[page, h, d]), half_to_float(km[page, h, d])
            for t in range(half_page):
                code = k[page, h, d, t]
                K[d, t], K[d, t + half_page] = low_nibble(code) * s + m, high_nibble(code) * s + m
    for t in range(P):
        for d in range(half_dim):
            code = v[page, h, t, d]
            V[t, d], V[t, d + half_dim] = low_nibble(code), high_nibble(code)
        for g in range(D // VG):
            s, m = half_to_float(vs[page, h, t, g]), half_to_float(vm[page, h, t, g])
            for d in range(g * VG, g * VG + VG):
                V[t, d] = V[t, d] * s + m


@njit(fastmath=FAST, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _load_raw(page: Any, h: Any, k: Any, v: Any, used: Any, P: Any, D: Any, K: Any, V: Any) -> None:
    """Widens a page of which `used` tokens are written. The rest may hold NaN: scores of them are overwritten, values not."""
    for d in range(D):
        for t in range(0, P, LANES):
            widen16(k[page, h, d], t, K, d, t)
    for t in range(used):
        for d in range(0, D, LANES):
            widen16(v[page, h, t], d, V, t, d)
    for t in range(used, P):
        for d in range(D):
            V[t, d] = np.float32(0)


@njit(fastmath=FAST, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _softmax_step(S: Any, O: Any, top: Any, R: Any, first: Any, P: Any, D: Any, G: Any) -> None:  # noqa: E741
    """Turns a page's scores into weights, and scales O to them; `first` is the number of its tokens that row 0 sees."""
    for r in range(R):
        for t in range(first + r // G, P):
            S[r, t] = NEVER
        high = top[r]
        for t in range(P):
            high = max(high, S[r, t])
        correction = exp(top[r] - high)
        top[r] = high
        for t in range(P):
            S[r, t] = exp(S[r, t] - high)
        for d in range(D + LANES):
            O[r, d] *= correction


@njit(fastmath=FAST, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _attend(
    q: Any, k: Any, v: Any, ks: Any, km: Any, vs: Any, vm: Any, raw_k: Any, raw_v: Any,
    pages: Any, row: Any, n: Any, start: Any, raw: Any, h: Any, out: Any, P: Any, D: Any, G: Any, VG: Any, int4: Any,
) -> None:  # fmt: skip
    """One work item: n rows from `row` on, of KV head h, at positions from `start` on."""
    R, full = n * G, start // P
    Q, S, O = np.empty((R, D), np.float32), np.empty((R, P), np.float32), np.zeros((R, D + LANES), np.float32)  # noqa: E741
    K, V = np.empty((D, P), np.float32), np.ones((P, D + LANES), np.float32)  # columns of ones: O's sum the weights
    top = np.full(R, NEVER, np.float32)
    for r in range(R):
        for d in range(D):
            Q[r, d] = q[row + r // G, h * G + r % G, d]
    for p in range(full + 1):
        seen = P
        if p == full:
            seen = start - full * P + 1
            _load_raw(raw, h, raw_k, raw_v, seen + n - 1, P, D, K, V)
        elif int4:
            _load_int4(pages[p], h, k, v, ks, km, vs, vm, P, D, VG, K, V)
        else:
            _load_raw(pages[p], h, k, v, P, P, D, K, V)
        for r in range(R):
            for t in range(P):
                S[r, t] = np.float32(0)
        add_matmul(S, Q, K, R, D, P)
        _softmax_step(S, O, top, R, seen, P, D, G)
        add_matmul(O, S, V, R, P, D + LANES)
    for r in range(R):
        scale = np.float32(1) / O[r, D]
        for d in range(D):
            out[row + r // G, h * G + r % G, d] = narrow(O[r, d] * scale, out[0, 0, 0])


@cache
def _kernel(int4: bool) -> Callable[..., None]:
    """Compiles for a type of cache: for page size P, head size D, G query heads a KV head and VG channels a value scale.

    Only `int4` is closed over, so that numba finds the machine code in its cache the next time.
    """

    @njit(fastmath=FAST, parallel=True, nogil=True, cache=True)
    def paged_attention(
        q: Any, k: Any, v: Any, ks: Any, km: Any, vs: Any, vm: Any, raw_k: Any, raw_v: Any,
        table: Any, block_row: Any, block_len: Any, start: Any, block_seq: Any, block_raw: Any, out: Any,
        P: Any, D: Any, G: Any, VG: Any,
    ) -> None:  # fmt: skip
        heads = raw_k.shape[1]
        for item in prange(block_row.shape[0] * heads):
            b = item // heads
            _attend(
                q, k, v, ks, km, vs, vm, raw_k, raw_v, table[block_seq[b]], block_row[b], block_len[b], start[b],
                block_raw[b], item % heads, out, P, D, G, VG, int4,
            )  # fmt: skip

    return paged_attention
