"""The tokenizer: text and chats to token ids and back, by the `tokenizers` library.

Control tokens are the special added tokens, the named ones (begin, end, ...) and any added token in angle brackets,
such as `<tool_call>` or a role marker. The text of one in a user's prompt never becomes that token.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.errors import InputDataError, Problem
from ...schemas.records import Message
from .chat import ChatTemplate, Piece, Rendered
from .detokenizer import Detokenizer, TokenBytes, decode
from .gguf_file import GgufFile
from .gguf_tokenizer import tokenizer_from_gguf
from .model_config import gguf_adds_bos, hf_adds_bos, read_json, token_text

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Detokenizer", "Rendered", "Tokenizer"]

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_GGUF_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_BRACKETED = re.compile(r"<.+>", re.DOTALL)


class Tokenizer:
    """A model's tokenizer and chat template. Made by `load`; immutable, and safe to share between threads."""

    def __init__(
        self, backend: "tokenizers.Tokenizer", named_tokens: Mapping[str, str], chat_template: str | None, add_bos: bool
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._named_tokens = dict(named_tokens)
        self._chat_source = chat_template
        self._control = {
            token_id: token
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special or token.content in self._named_tokens.values() or _BRACKETED.fullmatch(token.content)
        }
        self._plain = _without_control(backend, self._control.keys())
        self._token_bytes = TokenBytes(backend)
        bos = self._named_tokens.get("bos_token")
        self._prefix = (Piece(bos, control=True),) if add_bos and bos else ()

    @classmethod
    def load(cls, location: Path) -> "Tokenizer":
        """From a `.gguf` file or a Hugging Face folder (see `locate`). Raises InputDataError."""
        return cls(*(_read_gguf(location) if location.is_file() else _read_folder(location)))

    @property
    def vocab_size(self) -> int:
        """Number of tokens; the model's embedding may be longer."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def longest_token(self) -> int:
        """Characters of text that one token can stand for, at most."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the control tokens."""
        return frozenset(self._control)

    @property
    def has_chat_template(self) -> bool:
        return self._chat_source is not None

    def encode(self, text: str, allow_special: bool) -> list[int]:
        """Token ids of `text`, nothing added. Control-token text becomes those tokens only with `allow_special`."""
        backend = self._backend if allow_special else self._plain
        return list(backend.encode(text, add_special_tokens=False).ids)

    def encode_rendered(self, prompts: Sequence[Rendered]) -> list[list[int]]:
        """Token ids of many prompts at once, on all cores."""
        ids: dict[Piece, list[int]] = {}
        for control, backend in ((True, self._backend), (False, self._plain)):
            pieces = list({piece for prompt in prompts for piece in prompt.pieces if piece.control == control})
            encodings = backend.encode_batch_fast([piece.text for piece in pieces], add_special_tokens=False)
            ids |= {piece: encoding.ids for piece, encoding in zip(pieces, encodings, strict=True)}
        return [[token_id for piece in prompt.pieces for token_id in ids[piece]] for prompt in prompts]

    def raw(self, text: str) -> Rendered:
        """A prompt that is `text` as it is, after the begin token where the model wants one."""
        return Rendered(text, (*self._prefix, Piece(text, control=False)))

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> Rendered:
        """A prompt by the model's chat template.

        Raises InputDataError where there is no usable template, jinja2.TemplateError where it refuses the messages.
        """
        return self._template.render(messages, add_generation_prompt)

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of `chat`: those of transformers' apply_chat_template where no message holds control-token text."""
        return self.encode_rendered([self.chat(messages, add_generation_prompt)])[0]

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of `raw`."""
        return self.encode_rendered([self.raw(text)])[0]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids` without special tokens; bytes that are not UTF-8 become replacement characters."""
        return decode(self._token_bytes, ids)

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental detokenizer, for one sequence."""
        return Detokenizer(self._token_bytes)

    @cached_property
    def _template(self) -> ChatTemplate:
        from jinja2 import TemplateSyntaxError

        if self._chat_source is None:
            raise InputDataError(Problem("tokenizer", "this model has no chat template", "use prompt_template: raw"))
        control = {
            token.content: r"\s*" * token.lstrip + re.escape(token.content) + r"\s*" * token.rstrip
            for token in self._control.values()
        }
        try:
            return ChatTemplate(self._chat_source, self._named_tokens, control)
        except TemplateSyntaxError as error:
            hint = "use prompt_template: raw"
            raise InputDataError(Problem("chat template", f"line {error.lineno}: {error.message}", hint)) from error


Parts = tuple["tokenizers.Tokenizer", dict[str, str], str | None, bool]


def _without_control(backend: "tokenizers.Tokenizer", control: Iterable[int]) -> "tokenizers.Tokenizer":
    """A twin on the same model that reads the text of control tokens as mere text."""
    from tokenizers import AddedToken, Tokenizer

    control = set(control)
    twin = Tokenizer(backend.model)
    if backend.normalizer:
        twin.normalizer = backend.normalizer
    if backend.pre_tokenizer:
        twin.pre_tokenizer = backend.pre_tokenizer
    # All tokens, in order, so that each gets its own id again; the twin then passes over those called special.
    for token_id, token in sorted(backend.get_added_tokens_decoder().items()):
        flags = {"lstrip": token.lstrip, "rstrip": token.rstrip, "single_word": token.single_word, "normalized": token.normalized}
        twin.add_tokens([AddedToken(token.content, special=token_id in control, **flags)])
        assert twin.token_to_id(token.content) == token_id, f"{token.content} moved"
    twin.encode_special_tokens = True
    return twin


def _read_folder(folder: Path) -> Parts:
    from tokenizers import Tokenizer as Backend
    from tokenizers import normalizers

    path = folder / "tokenizer.json"
    if not path.is_file():
        hint = "load the model's tokenizer with transformers and save it here (save_pretrained)"
        raise InputDataError(Problem(str(folder), "no tokenizer.json", hint))
    content = read_json(path)
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise InputDataError(Problem("tokenizer.json", f"cannot be read: {error}", "fetch it again")) from error
    config = read_json(folder / "tokenizer_config.json", optional=True)
    if config.get("tokenizer_class") in ("Qwen2Tokenizer", "Qwen2TokenizerFast") and backend.normalizer is None:
        backend.normalizer = normalizers.NFC()  # as transformers does for this class, whatever the file says
    texts = {name: token_text(config.get(name)) for name in _NAMED}
    named = {name: text for name, text in texts.items() if text is not None}
    return backend, named, _folder_chat_template(folder, config), hf_adds_bos(content, config)


def _folder_chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template of its own file, else that of the settings; of several, the one called default."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry["name"] == "default"), None)
    return template


def _read_gguf(path: Path) -> Parts:
    file = GgufFile(path)
    backend = tokenizer_from_gguf(file)
    meta = file.metadata
    ids = {name: meta.get(f"tokenizer.ggml.{key}_token_id") for name, key in _GGUF_NAMED.items()}
    tokens = dict(enumerate(meta["tokenizer.ggml.tokens"]))
    named = {name: tokens[token_id] for name, token_id in ids.items() if token_id in tokens}
    return backend, named, meta.get("tokenizer.chat_template"), gguf_adds_bos(meta)
