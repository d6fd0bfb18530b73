"""The nouns of a run. Each field says who fills it.

A task becomes `samples` rows. A row is filled on its way (read → generate → judge) and ends in one result:
either judged or with an error, never neither, never lost.
"""

from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What the judge says. The set is closed; only `passed` is a pass."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    EXITED_EARLY = "exited_early"
    SYNTAX_ERROR = "syntax_error"
    NO_CODE = "no_code"
    TIMEOUT_CPU = "timeout_cpu"
    TIMEOUT_WALL = "timeout_wall"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    SANDBOX_VIOLATION = "sandbox_violation"
    NO_TESTS = "no_tests"
    INFRA_ERROR = "infra_error"

    @property
    def counts(self) -> bool:
        """False where the judge or the task failed, not the candidate: such a row is no attempt in pass@k."""
        return self not in (Verdict.NO_TESTS, Verdict.INFRA_ERROR)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat prompt."""

    role: str  # system, user or assistant
    content: str


@dataclass(frozen=True, slots=True)
class ContextFile:
    """A file shown to the model before the prompt."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class StdioCase:
    """One run of a program of kind `stdio`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one task; None means the job's own."""

    cpu_s: float | None = None
    wall_s: float | None = None
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class Compare:
    """How outputs are compared: `exact`, `tokens` (white space apart) or `float` (within tolerances)."""

    mode: str = "exact"
    abs_tol: float = 0.0
    rel_tol: float = 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """One row of a task shard, checked. Filled by the reader (tasks.py); never changed."""

    task_id: str
    shard: str  # file name of the shard
    row: int  # row in the shard, from 0
    prompt: str | None = None  # one of prompt and messages is set
    messages: tuple[Message, ...] = ()
    language: str = "python"
    entry_point: str | None = None
    test: str | None = None
    test_kind: str | None = None  # check, asserts, unittest, stdio; None: nothing to run
    stdio_cases: tuple[StdioCase, ...] = ()
    reference: str | None = None
    priority: str = "P1"  # P0 first
    session_id: str | None = None
    turn: int | None = None
    context: tuple[ContextFile, ...] = ()
    limits: Limits = field(default_factory=Limits)
    compare: Compare = field(default_factory=Compare)
    metadata: str | None = None  # JSON, passed through


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row could not go on.

    stage: read, prompt, generate, judge. code: unknown_task, null_prompt, duplicate_task_id, invalid_utf8, bad_value,
    unreadable_row_group, bad_template, prompt_too_long, out_of_memory, engine_failure, judge_failure.
    """

    stage: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class BadRow:
    """A shard row that is no task. Filled by the reader; its id is unique over the job, made up where it must be."""

    task_id: str
    shard: str
    row: int
    error: RowError


@dataclass(frozen=True, slots=True)
class Generation:
    """One sample of a task's prompt. Filled by the engine; for completions made elsewhere, only what is known of them."""

    completion: str
    finish_reason: str | None = None  # stop (end token or stop string), length
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None  # of these, found in the prefix cache or taken over from a sibling sample
    completion_tokens: int | None = None  # the end token included
    ttft_ms: float | None = None  # from the engine's taking the request to its first token
    latency_ms: float | None = None  # to its last token
    decode_tokens_per_second: float | None = None  # None for a single token
    batch_id: int | None = None  # the engine step that made the first token
    worker: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """What the completion holds, before anything runs. Filled by extract.py and syntax.py."""

    code: str | None = None  # the whole program that is judged; None where none was found
    extract_method: str = "none"
    language: str = "python"
    syntax_ok: bool = False
    syntax_error: str | None = None  # with line and column
    functions: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    max_nesting: int | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one sample. Filled by judge.py."""

    facts: CodeFacts
    verdict: Verdict
    verdict_detail: str = ""
    trust: str | None = None  # where tests ran; apart: judge and candidate are two processes; beside: both are in one
    tests_run: int | None = None
    tests_passed: int | None = None
    cpu_ms: float | None = None
    wall_ms: float | None = None
    peak_memory_mb: float | None = None
    stdout_tail: str = ""
    stderr_tail: str = ""
    isolation: str = ""  # the sandbox level that was in force


@dataclass(slots=True)
class Result:
    """One result row on its way: task_id × sample_index. Filled left to right; written when judged or in error."""

    task_id: str
    sample_index: int
    started_at: datetime  # UTC
    generation: Generation | None = None
    judgement: Judgement | None = None
    error: RowError | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """One number about a run (metrics.parquet is the long table of these)."""

    scope: str  # run, stage, verdict, priority=P0, ...
    name: str
    value: float | None  # None: not defined, such as pass@10 of 5 samples
    unit: str = ""
    n: int | None = None  # what it was computed over
    ci_low: float | None = None
    ci_high: float | None = None


Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters of one engine since it started. Filled by the engine; `a + b` is what two workers did together.

    Seconds are those of an engine, so they add up over workers; the time of a step that holds prefill and decode is
    split by its rows. A sequence's first token is prefill's, all later ones are decode's.
    """

    prompt_tokens: int = 0  # of the requests that were admitted
    cached_tokens: int = 0  # of these, not computed: found in the prefix cache or taken over from a sibling sample
    prefill_tokens: int = 0  # computed, including those computed again after a preemption
    decode_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    steps: int = 0
    batch_size_sum: int = 0  # sequences in a step, summed over steps
    row_slots: int = 0  # rows that the batches had
    row_slots_idle: int = 0  # of these, rows that carried no token: padding
    preemptions: int = 0
    kv_bytes_peak: int = 0  # pages in use; over workers the sum of the peaks
    kv_bytes_bf16_peak: int = 0  # what the same pages would take in bf16

    def __add__(self, other: "EngineStats") -> "EngineStats":
        return EngineStats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})
