"""Packed products: the values of F.linear, and rows that do not depend on their number."""

import pytest
import torch
from codegen_batch.kernels.linear import Linear


@pytest.mark.parametrize(("inner", "outer"), [(576, 960), (1536, 576), (4864, 896)])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 24, 96])
def test_rows_do_not_depend_on_their_number(inner: int, outer: int, rows: int) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(outer, inner).bfloat16() / inner**0.5, torch.randn(outer).bfloat16()
    x = torch.randn(288, inner).bfloat16()
    linear = Linear(weight, bias)
    together = linear(x)
    apart = torch.cat([linear(x[start : start + rows].contiguous()) for start in range(0, 288, rows)])
    assert torch.equal(apart, together)
    exact = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(together.double(), exact, rtol=2**-7, atol=2**-7)


def test_float32_is_the_plain_product() -> None:
    weight, x = torch.randn(33, 20), torch.randn(5, 20)
    torch.testing.assert_close(Linear(weight)(x), x @ weight.T)
