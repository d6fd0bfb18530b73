"""Plain-torch twins of every kernel, in the same words: the reference for tests, and what runs where no kernel fits."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .kv import KvPool, LayerPages, StepRows
from .layout import KvLayout


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Root-mean-square norm over the last dimension. x: [T, C] float32; weight: [C] float32; returns [T, C] of dtype."""
    return F.rms_norm(x, weight.shape, weight, eps).to(dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's product: silu(gate) * up. gate_up: [T, 2I]; returns [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    y: Tensor = F.silu(gate) * up
    return y


def rope_append(qkv: Tensor, cos: Tensor, sin: Tensor, pool: KvPool, layer: int, rows: StepRows) -> Tensor:
    """Rotates queries and keys by their position and writes keys and values to their raw pages.

    qkv: [T, (H + 2 Hkv) * D] bfloat16 or float32; cos, sin: [max context, D/2] float32.
    Returns the queries, [T, H, D] float32, scaled by D ** -0.5.
    """
    layout, pages = pool.layout, pool.layers[layer]
    heads = qkv.shape[1] // layout.head_dim - 2 * layout.kv_heads
    x = qkv.view(qkv.shape[0], -1, layout.head_dim).float()
    position = torch.from_numpy(rows.position).long()
    c, s = cos[position, None], sin[position, None]
    q, k, v = x.split([heads, layout.kv_heads, layout.kv_heads], dim=1)
    k, v = _rotate(k, c, s), v
    for row, length, raw in zip(rows.block_row, rows.block_len, rows.block_raw, strict=True):
        slot = int(rows.position[row]) % layout.page_size
        new, at = slice(row, row + length), slice(slot, slot + length)
        pages.raw_k[raw, :, :, at] = k[new].permute(1, 2, 0)  # [Hkv, D, n]
        pages.raw_v[raw, :, at] = v[new].transpose(0, 1)  # [Hkv, n, D]
    scaled: Tensor = _rotate(q, c, s) * layout.head_dim**-0.5
    return scaled


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def seal_pages(pool: KvPool, layer: int, rows: StepRows) -> None:
    """Makes sealed pages of the raw pages that this pass has filled (rows.seal_raw -> rows.seal_page)."""
    pages, layout = pool.layers[layer], pool.layout
    for raw, to in zip(rows.seal_raw, rows.seal_page, strict=True):
        if layout.dtype != "int4":
            pages.k[to], pages.v[to] = pages.raw_k[raw], pages.raw_v[raw]
            continue
        codes, scale, minimum = quantize(pages.raw_k[raw].float())
        pages.k[to], pages.k_scale[to], pages.k_min[to] = pack(codes), scale, minimum
        values = pages.raw_v[raw].float().unflatten(-1, (-1, layout.group))
        codes, scale, minimum = quantize(values)
        pages.v[to], pages.v_scale[to], pages.v_min[to] = pack(codes.flatten(-2)), scale, minimum


def quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Asymmetric 4-bit codes over the last dimension: (codes uint8, scale float16, minimum float16)."""
    low, high = x.amin(-1), x.amax(-1)
    minimum = low.half()
    scale = ((high - minimum.float()) / 15).half()
    step = scale.float().unsqueeze(-1)
    codes = ((x - minimum.float().unsqueeze(-1)) / step).round().clamp(0, 15)
    return torch.where(step == 0, 0, codes).to(torch.uint8), scale, minimum


def pack(codes: Tensor) -> Tensor:
    """[..., n] codes -> [..., n/2] bytes; byte i holds codes i (low nibble) and i + n/2."""
    low, high = codes.chunk(2, dim=-1)
    return low | (high << 4)


def unpack(packed: Tensor) -> Tensor:
    """The inverse of pack, in float32."""
    return torch.cat([packed & 15, packed >> 4], dim=-1).float()


def read_page(pages: LayerPages, layout: KvLayout, page: int) -> tuple[Tensor, Tensor]:
    """A sealed page as keys [Hkv, D, P] and values [Hkv, P, D], float32."""
    if layout.dtype != "int4":
        return pages.k[page].float(), pages.v[page].float()
    k = unpack(pages.k[page]) * pages.k_scale[page].float().unsqueeze(-1) + pages.k_min[page].float().unsqueeze(-1)
    v = unpack(pages.v[page]).unflatten(-1, (-1, layout.group))
    v = v * pages.v_scale[page].float().unsqueeze(-1) + pages.v_min[page].float().unsqueeze(-1)
    return k, v.flatten(-2)


def paged_attention(q: Tensor, pool: KvPool, layer: int, rows: StepRows, dtype: torch.dtype) -> Tensor:
    """Causal attention of each row over its sequence's cache.

    q: [T, H, D] float32, already scaled. Returns [T, H * D] of `dtype` (bfloat16 or float32).
    """
    layout, pages = pool.layout, pool.layers[layer]
    out = torch.empty_like(q)
    for b, (row, length) in enumerate(zip(rows.block_row, rows.block_len, strict=True)):
        full, slot = divmod(int(rows.position[row]), layout.page_size)
        sealed = [read_page(pages, layout, p) for p in rows.table[rows.block_seq[b], :full]]
        raw, used = rows.block_raw[b], slot + int(length)
        k = torch.cat([k for k, _ in sealed] + [pages.raw_k[raw, :, :, :used].float()], dim=2)  # [Hkv, D, L]
        v = torch.cat([v for _, v in sealed] + [pages.raw_v[raw, :, :used].float()], dim=1)  # [Hkv, L, D]
        block = q[row : row + length].unflatten(1, (layout.kv_heads, -1)).permute(1, 2, 0, 3)  # [Hkv, G, n, D]
        scores = block @ k.unsqueeze(1)  # [Hkv, G, n, L]
        last = torch.arange(length)[:, None] + full * layout.page_size + slot
        scores = scores.masked_fill(torch.arange(k.shape[2])[None] > last, -torch.inf)
        mixed = scores.softmax(-1) @ v.unsqueeze(1)  # [Hkv, G, n, D]
        out[row : row + length] = mixed.permute(2, 0, 1, 3).flatten(1, 2)
    return out.flatten(1).to(dtype)


def best_tokens(logits: Tensor, hidden: Tensor, head: Tensor) -> Tensor:
    """Greedy choice: the largest logit, near ties settled in float32.

    logits: [S, V], bfloat16 or float32; hidden: [S, C]; head: [V, C] of the logits' type. Returns [S] int64. Rounding
    logits to bf16 makes ties that the model did not mean: tokens within two steps of the best are computed again.
    """
    if logits.dtype == torch.float32:
        return logits.argmax(-1)
    top = logits.amax(-1, keepdim=True).float()
    near = logits.float() >= top - top.abs() * 2.0**-6
    picks = []
    for row in range(logits.shape[0]):
        tokens = near[row].nonzero().squeeze(-1)
        exact = head[tokens].float() @ hidden[row].float()
        picks.append(tokens[exact.argmax()])
    return torch.stack(picks)


def draw_tokens(logits: Tensor, uniform: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Samples one token a row by inverting the cumulative distribution at uniform [S] in [0, 1). Returns [S] int64.

    logits: [S, V]. Order of the filters as in Hugging Face generate: temperature, top-k, top-p, min-p; tokens are laid
    out from the most to the least likely (ties by id), so that equal logits and numbers give equal tokens.
    """
    probs, tokens = (logits.float() / temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
    if top_k:
        probs[:, top_k:] = 0
    probs = probs / probs.sum(-1, keepdim=True)
    if top_p < 1:
        probs[probs.cumsum(-1) - probs >= top_p] = 0
    if min_p > 0:
        probs[probs < min_p * probs[:, :1]] = 0
    edges = probs.double().cumsum(-1)
    index = torch.searchsorted(edges, uniform.double()[:, None] * edges[:, -1:], right=True)
    last = (probs > 0).sum(-1, keepdim=True) - 1
    return tokens.gather(1, torch.minimum(index, last)).squeeze(1)
