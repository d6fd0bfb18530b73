"""Loads a model: its configuration and its weights, under our names and with our fusions.

Weights: `embed.weight` [vocab, hidden] · for each layer i: `layers.i.attn_norm.weight` [hidden],
`layers.i.qkv.weight` [(heads + 2 kv_heads) head_dim, hidden] (rows of q, then k, then v), `layers.i.qkv.bias` where the
model has one, `layers.i.o.weight` [hidden, heads head_dim], `layers.i.mlp_norm.weight`, `layers.i.gate_up.weight`
[2 intermediate, hidden] (gate, then up), `layers.i.down.weight` [hidden, intermediate] · `norm.weight` ·
`lm_head.weight` [vocab, hidden], the same tensor as `embed.weight` where they are tied.

Rows of q and k are in the order of Hugging Face: a head's first half rotates with its second half.
Norms are float32; all else has the type asked for.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...schemas.errors import InputDataError, Problem
from .gguf_file import GgufFile
from .locations import locate, model_identity
from .model_config import ModelConfig, RopeScaling, config_from_gguf, config_from_hf

if TYPE_CHECKING:
    import torch

__all__ = ["LoadedModel", "ModelConfig", "RopeScaling", "check_model", "load_config", "load_model", "locate", "model_identity"]

_GGUF_TOP = {"embed.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
_GGUF_LAYER = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_SHOWN = 5  # names of one kind of problem that an error lists


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory. The tensors belong to the caller; a tied head shares the embedding's storage."""

    config: ModelConfig
    weights: "dict[str, torch.Tensor]"


class WeightSource(Protocol):
    """Tensors of one file format. `shapes` holds the format's own names; `ignored` are those that need no reading."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def ignored(self) -> frozenset[str]: ...

    def name_of(self, part: str) -> str:
        """The format's name of one of our parts, such as `layers.0.q.weight`."""

    def read_into(self, name: str, out: "torch.Tensor") -> None:
        """Reads the tensor of that name into `out`, contiguous and of its shape, converting the type."""


def load_config(location: Path) -> ModelConfig:
    """The configuration alone. Raises InputDataError."""
    return config_from_gguf(GgufFile(location)) if location.is_file() else config_from_hf(location)


def check_model(location: Path) -> None:
    """Reads headers alone: whether all tensors are there, in shapes and types that can be read. Raises InputDataError."""
    _open(location)


def load_model(location: Path, dtype: "torch.dtype") -> LoadedModel:
    """Loads configuration and weights from a `.gguf` file or a Hugging Face folder (see `locate`).

    Peak memory is the weights in `dtype`, a few megabytes of work space, and the file's pages in the page cache.
    Raises InputDataError for damaged files, unknown architectures and missing, unknown or misshaped tensors.
    """
    config, source, plan = _open(location)
    return LoadedModel(config, _fill(source, plan, dtype, config))


def _open(location: Path) -> "tuple[ModelConfig, WeightSource, dict[str, Parts]]":
    """The configuration, the files, and where each of our tensors is found in them."""
    if location.is_file():
        file = GgufFile(location)
        config = config_from_gguf(file)
        source: WeightSource = GgufWeights(file, config)
    else:
        from .safetensors_weights import SafetensorsWeights

        config = config_from_hf(location)
        source = SafetensorsWeights(location, config)
    if config.layers > len(source.shapes):
        raise InputDataError(Problem("model weights", f"{len(source.shapes)} tensors cannot make {config.layers:,} layers"))
    plan: dict[str, Parts] = {name: list(parts) for name, parts in _plan(config)}
    _check(source, plan)
    return config, source, plan


class GgufWeights:
    """Tensors of a GGUF file. Undoes llama.cpp's order of the rotary rows, which it gives to Llama models only."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self.shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
        self.ignored = frozenset({"rope_freqs.weight"})  # read with the configuration
        self._heads = {"attn_q": config.heads, "attn_k": config.kv_heads} if config.architecture == "llama" else {}

    def name_of(self, part: str) -> str:
        if part in _GGUF_TOP:
            return _GGUF_TOP[part]
        _, layer, kind, ending = part.split(".")
        return f"blk.{layer}.{_GGUF_LAYER[kind]}.{ending}"

    def read_into(self, name: str, out: "torch.Tensor") -> None:
        self._file.read_into(name, out)
        heads = self._heads.get(name.split(".")[-2])
        if heads:
            out.copy_(half_rotation_order(out, heads))


def half_rotation_order(rows: "torch.Tensor", heads: int) -> "torch.Tensor":
    """Rows [heads × head_dim, ...] whose rotary partners are neighbours, reordered to lie half a head apart (a copy)."""
    pairs = rows.view(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape).clone()


Parts = Sequence[tuple[str, tuple[int, ...]]]


def _plan(config: ModelConfig) -> Iterator[tuple[str, Parts]]:
    """Each of our tensors with the parts, and their shapes, that are stacked along its rows."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield "embed.weight", [("embed.weight", (config.vocab_size, hidden))]
    if not config.tie_embeddings:
        yield "lm_head.weight", [("lm_head.weight", (config.vocab_size, hidden))]
    for i in range(config.layers):
        at = f"layers.{i}"
        yield f"{at}.attn_norm.weight", [(f"{at}.attn_norm.weight", (hidden,))]
        projections = (("q", q), ("k", kv), ("v", kv))
        yield f"{at}.qkv.weight", [(f"{at}.{part}.weight", (rows, hidden)) for part, rows in projections]
        if config.qkv_bias:
            yield f"{at}.qkv.bias", [(f"{at}.{part}.bias", (rows,)) for part, rows in projections]
        yield f"{at}.o.weight", [(f"{at}.o.weight", (hidden, q))]
        yield f"{at}.mlp_norm.weight", [(f"{at}.mlp_norm.weight", (hidden,))]
        yield f"{at}.gate_up.weight", [(f"{at}.{part}.weight", (inner, hidden)) for part in ("gate", "up")]
        yield f"{at}.down.weight", [(f"{at}.down.weight", (hidden, inner))]
    yield "norm.weight", [("norm.weight", (hidden,))]


def _check(source: WeightSource, plan: Mapping[str, Parts]) -> None:
    """Raises InputDataError with the names of all tensors that are missing, unknown or misshaped."""
    wanted = {source.name_of(part): shape for parts in plan.values() for part, shape in parts}
    missing = [name for name in wanted if name not in source.shapes]
    extra = [name for name in source.shapes if name not in wanted and name not in source.ignored]
    misshaped = [
        f"{name} is {list(source.shapes[name])}, should be {list(shape)}"
        for name, shape in wanted.items()
        if name in source.shapes and source.shapes[name] != shape
    ]
    problems = []
    for what, names in (("missing", missing), ("not part of this architecture", extra), ("of the wrong shape", misshaped)):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            problems.append(Problem("model weights", f"tensors {what}: {', '.join(names[:_SHOWN])}{more}"))
    if problems:
        raise InputDataError(*problems)


def _fill(
    source: WeightSource, plan: Mapping[str, Parts], dtype: "torch.dtype", config: ModelConfig
) -> "dict[str, torch.Tensor]":
    """Allocates each tensor and reads its parts into place, a few at a time."""
    import torch

    weights = {}
    reads = []
    for name, parts in plan.items():
        rows = sum(shape[0] for _, shape in parts)
        weights[name] = torch.empty((rows, *parts[0][1][1:]), dtype=torch.float32 if "norm" in name else dtype)
        slices = torch.split(weights[name], [shape[0] for _, shape in parts])
        reads += [(source.name_of(part), out) for (part, _), out in zip(parts, slices, strict=True)]
    reads.sort(key=lambda read: read[1].numel(), reverse=True)  # the longest first, so that none is left over
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(lambda read: source.read_into(*read), reads):
            pass
    if config.tie_embeddings:
        weights["lm_head.weight"] = weights["embed.weight"]
    return weights
