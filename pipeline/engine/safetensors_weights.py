"""Tensors of a Hugging Face folder: one safetensors file or the shards of an index."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.errors import InputDataError, Problem
from .locations import weight_files
from .model_config import ModelConfig

if TYPE_CHECKING:
    import torch

_TOP = {"embed.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "lm_head.weight": "lm_head.weight"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_FLOATS = ("F64", "F32", "F16", "BF16")
_OLD_BUFFER = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")  # saved by old versions, computed since


class SafetensorsWeights:
    """See weights.WeightSource. The files are mapped into memory. Raises InputDataError where one is damaged."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self._files: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name in weight_files(folder):
            self._open(folder / name)
        tied = {"lm_head.weight"} if config.tie_embeddings else set()
        self.ignored = frozenset(tied | {name for name in self.shapes if _OLD_BUFFER.fullmatch(name)})

    def name_of(self, part: str) -> str:
        if part in _TOP:
            return _TOP[part]
        _, layer, kind, ending = part.split(".")
        return f"model.layers.{layer}.{_LAYER[kind]}.{ending}"

    def read_into(self, name: str, out: "torch.Tensor") -> None:
        out.copy_(self._files[name].get_tensor(name))

    def _open(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            file: Any = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise InputDataError(Problem(path.name, f"damaged or truncated: {error}", "fetch it again")) from error
        for name in file.keys():  # noqa: SIM118  # not a mapping
            header = file.get_slice(name)
            if header.get_dtype() not in _FLOATS:
                message = f"tensor {name} is of type {header.get_dtype()}"
                raise InputDataError(Problem(path.name, message, f"supported are {', '.join(_FLOATS)}"))
            self._files[name] = file
            self.shapes[name] = tuple(header.get_shape())
