"""What a person at a terminal sees: consoles for stdout and stderr, problems, and how a crash is told."""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from ..schemas.errors import Problem
from .show import printable

DEBUG = "CODEGEN_BATCH_DEBUG"  # environment variable: set, tracebacks are shown
PLAIN_WIDTH = 120  # columns of a table off a terminal
CLOSED_PIPE = 128 + 13  # exit code, as a shell gives it to those that SIGPIPE ends


class DataConsole(Console):
    """Leaves a closed pipe to the command line, which ends the command."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class MessageConsole(Console):
    """Falls silent when nobody reads: work goes on, and exit codes stay."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def stdout() -> Console:
    """Where data goes: plain off a terminal, and with NO_COLOR."""
    return DataConsole(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH)


def stderr() -> Console:
    """Where messages go."""
    return MessageConsole(stderr=True)


def print_json(value: Any) -> None:
    """Writes one JSON value to stdout; times as text."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def print_problems(problems: Iterable[Problem], label: str = "error") -> None:
    """One line a problem on stderr: where, what, and what to do. Text from files cannot drive the terminal."""
    console, style = stderr(), "bold red" if label == "error" else "yellow"
    for problem in problems:
        where = f"{problem.where}: " if problem.where else ""
        hint = f" ({problem.hint})" if problem.hint else ""
        parts = ((f"{label}: ", style), (where, "bold"), (problem.message, ""), (hint, "dim"))
        console.print(Text.assemble(*((printable(text), style) for text, style in parts)), soft_wrap=True)


def print_crash(error: BaseException) -> None:
    """Says that this is a bug, and keeps the traceback: on the terminal if it was asked for, else in a file."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
        return
    with tempfile.NamedTemporaryFile("w", prefix="codegen-batch-", suffix=".log", delete=False, encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    what = f"{type(error).__name__}: {error}".split("\n", 1)[0]
    print_problems([Problem("bug", what, f"the traceback is in {file.name}; --debug shows it")])
