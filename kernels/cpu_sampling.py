"""best_tokens and draw_tokens on the CPU: a few passes over a row's logits, no sort of the vocabulary."""

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from .cpu_math import FAST, exp, widen
from .kv import as_array

BINS = 4096
SPAN = 32.0  # tokens less likely than e**-32 times the best share the last bin


def best_tokens(logits: Tensor, hidden: Tensor, head: Tensor) -> Tensor:
    """Greedy choice: the largest logit, near ties settled in float32.

    logits: [S, V], bfloat16 or float32; hidden: [S, C]; head: [V, C] of the logits' type. Returns [S] int64. Rounding
    logits to bf16 makes ties that the model did not mean: tokens within two steps of the best are computed again.
    """
    out = torch.empty(logits.shape[0], dtype=torch.int64)
    _best(as_array(logits), as_array(hidden), as_array(head), logits.dtype == torch.bfloat16, out.numpy())
    return out


def draw_tokens(logits: Tensor, uniform: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Samples one token a row by inverting the cumulative distribution at uniform [S] in [0, 1). Returns [S] int64.

    logits: [S, V]. Order of the filters as in Hugging Face generate: temperature, top-k, top-p, min-p; tokens are laid
    out from the most to the least likely (ties by id), so that equal logits and numbers give equal tokens.
    """
    out = torch.empty(logits.shape[0], dtype=torch.int64)
    scale = np.float32(1 / temperature)
    _draw(as_array(logits), uniform.double().numpy(), scale, top_k, top_p, min_p, out.numpy())
    return out


@njit(fastmath=FAST, inline="always")
def _maximum(x: Any) -> Any:
    high = widen(x[0])
    for i in range(x.shape[0]):
        high = max(high, widen(x[i]))
    return high


@njit(fastmath=FAST, parallel=True, nogil=True, cache=True)
def _best(logits: Any, hidden: Any, head: Any, rounded: Any, out: Any) -> None:
    for row in prange(logits.shape[0]):
        x = logits[row]
        high = _maximum(x)
        bar = high - abs(high) * np.float32(2.0**-6) if rounded else high
        best, winner = np.float32(-np.inf), -1
        for i in range(x.shape[0]):
            if widen(x[i]) >= bar:
                exact = widen(x[i])
                if rounded:
                    exact = np.float32(0)
                    for c in range(hidden.shape[1]):
                        exact += widen(hidden[row, c]) * widen(head[i, c])
                if winner < 0 or exact > best:
                    best, winner = exact, i
        out[row] = winner


@njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _candidates(x: Any, high: Any, scale: Any, top_k: Any, top_p: Any) -> Any:
    """(ids, weights, total): the likeliest tokens, sorted, enough of them to hold what top_k and top_p keep.

    Weights are exp of the scaled logits less the best; total is their sum over the whole vocabulary. A histogram over
    the scaled logits finds where to cut, so that only tokens above the cut are sorted.
    """
    size = x.shape[0]
    count, mass = np.zeros(BINS, np.int64), np.zeros(BINS)
    per_bin = np.float32(BINS / SPAN)
    for i in range(size):
        gap = (high - widen(x[i])) * scale
        b = min(np.int64(gap * per_bin), BINS - 1)
        count[b] += 1
        mass[b] += exp(-gap)
    total, kept, seen, cut = mass.sum(), 0, 0.0, 0
    want = top_k if top_k else size
    while cut < BINS - 1:
        kept += count[cut]
        seen += mass[cut]
        if kept >= want or (top_k == 0 and seen > total * top_p * (1 + 1e-9)):
            break
        cut += 1
    ids, gaps = np.empty(size, np.int64), np.empty(size, np.float32)
    n = 0
    for i in range(size):
        gap = (high - widen(x[i])) * scale
        if min(np.int64(gap * per_bin), BINS - 1) <= cut:
            ids[n], gaps[n] = i, gap
            n += 1
    order = np.argsort(gaps[:n], kind="mergesort")
    weights = np.empty(n)
    for j in range(n):
        weights[j] = exp(-gaps[order[j]])
    return ids[order], weights, total


@njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _draw_row(x: Any, u: Any, scale: Any, top_k: Any, top_p: Any, min_p: Any) -> Any:
    """The token at u. Without top_k, grows the sorted part until it holds u's place."""
    high = _maximum(x)
    reach = top_p if top_p < 1 else min(u + 1e-4, 1.0)
    ids, weights, total = _candidates(x, high, scale, top_k, reach)
    n = min(len(ids), top_k) if top_k else len(ids)
    if top_k:
        total = weights[:n].sum()
    if top_p < 1:
        before, k = 0.0, 0
        while k < n and before < top_p * total:
            before += weights[k]
            k += 1
        n, total = k, before
    if min_p > 0:
        k, kept = 0, 0.0
        while k < n and weights[k] >= min_p * weights[0]:
            kept += weights[k]
            k += 1
        if k < n:
            n, total = k, kept
        elif top_p >= 1 and top_k == 0 and n < x.shape[0]:
            # The sorted part ended before min_p's bar: take the whole distribution's kept mass.
            ids, weights, _ = _candidates(x, high, scale, 0, 2.0)
            n, total = 0, 0.0
            while n < len(ids) and weights[n] >= min_p * weights[0]:
                total += weights[n]
                n += 1
    target, passed = u * total, 0.0
    for k in range(n):
        passed += weights[k]
        if target < passed:
            return ids[k]
    return ids[n - 1]


@njit(parallel=True, nogil=True, cache=True)
def _draw(logits: Any, uniform: Any, scale: Any, top_k: Any, top_p: Any, min_p: Any, out: Any) -> None:
    for row in prange(logits.shape[0]):
        out[row] = _draw_row(logits[row], uniform[row], scale, top_k, top_p, min_p)
