"""What the engine is asked (Request), what it works on (Sequence) and what it gives back (Finished)."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from ...schemas.records import Generation, RowError
from .tokenizer import Detokenizer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are off."""

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0


@dataclass(slots=True)
class Request:
    """One prompt and the samples wanted of it."""

    key: str  # the task's id: part of the random stream, so that equal keys and seeds give equal samples
    prompt: Items[int]  # token ids, at least one
    samples: tuple[int, ...] = (0,)  # sample indexes wanted
    snapshot: "Snapshot | None" = None  # filled by the engine once the prompt is in the cache
    waiting: int = 0  # samples that have not started; kept by the scheduler


@dataclass(slots=True)
class Snapshot:
    """A prompt ready to be continued: its pages, and what its last token led to. Owned by the request's samples."""

    sealed: list[int]
    raw: int | None  # raw page holding the prompt's last, part-filled page
    logits: "Tensor"  # [1, V]
    hidden: "Tensor"  # [1, C]


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample on its way. Tokens are the prompt and what was generated; the cache holds the first `cached` of them.

    The scheduler owns slot, sealed, raws and cached; the engine appends tokens and fills the times.
    """

    request: Request
    sample: int
    stream: int  # 64-bit key of its random stream
    added_at: float  # seconds, monotonic
    tokens: list[int]
    limit: int  # most tokens, prompt and completion
    detokenizer: Detokenizer | None = None  # only where stop strings are watched for
    state: State = State.WAITING
    slot: int = -1
    sealed: list[int] = field(default_factory=list)
    raws: list[int] = field(default_factory=list)  # raw pages being filled: one at most between steps
    cached: int = 0
    prompt_hits: int = 0  # prompt tokens found in the cache when it first started
    started: bool = False
    first_step: int = -1
    first_at: float = 0.0
    last_at: float = 0.0
    watched: str = ""  # the text so far, where stop strings are watched for
    text: str | None = None  # the completion, once it is settled

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Tokens that are not in the cache yet: 1 while decoding, more while prefilling."""
        return len(self.tokens) - self.cached

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)


@dataclass(frozen=True, slots=True)
class Finished:
    """A sample's end: a generation, or the error that ended it."""

    key: str
    sample: int
    generation: Generation | None
    error: RowError | None = None
    tokens: tuple[int, ...] = ()  # generated ids, the end token included
