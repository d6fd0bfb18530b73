"""Chat templates: renders messages as transformers does, and keeps control-token text inside a message apart.

A template is code from a stranger: it runs in Jinja's immutable sandbox.
"""

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from ...schemas.records import Message

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text that is encoded by itself: with the control tokens it spells, or as mere text."""

    text: str
    control: bool


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as text, and the pieces that it is encoded from."""

    text: str
    pieces: tuple[Piece, ...]


def sandbox(**options: Any) -> "ImmutableSandboxedEnvironment":
    """A Jinja environment with what chat templates rely on: the settings, filters and globals of transformers."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **layout)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], **options)
    environment.filters["tojson"] = tojson  # Jinja's own escapes for HTML
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


class ChatTemplate:
    """A model's chat template.

    `named_tokens` are handed to the template (bos_token, eos_token, ...); `control` are the texts of control tokens,
    each with a pattern that matches it together with the white space it swallows. Raises jinja2.TemplateSyntaxError.
    """

    def __init__(self, source: str, named_tokens: Mapping[str, str], control: Mapping[str, str]) -> None:
        self._template = sandbox().from_string(source)
        self._named_tokens = dict(named_tokens)
        self._text = alternation([re.escape(text) for text in control])
        self._tokens = alternation(control.values())

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> Rendered:
        """Renders the messages. Raises jinja2.TemplateError where the template refuses them.

        Text of control tokens in a message would become those tokens. It is hidden behind a nonce while the template
        runs; the result is then cut at the template's own control tokens, and the text between encoded as mere text.
        """
        if not any(self._text.search(part) for message in messages for part in (message.role, message.content)):
            text = self._apply(messages, add_generation_prompt)
            return Rendered(text, (Piece(text, control=True),))
        nonce = secrets.token_hex(16)  # unguessable, so nothing in a message can pose as one
        hidden: list[str] = []

        def hide(match: re.Match[str]) -> str:
            hidden.append(match[0])
            return f"[{nonce}:{len(hidden) - 1}]"

        def show(text: str) -> str:
            return re.sub(rf"\[{nonce}:(\d+)\]", lambda match: hidden[int(match[1])], text)

        safe = [Message(self._text.sub(hide, message.role), self._text.sub(hide, message.content)) for message in messages]
        text = self._apply(safe, add_generation_prompt)
        pieces, end = [], 0
        for token in self._tokens.finditer(text):
            pieces += [Piece(show(text[end : token.start()]), control=False), Piece(token[0], control=True)]
            end = token.end()
        pieces.append(Piece(show(text[end:]), control=False))
        return Rendered(show(text), tuple(piece for piece in pieces if piece.text))

    def _apply(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        return self._template.render(
            messages=turns, add_generation_prompt=add_generation_prompt, tools=None, documents=None, **self._named_tokens
        )


def alternation(patterns: Collection[str]) -> re.Pattern[str]:
    """A pattern that matches any of `patterns`, the longest first; nothing where there are none."""
    return re.compile("|".join(sorted(patterns, key=len, reverse=True)) or r"(?!)")
