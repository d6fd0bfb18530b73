"""Matrix products: weights packed once for the processor's kernels."""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

TYPICAL_ROWS = 64


class Linear:
    """y = x @ weight.T + bias. weight: [out, in]; x: [T, in] of the weight's type.

    On a CPU, weights are laid out once as oneDNN wants them: up to three times faster for few rows, and a row's result
    does not depend on the number of rows, as it does with other libraries' products. But for a single row of bf16:
    oneDNN adds in another order there, so one row is computed as two, which costs no time.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self.packed = _can_pack(weight.device.type, weight.dtype)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS) if self.packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, in]; returns [T, out]."""
        if x.shape[0] == 1:
            return self(x.expand(2, -1).contiguous())[:1]
        if self.packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return y
        return F.linear(x, self.weight, self.bias)


@cache
def _can_pack(device: str, dtype: torch.dtype) -> bool:
    """Tries it: the operator is one that torch does not promise to keep, and bf16 needs AVX-512. Else F.linear serves."""
    if device != "cpu" or dtype not in (torch.bfloat16, torch.float32):
        return False
    try:
        torch.ops.mkldnn._reorder_linear_weight(torch.zeros(16, 16, dtype=dtype), TYPICAL_ROWS)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True
