"""What the engine counts while it runs, and a finished sample's own numbers."""

from dataclasses import dataclass, fields

from ...kernels.layout import KvLayout
from ...schemas.records import EngineStats, Generation
from .pages import Pages
from .scheduler import Step
from .sequence import Sequence


@dataclass(slots=True)
class Counters:
    """Running sums over steps; `stats` makes the record of them. Fields as in EngineStats."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    steps: int = 0
    batch_size_sum: int = 0
    row_slots: int = 0
    row_slots_idle: int = 0
    tokens_out: int = 0  # generated, of unfinished sequences too
    _decode_share: float = 0.0

    def begin(self, step: Step, width: tuple[int, int]) -> None:
        """Counts a step's rows before it runs. width: (slots in the batch, of these without a token)."""
        rows = sum(n for _, n in step.chunks)
        decode = sum(s.generated > 0 and n == 1 == s.remaining for s, n in step.chunks)
        self.prefill_tokens += rows - decode
        self.decode_tokens += decode
        self._decode_share = decode / rows if rows else 0.0
        self.steps += 1
        self.batch_size_sum += len(step.chunks) + len(step.forks)
        self.row_slots += width[0]
        self.row_slots_idle += width[1]

    def end(self, seconds: float) -> None:
        """Splits the step's time between prefill and decode by their rows."""
        self.decode_seconds += seconds * self._decode_share
        self.prefill_seconds += seconds * (1 - self._decode_share)

    def finish(self, sequence: Sequence) -> None:
        self.prompt_tokens += sequence.prompt_length
        self.cached_tokens += sequence.prompt_hits

    def stats(self, preemptions: int, pages: Pages, layout: KvLayout) -> EngineStats:
        shared = [field.name for field in fields(EngineStats) if hasattr(self, field.name)]
        sums = {name: getattr(self, name) for name in shared}
        return EngineStats(
            **sums,
            preemptions=preemptions,
            kv_bytes_peak=pages.peak * layout.sealed_page_bytes + pages.raw_peak * layout.raw_page_bytes,
            kv_bytes_bf16_peak=(pages.peak + pages.raw_peak) * layout.bf16_page_bytes,
        )


def generation_of(sequence: Sequence, reason: str, worker: int, seed: int) -> Generation:
    """The record of a finished sequence, whose text is settled."""
    assert sequence.text is not None
    new, decoding = sequence.generated, sequence.last_at - sequence.first_at
    return Generation(
        completion=sequence.text,
        finish_reason=reason,
        prompt_tokens=sequence.prompt_length,
        cached_prompt_tokens=sequence.prompt_hits,
        completion_tokens=new,
        ttft_ms=1000 * (sequence.first_at - sequence.added_at),
        latency_ms=1000 * (sequence.last_at - sequence.added_at),
        decode_tokens_per_second=(new - 1) / decoding if new > 1 and decoding > 0 else None,
        batch_id=sequence.first_step,
        worker=worker,
        seed=seed,
    )
