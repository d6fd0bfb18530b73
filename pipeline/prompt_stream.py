"""Streams the rows of a job as prompts, for whoever looks at a job without running it."""

from collections.abc import Iterable, Iterator
from itertools import islice, repeat

from ..schemas.errors import Problem, RowFailure
from ..schemas.records import BadRow, RowError, Task
from .prompts import Prompt, PromptBuilder

CHUNK = 256  # rows encoded together


def each_prompt(
    rows: Iterable[Task | BadRow], builder: PromptBuilder | None
) -> Iterator[tuple[Task | BadRow, Prompt | RowError | None]]:
    """Each row with its prompt or why it has none, in order; None where there is no builder to make it. Constant memory."""
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK)):
        tasks = [row for row in chunk if isinstance(row, Task)]
        built = iter(builder.build_many(tasks) if builder else repeat(None))
        for row in chunk:
            if isinstance(row, BadRow):
                yield row, row.error
                continue
            prompt = next(built)
            yield row, RowError(prompt.stage, prompt.code, prompt.message) if isinstance(prompt, RowFailure) else prompt


class BadRows:
    """Counts bad rows by error code, and keeps the first few of each."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self.counts: dict[str, int] = {}
        self.first: dict[str, list[Problem]] = {}

    def add(self, row: Task | BadRow, error: RowError) -> None:
        self.counts[error.code] = self.counts.get(error.code, 0) + 1
        first = self.first.setdefault(error.code, [])
        if len(first) < self._shown:
            first.append(Problem(f"{row.shard} row {row.row}", f"{error.code}: {error.message}"))

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def problems(self) -> Iterator[Problem]:
        """The rows that were kept, and for each code one line about the rest."""
        for code, first in self.first.items():
            yield from first
            if rest := self.counts[code] - len(first):
                yield Problem("tasks", f"{rest:,} more rows with {code}")
