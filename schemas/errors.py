"""The error tree.

CodegenBatchError                 exit code
├── UsageError                    2    the command line makes no sense
├── JobFileError                  3    the job file is invalid (holds every problem found)
├── InputDataError                4    shards or a model that cannot be read (holds every problem found)
├── ErrorRateExceeded             5    finished, but more rows ended in an error than the job allows
├── OutputConflict                6    the output folder belongs to another run, or is locked
├── EnvironmentFailure            7    no sandbox, no disk, no such device
└── Stopped                       75   stopped cleanly; the same command resumes

RowFailure                        a single row cannot go on; becomes an error row, never an exit code
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong and where: `where` is `file:line key`, `shard row 12`, or a component's name."""

    where: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class CodegenBatchError(Exception):
    """Base of all errors that the user can act upon. `problems` is never empty."""

    exit_code = 1

    def __init__(self, *problems: Problem | str) -> None:
        self.problems: Sequence[Problem] = [p if isinstance(p, Problem) else Problem("", p) for p in problems]
        super().__init__("\n".join(str(p).removeprefix(": ") for p in self.problems))


class UsageError(CodegenBatchError):
    """The command line makes no sense."""

    exit_code = 2


class JobFileError(CodegenBatchError):
    """The job file is invalid."""

    exit_code = 3


class InputDataError(CodegenBatchError):
    """Shards or a model that cannot be read."""

    exit_code = 4


class ErrorRateExceeded(CodegenBatchError):
    """The run finished, but more rows ended in an error than `output.max_error_rate` allows."""

    exit_code = 5


class OutputConflict(CodegenBatchError):
    """The output folder belongs to another run, or another process holds it."""

    exit_code = 6


class EnvironmentFailure(CodegenBatchError):
    """This machine lacks something that the job needs."""

    exit_code = 7


class Stopped(CodegenBatchError):
    """Stopped cleanly before the end; the same command resumes."""

    exit_code = 75


class RowFailure(Exception):
    """One row cannot go on. `stage` and `code` are closed sets (see records.RowError)."""

    def __init__(self, stage: str, code: str, message: str) -> None:
        super().__init__(message)
        self.stage, self.code, self.message = stage, code, message
