"""From tasks to prompts: templates, system prompt and context files, then token ids.

One row that cannot be a prompt is a RowFailure; what would fail for every row is found when the builder is made.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ..schemas.errors import JobFileError, Problem, RowFailure
from ..schemas.job import Generation
from ..schemas.records import ContextFile, Message, Task
from .engine.chat import Rendered, sandbox

if TYPE_CHECKING:
    from .engine.tokenizer import Tokenizer

PROMPT_VERSION = 1  # part of the fingerprint: raise it when the same task would give another prompt

_KEY = "generation.prompt_template"
_FIELDS = frozenset(field.name for field in fields(Task)) - {"shard", "row"}  # what a template may use


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine continues. `text` is what `token_ids` were made from, without a begin token."""

    token_ids: tuple[int, ...]
    text: str


class PromptBuilder:
    """Makes prompts by a job's settings. Raises JobFileError where they fit neither themselves nor the model."""

    def __init__(self, tokenizer: "Tokenizer", generation: Generation, max_context: int) -> None:
        self._tokenizer = tokenizer
        self._system_prompt = generation.system_prompt
        self._max_context = max_context
        self._most_characters = max_context * tokenizer.longest_token
        self._raw = generation.prompt_template == "raw"
        self._template = None if generation.prompt_template in ("chat", "raw") else _Template(generation.prompt_template)
        if self._raw and generation.system_prompt is not None:
            raise JobFileError(Problem("generation.system_prompt", f"has no effect with {_KEY}: raw", "remove one of them"))
        if not self._raw:
            self._check_chat_template()

    def build(self, task: Task) -> Prompt:
        """The prompt of one task. Raises RowFailure of stage prompt."""
        (prompt,) = self.build_many([task])
        if isinstance(prompt, RowFailure):
            raise prompt
        return prompt

    def build_many(self, tasks: Sequence[Task]) -> list[Prompt | RowFailure]:
        """The prompts of many tasks, in order, encoded together; a failure stands where a task has no prompt."""
        rendered = [self._render(task) for task in tasks]
        encoded = iter(self._tokenizer.encode_rendered([prompt for prompt in rendered if isinstance(prompt, Rendered)]))
        return [self._fit(prompt.text, next(encoded)) if isinstance(prompt, Rendered) else prompt for prompt in rendered]

    def _fit(self, text: str, ids: list[int]) -> Prompt | RowFailure:
        if not ids:
            return RowFailure("prompt", "bad_value", "the prompt is empty: there is nothing to continue")
        if len(ids) + 1 > self._max_context:
            message = f"the prompt has {len(ids):,} tokens and one more is needed, but the context holds {self._max_context:,}"
            return RowFailure("prompt", "prompt_too_long", message)
        return Prompt(tuple(ids), text)

    def _render(self, task: Task) -> Rendered | RowFailure:
        try:
            rendered = self._raw_prompt(task) if self._raw else self._tokenizer.chat(self._messages(task))
            rendered.text.encode()
        except RowFailure as failure:
            return failure
        except UnicodeEncodeError as error:
            return RowFailure("prompt", "invalid_utf8", f"the prompt holds a character that is no text: {error.reason}")
        except Exception as error:  # a template can raise anything, and its row is what fails
            return RowFailure("prompt", "bad_template", f"{type(error).__name__}: {error}")
        if len(rendered.text) > self._most_characters:  # encoding it would take long, for nothing
            message = (
                f"the prompt has {len(rendered.text):,} characters; {self._max_context:,} tokens of context cannot hold them"
            )
            return RowFailure("prompt", "prompt_too_long", message)
        return rendered

    def _raw_prompt(self, task: Task) -> Rendered:
        if task.prompt is None:
            raise RowFailure(
                "prompt", "bad_template", f"the task has messages, but {_KEY} is raw, which continues a plain prompt"
            )
        return self._tokenizer.raw(context_text(task.context) + task.prompt)

    def _messages(self, task: Task) -> list[Message]:
        """The task's turns, with the template and the context files applied to the last user turn."""
        turns = list(task.messages) or [Message("user", task.prompt or "")]
        if self._template or task.context:
            last = max((i for i, turn in enumerate(turns) if turn.role == "user"), default=None)
            if last is None:
                raise RowFailure("prompt", "bad_template", "no user turn for the template or the context files to go to")
            content = turns[last].content
            shows_context = self._template is not None and "context" in self._template.used
            if self._template:
                content = self._template.render(task, content)
            if not shows_context:
                content = context_text(task.context) + content
            turns[last] = replace(turns[last], content=content)
        if self._system_prompt is not None and all(turn.role != "system" for turn in turns):
            turns.insert(0, Message("system", self._system_prompt))
        return turns

    def _check_chat_template(self) -> None:
        from jinja2 import TemplateError

        if not self._tokenizer.has_chat_template:
            raise JobFileError(Problem(_KEY, "this model has no chat template", "use prompt_template: raw"))
        with suppress(TemplateError):  # this turn may be refused where those of the tasks are not
            self._tokenizer.chat([Message("user", "x")])


class _Template:
    """A job's own template. Raises JobFileError for wrong syntax and for names that no task has."""

    def __init__(self, source: str) -> None:
        from jinja2 import StrictUndefined, TemplateSyntaxError, meta

        environment = sandbox(undefined=StrictUndefined)
        try:
            self._template = environment.from_string(source)
            self.used = meta.find_undeclared_variables(environment.parse(source)) - environment.globals.keys()
        except TemplateSyntaxError as error:
            raise JobFileError(Problem(_KEY, f"line {error.lineno} of the template: {error.message}")) from error
        known = f"a template may use {', '.join(sorted(_FIELDS))}"
        if unknown := self.used - _FIELDS:
            raise JobFileError(Problem(_KEY, f"no task has the field {', '.join(sorted(unknown))}", known))
        if not self.used:
            raise JobFileError(Problem(_KEY, "neither chat nor raw nor a template that uses a field of the task", known))

    def render(self, task: Task, prompt: str) -> str:
        """`prompt` stands for the task's prompt; `metadata` is decoded, and empty where there is none."""
        values: dict[str, Any] = {name: getattr(task, name) for name in self.used}
        if "metadata" in values:
            values["metadata"] = json.loads(task.metadata or "{}")
        return self._template.render(values | {"prompt": prompt})


def context_text(files: Sequence[ContextFile]) -> str:
    """Files as they are shown before a prompt: each with its path, between fences longer than any in its text."""
    return "".join(_fenced(file) for file in files)


def _fenced(file: ContextFile) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", file.text)), default=0))
    ending = "" if file.text.endswith("\n") else "\n"
    return f"File: {file.path}\n{fence}\n{file.text}{ending}{fence}\n\n"
