"""The shape of a model, read from a Hugging Face `config.json` or from GGUF metadata."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.errors import InputDataError, Problem
from .gguf_file import GgufFile

if TYPE_CHECKING:
    import torch

ARCHITECTURES = ("llama", "qwen2")
# Tokens that end a turn or a document: they end a completion even where a model's files forget to say so.
END_TOKENS = frozenset({"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|EOT|>"})
GGUF_CONTROL = 3  # the value of tokenizer.ggml.token_type for control tokens


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are changed for long contexts.

    linear: all divided by `factor`. llama3: those of long wavelengths divided by `factor`, with a ramp between
    (Llama 3.1). factors: each divided by its own of `factors`, [head_dim / 2], the form GGUF keeps llama3 in.
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_context: int = 8192
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the engine must know of a model. Raises InputDataError where the numbers do not fit each other."""

    architecture: str  # one of ARCHITECTURES
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_context: int
    tie_embeddings: bool
    qkv_bias: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool  # a raw prompt starts with bos_id

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim", "max_context")
        problems = [f"{name} is {getattr(self, name)}, not positive" for name in sizes if getattr(self, name) < 1]
        if not problems and self.heads % self.kv_heads:
            problems.append(f"{self.heads} heads do not divide into {self.kv_heads} key-value heads")
        if self.head_dim % 2:
            problems.append(f"head_dim is {self.head_dim}, but rotary embedding needs pairs")
        if problems:
            raise InputDataError(*(Problem("model configuration", problem) for problem in problems))

    def context(self, wanted: int | None) -> int:
        """Tokens that a sequence may have: the model's own bound, or less where a job wants less."""
        return min(wanted or self.max_context, self.max_context)

    def inverse_frequencies(self) -> "torch.Tensor":
        """Rotary frequencies in radians a position, float32, [head_dim / 2], with the scaling applied."""
        import torch

        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        plain = 1.0 / (self.rope_theta**exponents)
        scaling = self.rope_scaling
        if scaling is None:
            return plain
        if scaling.kind == "linear":
            return plain / scaling.factor
        if scaling.kind == "factors":
            return plain / torch.tensor(scaling.factors, dtype=torch.float32)
        turns = scaling.original_max_context * plain / (2 * math.pi)  # full turns within the original context
        kept = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
        return kept * plain + (1 - kept) * plain / scaling.factor


def config_from_hf(folder: Path) -> ModelConfig:
    """Reads config.json and what belongs to it, old and new spellings. Raises InputDataError for what is not supported."""
    raw = read_json(folder / "config.json")
    where = "config.json"
    architecture = _known(raw.get("model_type"), where)
    _refuse_unsupported(raw)
    try:
        heads = int(raw["num_attention_heads"])
        hidden_size = int(raw["hidden_size"])
        tokenizer_config = read_json(folder / "tokenizer_config.json", optional=True)
        tokenizer = read_json(folder / "tokenizer.json", optional=True)
        return ModelConfig(
            architecture=architecture,
            vocab_size=int(raw["vocab_size"]),
            hidden_size=hidden_size,
            intermediate_size=int(raw["intermediate_size"]),
            layers=int(raw["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or hidden_size // max(heads, 1)),
            rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=float(_rope(raw).get("rope_theta") or raw.get("rope_theta") or 10000.0),
            rope_scaling=_hf_scaling(_rope(raw)),
            max_context=int(raw["max_position_embeddings"]),
            tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "qwen2" or bool(raw.get("attention_bias", False)),
            eos_ids=_hf_end_ids(folder, raw, tokenizer, tokenizer_config),
            bos_id=raw.get("bos_token_id"),
            add_bos=hf_adds_bos(tokenizer, tokenizer_config),
        )
    except KeyError as error:
        raise InputDataError(Problem(where, f"the key {error} is missing", "fetch the model again")) from error
    except (TypeError, ValueError) as error:
        raise InputDataError(Problem(where, f"a value is of the wrong type: {error}")) from error


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Reads the metadata. Raises InputDataError for what is missing or not supported."""
    meta = file.metadata
    architecture = _known(meta.get("general.architecture"), file.path.name)

    def key(name: str) -> Any:
        return meta.get(f"{architecture}.{name}")

    if key("expert_count"):
        raise file.error("mixtures of experts are not supported", "use a dense model")
    try:
        heads, hidden_size = int(meta[f"{architecture}.attention.head_count"]), int(meta[f"{architecture}.embedding_length"])
        head_dim = int(key("attention.key_length") or hidden_size // max(heads, 1))
        if key("rope.dimension_count") not in (None, head_dim) or key("attention.value_length") not in (None, head_dim):
            raise file.error("partly rotated heads, or values of another size than keys, are not supported", "use another model")
        return ModelConfig(
            architecture=architecture,
            vocab_size=file.tensors["token_embd.weight"].shape[0],
            hidden_size=hidden_size,
            intermediate_size=int(meta[f"{architecture}.feed_forward_length"]),
            layers=int(meta[f"{architecture}.block_count"]),
            heads=heads,
            kv_heads=int(key("attention.head_count_kv") or heads),
            head_dim=head_dim,
            rms_eps=float(meta[f"{architecture}.attention.layer_norm_rms_epsilon"]),
            rope_theta=float(key("rope.freq_base") or 10000.0),
            rope_scaling=_gguf_scaling(file, architecture),
            max_context=int(meta[f"{architecture}.context_length"]),
            tie_embeddings="output.weight" not in file.tensors,
            qkv_bias="blk.0.attn_q.bias" in file.tensors,
            eos_ids=_gguf_end_ids(meta),
            bos_id=meta.get("tokenizer.ggml.bos_token_id"),
            add_bos=gguf_adds_bos(meta),
        )
    except KeyError as error:
        raise file.error(f"{error} is missing") from error
    except TypeError as error:
        raise file.error(f"a metadata value is of the wrong type: {error}") from error


def hf_adds_bos(tokenizer: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> bool:
    """Whether a plain text starts with the begin token: what the tokenizer's settings say, else its own template."""
    if isinstance(setting := tokenizer_config.get("add_bos_token"), bool):
        return setting
    processor = tokenizer.get("post_processor") or {}
    steps = processor.get("processors", [processor])
    return any("SpecialToken" in template for step in steps for template in (step.get("single") or [])[:1])


def gguf_adds_bos(metadata: Mapping[str, Any]) -> bool:
    """As `hf_adds_bos`. Where the file does not say: SentencePiece and Llama 3 vocabularies do (as in llama.cpp)."""
    default = metadata.get("tokenizer.ggml.model") == "llama" or metadata.get("tokenizer.ggml.pre") == "llama-bpe"
    return bool(metadata.get("tokenizer.ggml.add_bos_token", default))


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """A JSON object; an empty one where an optional file is missing. Raises InputDataError where it is damaged."""
    if optional and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputDataError(Problem(str(path), f"cannot be read: {error}", "fetch the model again")) from error
    if not isinstance(value, dict):
        raise InputDataError(Problem(str(path), "not a JSON object", "fetch the model again"))
    return value


def _known(architecture: str | None, where: str) -> str:
    if not architecture:
        raise InputDataError(Problem(where, "does not say which architecture the model has", "fetch the model again"))
    if architecture not in ARCHITECTURES:
        hint = f"the known ones are {', '.join(ARCHITECTURES)}"
        raise InputDataError(Problem(where, f"the architecture {architecture} is not supported", hint))
    return architecture


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    """Names each setting that would change the arithmetic in a way the engine does not know."""
    rope = _rope(raw)
    checks = {
        f"hidden_act {raw.get('hidden_act')}": raw.get("hidden_act", "silu") != "silu",
        "use_sliding_window": bool(raw.get("use_sliding_window")),
        "mlp_bias": bool(raw.get("mlp_bias")),
        "quantization_config": bool(raw.get("quantization_config")),
        "partial_rotary_factor": rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0,
    }
    problems = [Problem("config.json", f"{name} is not supported", "use another model") for name, bad in checks.items() if bad]
    if problems:
        raise InputDataError(*problems)


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings: `rope_parameters` since transformers 5, `rope_scaling` before."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _hf_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", float(rope["factor"]))
    if kind == "llama3":
        frequencies = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        return RopeScaling("llama3", float(rope["factor"]), *frequencies, int(rope["original_max_position_embeddings"]))
    raise InputDataError(Problem("config.json", f"rotary scaling of type {kind} is not supported", "linear and llama3 are"))


def _gguf_scaling(file: GgufFile, architecture: str) -> RopeScaling | None:
    kind = file.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise file.error(f"rotary scaling of type {kind} is not supported", "linear and llama3 are")
    if "rope_freqs.weight" in file.tensors:
        import torch

        factors = torch.empty(file.tensors["rope_freqs.weight"].shape)
        file.read_into("rope_freqs.weight", factors)
        return RopeScaling("factors", factors=tuple(factors.tolist()))
    if kind == "linear":
        return RopeScaling("linear", float(file.metadata[f"{architecture}.rope.scaling.factor"]))
    return None


def _hf_end_ids(
    folder: Path, raw: Mapping[str, Any], tokenizer: Mapping[str, Any], tokenizer_config: Mapping[str, Any]
) -> tuple[int, ...]:
    generation = read_json(folder / "generation_config.json", optional=True)
    named = {token_text(tokenizer_config.get("eos_token"))} | END_TOKENS
    added = tokenizer.get("added_tokens", [])
    by_name = [token["id"] for token in added if token["content"] in named]
    return _ids(raw.get("eos_token_id"), generation.get("eos_token_id"), by_name)


def _gguf_end_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    tokens, kinds = metadata.get("tokenizer.ggml.tokens", []), metadata.get("tokenizer.ggml.token_type", [])
    by_name = [
        i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind == GGUF_CONTROL and token in END_TOKENS
    ]
    settings = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return _ids(*settings, by_name)


def _ids(*sources: int | Iterable[int] | None) -> tuple[int, ...]:
    """All ids once, rising."""
    found: set[int] = set()
    for source in sources:
        found |= set() if source is None else {source} if isinstance(source, int) else set(source)
    return tuple(sorted(found))


def token_text(token: Any) -> str | None:
    """The text of a token in tokenizer_config.json, where it is a string or an object with `content`."""
    return token.get("content") if isinstance(token, dict) else token
