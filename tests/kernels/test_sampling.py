"""The CPU samplers against their plain twins."""

import pytest
import torch
from codegen_batch.kernels import ops

CPU, PLAIN = ops.choose("cpu"), ops.choose("plain")


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
def test_greedy_twins_agree(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(rows, 96).to(dtype), torch.randn(5003, 96).to(dtype)
    logits = hidden @ head.T
    got = CPU.best_tokens(logits, hidden, head)
    assert torch.equal(got, PLAIN.best_tokens(logits, hidden, head))
    assert torch.equal(got, (hidden.double() @ head.double().T).argmax(-1))


def test_greedy_settles_ties_of_rounding() -> None:
    """Two logits that bf16 rounds to the same value: the larger product wins, whichever comes first."""
    hidden = torch.ones(2, 256).bfloat16()
    head = torch.zeros(4, 256).bfloat16()
    head[1], head[2] = 1.0, 1.0
    head[2, 0] += 0.0078125
    logits = hidden @ head.T
    assert logits[0, 1] == logits[0, 2]
    assert CPU.best_tokens(logits, hidden, head).tolist() == [2, 2]


FILTERS = {
    "plain": (1.0, 0, 1.0, 0.0),
    "cold": (0.2, 0, 1.0, 0.0),
    "hot": (3.0, 0, 1.0, 0.0),
    "top_k": (0.8, 5, 1.0, 0.0),
    "top_p": (0.8, 0, 0.9, 0.0),
    "top_p-tiny": (0.8, 0, 0.01, 0.0),
    "top_k+top_p": (1.0, 40, 0.8, 0.0),
    "min_p": (1.0, 0, 1.0, 0.05),
    "all": (1.3, 50, 0.95, 0.02),
}


@pytest.mark.parametrize("setting", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
def test_draw_twins_agree(setting: tuple[float, int, float, float], dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    logits = (torch.randn(300, 2003) * 3).to(dtype)
    uniform = torch.rand(300)
    same = CPU.draw_tokens(logits, uniform, *setting) == PLAIN.draw_tokens(logits, uniform, *setting)
    assert same.float().mean() >= 0.99  # the sums differ in their last bits, which moves an edge past u now and then


def test_draw_follows_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0]).expand(20_000, 5).contiguous()
    uniform = (torch.arange(20_000) + 0.5) / 20_000
    share = CPU.draw_tokens(logits, uniform, 1.0, 0, 1.0, 0.0).bincount(minlength=5) / 20_000
    torch.testing.assert_close(share, logits[0].softmax(-1), atol=1e-3, rtol=0)


@pytest.mark.parametrize("u", [0.0, 1 - 2**-24], ids=["first", "last"])
def test_draw_at_the_ends(u: float) -> None:
    logits = torch.tensor([[0.0, 5.0, 4.9, -2.0]])
    token = CPU.draw_tokens(logits, torch.tensor([u]), 1.0, 2, 1.0, 0.0).item()
    assert token == (1 if u == 0 else 2)
