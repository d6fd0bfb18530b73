"""Extraction: what a model says → the program that is judged. Each case is checked by running what was extracted."""

import time
from typing import Any

import pytest
from codegen_batch.pipeline.validate.blocks import split, without_reasoning
from codegen_batch.pipeline.validate.extract import extract
from codegen_batch.schemas.records import Message, Task

HELPER = "from typing import List\n\n\ndef half(n: int) -> int:\n    return n // 2\n\n\n"
PROMPT = HELPER + 'def area(sides: List[int]) -> int:\n    """Doc."""\n'
BODY = "    total = 1\n    for side in sides:\n        total *= side\n    return total\n"
GOOD = "def area(sides):\n    total = 1\n    for side in sides:\n        total *= side\n    return total\n"
BAD = "def area(sides):\n    return 0\n"


def task(prompt: str | None = None, **fields: Any) -> Task:
    return Task("t", "s.parquet", 0, prompt=prompt, **{"entry_point": "area", "test_kind": "check", **fields})


def run(code: str | None) -> dict[str, Any]:
    assert code is not None
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(code, namespace)
    return namespace


WHOLE = {
    "bare": GOOD,
    "bare with a lone closing fence": GOOD + "```\n",
    "lone closing fence, then prose": GOOD + "```\nThis multiplies the sides. It isn't hard.\n",
    "no language tag": f"Here:\n```\n{GOOD}```\n",
    "py tag": f"```py\n{GOOD}```",
    "python3 tag": f"```python3\n{GOOD}```",
    "Python tag, capital": f"```Python\n{GOOD}```",
    "tag with attributes": f"```python title=area.py\n{GOOD}```",
    "tilde fence": f"~~~python\n{GOOD}~~~\n",
    "four backticks": f"````python\n{GOOD}````\n",
    "fence in a list item": "1. First:\n\n   ```python\n"
    + "".join(f"   {line}\n" for line in GOOD.splitlines())
    + "   ```\n2. Done\n",
    "fence on the item's line": "- ```python\n" + "".join(f"  {line}\n" for line in GOOD.splitlines()) + "  ```\n",
    "unclosed final fence": f"Sure!\n```python\n{GOOD}",
    "wrong draft, corrected version": f"```python\n{BAD}```\nCorrected version:\n```python\n{GOOD}```\n",
    "answer, then a usage example": f"```python\n{GOOD}```\nUse it:\n```python\nprint(area([2, 3]))\n```\n",
    "answer, then shell": f"```python\n{GOOD}```\nRun:\n```bash\npython area.py\n```\n",
    "draft in reasoning": f"<think>\n{BAD}\nhmm ```python\n{BAD}```\n</think>\n{GOOD}",
    "draft in reasoning, fenced answer": f"<think>maybe {BAD}</think>\n\n```python\n{GOOD}```",
    "reasoning begun by the prompt": f"Try ```python\n{BAD}``` no.\n</think>\n```python\n{GOOD}```",
    "imports apart": "```python\nimport math\n```\nand\n```python\ndef area(sides):\n    return math.prod(sides)\n```\n",
    "helper in a later block": "```python\ndef area(sides):\n    return prod(sides)\n```\n```python\ndef prod(xs):\n    r = 1\n"
    "    for x in xs: r *= x\n    return r\n```\n",
    "imports only in the draft": f"```python\nimport math\n{BAD}```\nBetter:\n"
    "```python\ndef area(sides):\n    return math.prod(sides)\n```",
    "defined twice": BAD + GOOD,
    "try import": "try:\n    import numpyyy as np\nexcept ImportError:\n    np = None\n" + GOOD,
    "main block and demo prints": GOOD + '\nx = area([1])\nif __name__ == "__main__":\n    raise SystemExit(1)\n',
    "endoftext": GOOD + "<|endoftext|>",
    "im_end twice": f"```python\n{GOOD}```<|im_end|>\n<|im_end|>",
    "text after endoftext": GOOD + "<|endoftext|>import gibberish from nowhere\n",
    "byte-order mark": "\ufeff" + GOOD,
    "CRLF": GOOD.replace("\n", "\r\n"),
    "tabs": GOOD.replace("    ", "\t"),
    "NUL": GOOD.replace("total = 1", "total = 1\0"),
    "lone surrogate": "# \ud800\n" + GOOD,
    "prose before and after": f"Here is the function:\n\n{GOOD}\nIt multiplies the sides, that's all.\n",
    "indented whole": "".join(f"    {line}\n" for line in GOOD.splitlines()),
    "lambda": "area = lambda sides: __import__('math').prod(sides)\n",
    "from __future__": "from __future__ import annotations\n" + GOOD,
    "async helper": "async def other():\n    pass\n\n" + GOOD,
    "a fence in the docstring of a fenced block": '```python\ndef area(sides):\n    """Doc.\n\n    ```python\n    area([1])\n'
    '    ```\n    """\n    return __import__("math").prod(sides)\n```\nDone.\n',
    "reasoning tags in a string": GOOD + 'TAGS = """\n<think>\n</think>\n"""\n',
}


@pytest.mark.parametrize("prompt", [None, PROMPT], ids=["no prompt", "prompt code"])
@pytest.mark.parametrize("completion", WHOLE.values(), ids=WHOLE.keys())
def test_whole_function(completion: str, prompt: str | None) -> None:
    namespace = run(extract(completion, task(prompt)).code)
    assert namespace["area"]([2, 3, 4]) == 24
    assert prompt is None or namespace["half"](4) == 2


BODIES = {
    "as it is": BODY,
    "a space too many": " " + BODY,
    "a space too few": BODY[1:],
    "first line flush": BODY.lstrip(),
    "dedented": "total = 1\nfor side in sides:\n    total *= side\nreturn total\n",
    "leading newline": "\n" + BODY,
    "whole function repeated": GOOD,
    "prompt repeated": PROMPT + BODY,
    "body in a fence": f"```python\n{BODY}```",
    "closing fence": BODY + "```\n",
    "closing fence and prose": BODY + "```\n\nIt's a product.\n",
    "trailing prose": BODY + "\nThis function doesn't do more.\n",
    "trailing demo": BODY + "\nprint(area([2]))\n",
    "trailing function": BODY + "\n\ndef other():\n    return 1\n",
    "truncated next function": BODY + "\n\ndef other(a, b):\n    return (a +\n",
    "endoftext": BODY + "<|endoftext|>",
    "CRLF": BODY.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("completion", BODIES.values(), ids=BODIES.keys())
def test_body_of_the_prompt(completion: str) -> None:
    namespace = run(extract(completion, task(PROMPT)).code)
    assert namespace["area"]([2, 3, 4]) == 24
    assert namespace["half"](4) == 2


def test_prompt_in_a_chat_message_gives_its_helpers() -> None:
    chat = task(messages=(Message("user", f"Complete this:\n```python\n{PROMPT}```\n"),))
    namespace = run(extract("```python\ndef area(sides):\n    return half(sides[0])\n```", chat).code)
    assert namespace["area"]([8]) == 4


KEPT = {
    "decorator": ("from functools import lru_cache\n@lru_cache(None)\ndef area(n):\n    return n\n", "@lru_cache(None)"),
    "generator helper": ("def parts(xs):\n    yield from xs\n\ndef area(xs):\n    return list(parts(xs))\n", "yield from"),
    "helper that only mutates": (
        "SEEN = []\ndef note(x):\n    SEEN.append(x)\n\ndef area(x):\n    note(x)\n    return x\n",
        "SEEN.append",
    ),
    "top-level statements": ("import sys\nsys.setrecursionlimit(5000)\ndef area(x):\n    return x\n", "setrecursionlimit"),
}


@pytest.mark.parametrize(
    "wrap", ["{}", "```python\n{}```\n", "Sure, it's this:\n\n{}\nThat's it, isn't it?\n"], ids=["bare", "fence", "prose"]
)
@pytest.mark.parametrize(("code", "kept"), KEPT.values(), ids=KEPT.keys())
def test_code_is_kept(code: str, kept: str, wrap: str) -> None:
    found = extract(wrap.format(code), task()).code
    assert found is not None
    assert kept in found


@pytest.mark.parametrize(
    "completion",
    ["", "   \n", "I'm sorry, I can't.", f"<think>\n{GOOD}", f"<think>\n```python\n{GOOD}```", f"<think>{GOOD}</think>"],
    ids=["empty", "blank", "prose", "unclosed reasoning", "unclosed reasoning with a fence", "nothing but reasoning"],
)
@pytest.mark.parametrize("prompt", [None, PROMPT], ids=["no prompt", "prompt code"])
def test_no_code(completion: str, prompt: str | None) -> None:
    assert extract(completion, task(prompt)).code is None


@pytest.mark.parametrize(
    "completion",
    ["```python\ndef area(sides):\n    return (sides\n```", "def area(sides):\n    return 1 +\n", "    return sides[\n"],
    ids=["fence", "bare", "body"],
)
def test_broken_code_stays_to_be_named_a_syntax_error(completion: str) -> None:
    found = extract(completion, task(PROMPT))
    assert found.method == "fallback"
    assert found.code is not None


def test_number_of_alternatives() -> None:
    assert extract(f"```python\n{BAD}```\n```python\n{GOOD}```\n```python\nx = 1\n```", task()).alternatives == 2


def test_names_come_from_the_asserts_where_there_is_no_entry_point() -> None:
    asked = task(entry_point=None, test="assert area([2]) == 2", test_kind="asserts")
    completion = f"```python\n{GOOD}```\n```python\nprint('other')\n```"
    assert run(extract(completion, asked).code)["area"]([5]) == 5


def test_code_block_of_another_language() -> None:
    found = extract("```rust\nfn main() {}\n```\n```python\nx = 1\n```", task(language="rust"))
    assert found.code == "fn main() {}"


LONG = {
    "code and one line of prose": lambda n: GOOD + "".join(f"x{i} = {i}\n" for i in range(n)) + "That's all, isn't it?\n",
    "prose alone": lambda n: "This isn't code, it's prose (mostly).\n" * n,
    "lines that look like code": lambda n: "def area of a square\n" * n,
    "open brackets": lambda n: "def area(" * n,
    "end tokens": lambda n: GOOD + "<|endoftext|>" * n,
    "fences": lambda n: f"```python\n{BAD}```\n" * n,
    "unclosed reasoning tags": lambda n: "<think>\n" * n,
    "closing reasoning tags": lambda n: "</think>\n" * n,
    "blank lines": lambda n: "\n \n" * n,
    "nested expression": lambda n: "x = " + "-" * n + "1\n" + GOOD,
}


@pytest.mark.parametrize("make", LONG.values(), ids=LONG.keys())
def test_time_is_linear(make: Any) -> None:
    small, large = make(1_000), make(8_000)

    def seconds(text: str) -> float:
        start = time.process_time()
        extract(text, task(PROMPT))
        return time.process_time() - start

    least = min(seconds(small) for _ in range(2))
    assert min(seconds(large) for _ in range(2)) < 0.3 + 8 * 3 * least
    assert min(seconds(large) for _ in range(1)) < 6


def test_reasoning_between_parts_of_an_answer() -> None:
    assert without_reasoning("a\n<think>b</think>\nc\n<THINK>d</THINK>e") == "a\n\nc\ne"


def test_split_keeps_order_and_tags() -> None:
    blocks = split("one\n```Py\ntwo\n```\nthree\n~~~\nfour")
    assert [(b.text, b.tag, b.fenced, b.closed) for b in blocks] == [
        ("one", "", False, True),
        ("two", "py", True, True),
        ("three", "", False, True),
        ("four", "", True, False),
    ]
