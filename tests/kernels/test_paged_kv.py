"""The CPU kernels of the paged cache against their plain twins, on odd shapes, with unwritten memory poisoned by NaN."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from codegen_batch.kernels import ops, plain
from codegen_batch.kernels.kv import KvPool, StepRows
from codegen_batch.kernels.layout import KvLayout

CPU = torch.device("cpu")
LENGTHS = {
    "one": [1],
    "page-1": [31],
    "page": [32],
    "page+1": [33],
    "long": [1000],
    "mixed": [1, 129, 64, 33, 7],
    "129-sequences": [1 + i % 40 for i in range(129)],
}


def poisoned_pool(layout: KvLayout, lengths: list[int]) -> KvPool:
    pages = sum(n // layout.page_size for n in lengths) + 1
    pool = KvPool(layout, pages, sum(-(-n // layout.page_size) for n in lengths) + 1, CPU)
    for layer in pool.layers:
        for tensor in (layer.k, layer.v, layer.k_scale, layer.k_min, layer.v_scale, layer.v_min, layer.raw_k, layer.raw_v):
            tensor.fill_(255 if tensor.dtype == torch.uint8 else torch.nan)
    return pool


def prefill_rows(lengths: list[int], page: int) -> StepRows:
    """All tokens of every sequence in one pass; pages are dealt out in a shuffled order."""
    blocks = [(s, p, min(page, n - p)) for s, n in enumerate(lengths) for p in range(0, n, page)]
    full = [i for i, (_, _, n) in enumerate(blocks) if n == page]
    deal = np.random.default_rng(0).permutation(len(full))
    table = np.zeros((len(lengths), max(lengths) // page + 1), np.int32)
    for i, page_id in zip(full, deal, strict=True):
        table[blocks[i][0], blocks[i][1] // page] = page_id
    sizes = np.array([n for _, _, n in blocks], np.int32)
    return StepRows(
        position=np.concatenate([np.arange(n) for n in lengths]).astype(np.int32),
        block_row=(np.cumsum(sizes) - sizes).astype(np.int32),
        block_len=sizes,
        block_seq=np.array([s for s, _, _ in blocks], np.int32),
        block_raw=np.arange(len(blocks), dtype=np.int32),
        table=table,
        seal_raw=np.array(full, np.int32),
        seal_page=deal.astype(np.int32),
    )


def angles(length: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    phase = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
    return phase.cos(), phase.sin()


def run(
    backend: ops.Backend, layout: KvLayout, lengths: list[int], group: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, KvPool]:
    op, rows = ops.choose(backend), prefill_rows(lengths, layout.page_size)
    pool = poisoned_pool(layout, lengths)
    torch.manual_seed(1)
    width = (group + 2) * layout.kv_heads * layout.head_dim
    qkv = torch.randn(sum(lengths), width).to(dtype)
    cos, sin = angles(max(lengths), layout.head_dim)
    q = op.rope_append(qkv, cos, sin, pool, 0, rows)
    op.seal_pages(pool, 0, rows)
    return q, op.paged_attention(q, pool, 0, rows, torch.float32), pool


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("kv", ["int4", "bf16", "float32"])
def test_twins_agree_on_lengths(kv: str, lengths: list[int]) -> None:
    layout = KvLayout(layers=1, kv_heads=2, head_dim=64, page_size=32, dtype=kv)  # type: ignore[arg-type]
    assert_twins_agree(layout, lengths, group=7, dtype=torch.bfloat16)


# Every page size, head size and group once: each combination compiles anew, for seconds.
SHAPES = [(16, 96, 3), (32, 128, 1), (64, 64, 7), (128, 256, 8)]


@pytest.mark.parametrize(("page", "dim", "group"), SHAPES)
def test_twins_agree_on_shapes(page: int, dim: int, group: int) -> None:
    assert_twins_agree(KvLayout(1, 3, dim, page), [5, 3 * page + 1, page], group, torch.float32)


def assert_twins_agree(layout: KvLayout, lengths: list[int], group: int, dtype: torch.dtype) -> None:
    q, out, pool = run("cpu", layout, lengths, group, dtype)
    q_plain, out_plain, pool_plain = run("plain", layout, lengths, group, dtype)
    torch.testing.assert_close(q, q_plain, rtol=1e-5, atol=1e-6)
    for name in ("k", "v", "k_scale", "k_min", "v_scale", "v_min", "raw_k", "raw_v"):
        mine, theirs = getattr(pool.layers[0], name), getattr(pool_plain.layers[0], name)
        if mine.dtype == torch.uint8:  # a code may differ by one where the rotation differs in its last bit
            apart = (plain.unpack(mine) - plain.unpack(theirs)).abs()
            assert apart.max() <= 1
            assert (apart > 0).float().mean() < 1e-3
        else:
            torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-5, equal_nan=True)
    assert not out.isnan().any()
    # Codes that differ by one move single rows a little; all others agree to float32's precision.
    error = (out - out_plain).norm(dim=-1) / out_plain.norm(dim=-1)
    assert error.median() < 1e-5
    assert error.max() < 2e-2


def one(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def test_rows_do_not_depend_on_chunks_or_neighbours() -> None:
    """A sequence prefilled token by token, alone, gives bit for bit what it gives in one pass among others."""
    layout, lengths, group = KvLayout(1, 2, 64), [70, 45, 1, 33], 7
    op = ops.choose("cpu")
    torch.manual_seed(1)
    qkv = torch.randn(sum(lengths), (group + 2) * 2 * 64).bfloat16()
    cos, sin = angles(100, 64)
    pool, rows = poisoned_pool(layout, lengths), prefill_rows(lengths, 32)
    q = op.rope_append(qkv, cos, sin, pool, 0, rows)
    op.seal_pages(pool, 0, rows)
    together = op.paged_attention(q, pool, 0, rows, torch.bfloat16)[:70]

    alone = poisoned_pool(layout, [70])
    for t in range(70):
        step = StepRows(
            position=one(t),
            block_row=one(0),
            block_len=one(1),
            block_seq=one(0),
            block_raw=one(t // 32),
            table=one(0, 1, 0)[None],
            seal_raw=one(t // 32) if t % 32 == 31 else one(),
            seal_page=one(t // 32) if t % 32 == 31 else one(),
        )
        q = op.rope_append(qkv[t : t + 1], cos, sin, alone, 0, step)
        op.seal_pages(alone, 0, step)
        assert torch.equal(op.paged_attention(q, alone, 0, step, torch.bfloat16)[0], together[t]), t


@pytest.mark.parametrize(("kv", "limit"), [("int4", 0.08), ("bf16", 4e-3), ("float32", 1e-5)])
def test_cache_error_is_that_of_its_type(kv: str, limit: float) -> None:
    """Against exact attention: the cache costs what its type costs, no more."""
    lengths = [97]
    layout = KvLayout(1, 2, 64, 32, kv)  # type: ignore[arg-type]
    q, out, _ = run("cpu", layout, lengths, 3, torch.float32)
    torch.manual_seed(1)
    x = torch.randn(97, 10, 64)
    cos, sin = angles(97, 64)
    k, v = plain._rotate(x[:, 6:8], cos[:, None], sin[:, None]), x[:, 8:]
    k, v = (t.repeat_interleave(3, dim=1).transpose(0, 1) for t in (k, v))
    exact = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True, scale=1.0)
    exact = exact.transpose(0, 1).flatten(1)
    assert (out - exact).norm() / exact.norm() < limit


def test_pack_is_inverse_of_unpack() -> None:
    codes = torch.arange(64, dtype=torch.uint8).reshape(2, 32) % 16
    assert torch.equal(plain.unpack(plain.pack(codes)), codes.float())


def test_bytes_of_a_page() -> None:
    """The figures of the format: 38 D a head at 32 tokens, 72 D at 64."""
    assert KvLayout(1, 1, 64, 32).sealed_page_bytes == 38 * 64
    assert KvLayout(1, 1, 64, 64).sealed_page_bytes == 72 * 64
    assert KvLayout(1, 1, 64, 64).bf16_page_bytes == 256 * 64
