"""From a completion's text to pieces that may be code: cleaning, reasoning, Markdown fences. Linear in the text."""

import re
from dataclasses import dataclass

_SPECIAL = r"(?:<\|[A-Za-z0-9_]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</s>|<eos>|<end_of_turn>|<EOT>)"
_TRAILING_SPECIAL = re.compile(rf"{_SPECIAL}\s*\Z")
_INNER_SPECIAL = re.compile(r"<\|(?:endoftext|im_end|eot_id|end_of_text|end)\|>|<｜end▁of▁sentence｜>")
_LEADING_SPECIAL = re.compile(rf"\s{{0,20}}(?:{_SPECIAL}|<s>)\n?")
_OPEN_THOUGHT = re.compile(r"^[ \t]*<(think|thinking|reasoning|thought)>", re.MULTILINE | re.IGNORECASE)
_CLOSE_THOUGHT = re.compile(
    r"</(?:think|thinking|reasoning|thought)>[ \t]*$|^[ \t]*</(?:think|thinking|reasoning|thought)>", re.M | re.I
)
_FENCE = re.compile(r"^(?P<lead>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<mark>`{3,}|~{3,})(?P<info>[^\n]*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of a completion."""

    text: str
    tag: str  # the fence's first word in lower case; empty without one
    fenced: bool
    closed: bool = True  # False for a fence that the completion's end cut off


def clean(completion: str) -> str:
    """Line ends become \\n; byte-order mark, NULs, lone surrogates and special tokens at either end go."""
    text = completion.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").removeprefix("\ufeff")
    text = text.encode("utf-8", "replace").decode("utf-8")
    start, end = 0, len(text)
    while found := _TRAILING_SPECIAL.search(text, max(0, end - 200), end):
        end = found.start()
    while found := _LEADING_SPECIAL.match(text, start, end):
        start = found.end()
    return text[start:end]


def before_special(text: str) -> str:
    """The text up to the first end token inside it."""
    found = _INNER_SPECIAL.search(text)
    return text[: found.start()] if found else text


def without_reasoning(text: str) -> str:
    """The text without what stands between reasoning tags; an opening tag without its end hides all that follows, and
    an end without its beginning (the prompt held it) all that came before."""
    kept: list[str] = []
    at = 0
    while opened := _OPEN_THOUGHT.search(text, at):
        kept.append(text[at : opened.start()])
        closed = re.compile(f"</{opened[1]}>", re.IGNORECASE).search(text, opened.end())
        at = closed.end() if closed else len(text)
    rest = "".join(kept) + text[at:]
    stray = [m.end() for m in _CLOSE_THOUGHT.finditer(rest)]
    return rest[stray[-1] :] if stray else rest


def split(text: str) -> list[Block]:
    """Fenced blocks and the text between them, in order.

    Fences as CommonMark has them, and more leniently: inside list items at any depth, with their content's common
    indentation removed. A fence that opens and never closes reaches to the end.
    """
    blocks: list[Block] = []
    lines: list[str] = []
    opened: re.Match[str] | None = None
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if opened is None and found and not (found["mark"][0] == "`" and "`" in found["info"]):
            blocks.append(Block("\n".join(lines), "", fenced=False))
            lines, opened = [], found
        elif opened is not None and found and _closes(opened, found):
            blocks.append(_fenced(opened, lines, closed=True))
            lines, opened = [], None
        else:
            lines.append(line)
    blocks.append(Block("\n".join(lines), "", fenced=False) if opened is None else _fenced(opened, lines, closed=False))
    return [b for b in blocks if b.text.strip()]


def _closes(opened: re.Match[str], found: re.Match[str]) -> bool:
    mark = opened["mark"]
    blank_lead = not found["lead"].strip()
    return blank_lead and found["mark"][0] == mark[0] and len(found["mark"]) >= len(mark) and not found["info"].strip()


def _fenced(opened: re.Match[str], lines: list[str], closed: bool) -> Block:
    width = len(opened["lead"].expandtabs(4))
    stripped = [line[min(width, len(line) - len(line.lstrip(" "))) :] for line in lines] if width else lines
    words = opened["info"].strip().split()
    tag = words[0].strip("{}.").lower() if words else ""
    return Block("\n".join(stripped), tag, fenced=True, closed=closed)
