"""From token ids to text, exact to the byte."""

import codecs
import json
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ...schemas.errors import InputDataError, Problem

if TYPE_CHECKING:
    import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """The bytes that each token stands for: byte-level BPE, or SentencePiece style with byte tokens.

    Special tokens stand for nothing, and so do ids past the vocabulary (models pad their embedding).
    Raises InputDataError where the tokenizer decodes in another way.
    """

    def __init__(self, backend: "tokenizers.Tokenizer") -> None:
        state = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": "none"}
        kinds = {step["type"] for step in state.get("decoders", [state])}
        if not kinds & {"ByteLevel", "ByteFallback"}:
            hint = "byte-level BPE and SentencePiece with byte fallback are"
            raise InputDataError(Problem("tokenizer", f"decoders {', '.join(sorted(kinds))} are not supported", hint))
        self._byte_level = "ByteLevel" in kinds
        self._backend = backend
        self._known: dict[int, bytes] = {
            token_id: b"" if token.special else token.content.encode()
            for token_id, token in backend.get_added_tokens_decoder().items()
        }

    def __getitem__(self, token_id: int) -> bytes:
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._of(self._backend.id_to_token(token_id))
        return found

    def _of(self, token: str | None) -> bytes:
        if token is None:
            return b""
        if self._byte_level:
            in_alphabet = all(character in _BYTE_OF for character in token)
            return bytes(_BYTE_OF[character] for character in token) if in_alphabet else token.encode()
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()


class Detokenizer:
    """Text of one sequence, token by token; the pieces joined are what `Tokenizer.decode` gives for all ids.

    A character whose bytes are spread over tokens comes out with its last one.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that this token completes; empty while a character is unfinished."""
        return self._decoder.decode(self._token_bytes[token_id])

    def flush(self) -> str:
        """The end of the sequence: a replacement character where a character stayed unfinished, else nothing."""
        return self._decoder.decode(b"", final=True)


def decode(token_bytes: TokenBytes, ids: Iterable[int]) -> str:
    """Text of `ids`; bytes that are not UTF-8 become replacement characters."""
    return b"".join(token_bytes[token_id] for token_id in ids).decode("utf-8", errors="replace")


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level BPE (GPT-2): itself where printable, else one from U+0100 on."""
    printable: Collection[int] = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
