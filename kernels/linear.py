"""Matrix products: weights packed once for the processor's kernels."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

TYPICAL_ROWS = 64


class Linear:
    """y = x @ weight.T + bias. weight: [out, in]; x: [T, in] of the weight's type.

    On a CPU, bf16 weights are laid out once as oneDNN wants them: two to three times faster for few rows, and bit for bit
    the result of F.linear. A row's result does not depend on the number of rows, but for a single one, for which oneDNN
    adds in another order: it is computed as two.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self.packed = _can_pack(weight)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS) if self.packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, in]; returns [T, out]."""
        if x.shape[0] == 1:
            return self(x.expand(2, -1).contiguous())[:1]
        if self.packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return y
        return F.linear(x, self.weight, self.bias)


def _can_pack(weight: Tensor) -> bool:
    """Packing is an operator of torch that it does not promise to keep: without it, the plain product serves."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return False
    ops = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and all(hasattr(ops, f) for f in ("_reorder_linear_weight", "_linear_pointwise"))
