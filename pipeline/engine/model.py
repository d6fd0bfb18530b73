"""The forward pass of Llama and Qwen2 models over packed rows: no padding, prefill and decode in the same products."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ...kernels.kv import KvPool, StepRows
from ...kernels.ops import Linear, Ops
from .model_config import ModelConfig


class Layer:
    """One decoder block's weights, packed for the device."""

    def __init__(self, weights: dict[str, Tensor], prefix: str) -> None:
        def take(name: str) -> Tensor:
            return weights.pop(prefix + name)

        self.attn_norm, self.mlp_norm = take("attn_norm.weight"), take("mlp_norm.weight")
        self.qkv = Linear(take("qkv.weight"), weights.pop(prefix + "qkv.bias", None))
        self.o, self.gate_up, self.down = (Linear(take(f"{name}.weight")) for name in ("o", "gate_up", "down"))


class Model:
    """A dense decoder. The residual stream is float32; products are of the weights' type."""

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor], ops: Ops, max_context: int) -> None:
        """Takes over `weights` (weights.py names them) and empties it, so that no tensor is kept twice."""
        self.config, self.ops = config, ops
        self.embed = weights.pop("embed.weight")
        self.norm = weights.pop("norm.weight")
        self.head = weights.pop("lm_head.weight")  # [V, C]; the embedding itself where they are tied
        self.layers = [Layer(weights, f"layers.{i}.") for i in range(config.layers)]
        assert not weights, f"weights without a place: {sorted(weights)}"
        self.lm_head = Linear(self.head)
        angles = torch.arange(max_context, dtype=torch.float32)[:, None] * config.inverse_frequencies()
        self.cos, self.sin = angles.cos(), angles.sin()  # [max_context, D/2]

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    def forward(self, tokens: Tensor, rows: StepRows, pool: KvPool) -> Tensor:
        """tokens: [T] int64. Writes keys and values to the pool; returns the last layer's output, [T, C] float32."""
        ops, eps = self.ops, self.config.rms_eps
        x = F.embedding(tokens, self.embed).float()
        for i, layer in enumerate(self.layers):
            qkv = layer.qkv(ops.rms_norm(x, layer.attn_norm, eps, self.dtype))
            q = ops.rope_append(qkv, self.cos, self.sin, pool, i, rows)
            ops.seal_pages(pool, i, rows)
            x += layer.o(ops.paged_attention(q, pool, i, rows, self.dtype))
            gate_up = layer.gate_up(ops.rms_norm(x, layer.mlp_norm, eps, self.dtype))
            x += layer.down(ops.silu_mul(gate_up))
        return x

    def no_rows(self) -> Tensor:
        """What forward returns for no tokens, [0, C]."""
        return torch.empty(0, self.config.hidden_size)

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [S, C] from forward. Returns the normed rows [S, C] and their logits [S, V], of the weights' type."""
        hidden = self.ops.rms_norm(x, self.norm, self.config.rms_eps, self.dtype)
        return hidden, self.lm_head(hidden)

    def exact_logits(self, x: Tensor) -> Tensor:
        """Logits in float32, [S, V]: slower, for measuring."""
        hidden = self.ops.rms_norm(x, self.norm, self.config.rms_eps, torch.float32)
        return hidden @ self.head.float().T
