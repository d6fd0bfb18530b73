"""Builds a tokenizer from GGUF metadata.

GGUF keeps the vocabulary and the merges, but of how text is split before merging only a name
(`tokenizer.ggml.pre`). Each is spelled out here as the original tokenizers have it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .gguf_file import GgufFile
from .model_config import GGUF_CONTROL

if TYPE_CHECKING:
    from tokenizers import Tokenizer, pre_tokenizers

_USER_DEFINED = 4  # of tokenizer.ggml.token_type: matched whole in any text

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # GPT-4 style
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")


def tokenizer_from_gguf(file: GgufFile) -> "Tokenizer":
    """The tokenizer of a GGUF file. Raises InputDataError for vocabularies and splits that are not supported."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    meta = file.metadata
    kind, split = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    instead = "or use the Hugging Face folder"
    if kind != "gpt2":
        raise file.error(f"a tokenizer of type {kind} is not read from GGUF", f"byte-level BPE (gpt2) is; {instead}")
    if split not in _SPLITS:
        raise file.error(f"tokenizer splits of type {split} are not supported", f"known are {', '.join(_SPLITS)}; {instead}")
    try:
        tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
        merges = [_pair(merge) for merge in meta["tokenizer.ggml.merges"]]
        vocabulary = {token: i for i, token in enumerate(tokens)}
        backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split == "llama-bpe"))
        added = [
            AddedToken(token, special=kind == GGUF_CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (GGUF_CONTROL, _USER_DEFINED)
        ]
    except KeyError as error:
        raise file.error(f"{error} is missing") from error
    except Exception as error:  # the library raises bare Exception for merges outside the vocabulary
        raise file.error(f"its vocabulary makes no tokenizer: {error}") from error
    if split == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _SPLITS[split]()
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(added)
    return backend


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _gpt2() -> "pre_tokenizers.PreTokenizer":
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> "pre_tokenizers.PreTokenizer":
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _by_regexes(*regexes: str, digits: bool = False) -> "pre_tokenizers.PreTokenizer":
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = [pre_tokenizers.Split(Regex(regex), behavior="isolated") for regex in regexes]
    if digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_SPLITS: "dict[str, Callable[[], pre_tokenizers.PreTokenizer]]" = {
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "qwen2": lambda: _by_regexes(_WORDS % r"\p{N}"),
    "llama-bpe": lambda: _by_regexes(_WORDS % r"\p{N}{1,3}"),
    "deepseek-coder": lambda: _by_regexes(*_DEEPSEEK_CODER, digits=True),
}
