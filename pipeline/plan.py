"""What a job will do, before it does it: the order of its prompts, and a survey of its tasks."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..schemas.errors import Problem
from ..schemas.job import Job
from ..schemas.records import RowError
from .config import LoadedJob
from .prompt_stream import BadRows, each_prompt

if TYPE_CHECKING:
    from .engine.model_config import ModelConfig
    from .estimate import KvNeed, TimeEstimate

BAD_ROWS_SHOWN = 3  # of each error code

Integers = npt.NDArray[np.int64]


# The order of prompts


def order(prompts: Sequence[Sequence[int]], priorities: Sequence[str], page_size: int, buckets: Sequence[int] = ()) -> list[int]:
    """The order in which a window of prompts is fed to the engine.

    Three wishes compete, and are granted in this order:

    1. P0 before P1 before P2.
    2. Prompts that share full pages stand next to each other, so that a page is computed once and used while it is still
       in the cache; the more pages they share, the closer they stand. This is depth-first order in the prefix tree.
    3. Wherever the tree leaves a choice, the branch with the longest prompt goes first. A long sequence that starts last
       runs on alone, when there is nothing left to fill the batch with; and branches of a single prompt, which are most
       of them, thereby stand among others of their length.

    Args:
        prompts: token ids. Sharing is compared token for token.
        priorities: of each prompt.
        page_size: tokens of a cache page.
        buckets: upper bounds of prompt lengths, rising, for static batches: these are made within one bucket, so buckets
            come right after priorities, the longest first. None for dynamic batching.

    Returns:
        A permutation of the indexes of `prompts`; the same for the same prompts.

    Time is O(n log n) comparisons of prefixes; memory is 4 bytes a token.
    """
    lengths = np.fromiter(map(len, prompts), np.int64, len(prompts))
    bucket = np.searchsorted(np.asarray(buckets, np.int64), lengths, side="left")
    keys = [np.asarray(p[: len(p) // page_size * page_size], np.int32).tobytes() for p in prompts]
    parts: dict[tuple[str, int], list[int]] = {}
    for i, part in enumerate(zip(priorities, (-bucket).tolist(), strict=True)):
        parts.setdefault(part, []).append(i)
    ordered: list[int] = []
    for part in sorted(parts):
        by_prefix = sorted(parts[part], key=keys.__getitem__)  # any order of bytes puts equal prefixes side by side
        shared = [0, *(_shared_pages(keys[a], keys[b], 4 * page_size) for a, b in pairwise(by_prefix))]
        ordered += [by_prefix[i] for i in _depth_first(lengths[by_prefix], np.array(shared, np.int64))]
    return ordered


def _shared_pages(a: bytes, b: bytes, page_bytes: int) -> int:
    """Full pages at the beginning that are equal."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size // page_bytes
    differs = np.frombuffer(a, np.int32, size // 4) != np.frombuffer(b, np.int32, size // 4)
    return int(differs.argmax()) * 4 // page_bytes


def _depth_first(lengths: Integers, shared: Integers) -> list[int]:
    """Visits the leaves of a prefix tree, at each node the child with the longest leaf first.

    Args:
        lengths: of the leaves, sorted by prefix.
        shared: pages that a leaf shares with the one before it.
    """
    visited: list[int] = []
    nodes = [(0, len(lengths))]  # as the range of its leaves
    while nodes:
        start, end = nodes.pop()
        if end - start == 1:
            visited.append(start)
            continue
        depth = shared[start + 1 : end].min()
        starts = np.concatenate(([start], start + 1 + np.flatnonzero(shared[start + 1 : end] == depth)))
        ends = np.append(starts[1:], end)
        longest = np.maximum.reduceat(lengths[start:end], starts - start)
        children = np.argsort(-longest, kind="stable")[::-1]  # reversed: the node pushed last is visited first
        nodes += zip(starts[children].tolist(), ends[children].tolist(), strict=True)
    return visited


# The survey


@dataclass(frozen=True, slots=True)
class Padding:
    """What batches of prompts, each as long as its longest, would waste: the share of slots without a token."""

    batches: int
    waste: float


@dataclass(frozen=True)
class PlanReport:
    """What a job will do. Token counts are of prompts, once a task, unless said otherwise."""

    name: str
    tasks: int  # that will be answered
    samples: int
    bad_rows: dict[str, int]  # by error code
    first_bad_rows: tuple[Problem, ...]
    histogram: tuple[tuple[int | None, int], ...]  # (upper bound, tasks); None: longer than the last bound
    min_tokens: int
    median_tokens: float
    p95_tokens: float
    max_tokens: int
    total_tokens: int
    shared_tokens: int  # in pages that another task has too: served by the prefix cache if it keeps everything
    sibling_tokens: int  # of further samples of a prompt, which take over its pages
    batching: str
    in_file_order: Padding
    by_length: Padding
    kv: "tuple[KvNeed, ...]"
    time: "TimeEstimate"

    @property
    def rows(self) -> int:
        """Results, those of bad rows included."""
        return (self.tasks + sum(self.bad_rows.values())) * self.samples


def survey(job: LoadedJob, limit: int | None = None) -> PlanReport:
    """Reads and encodes all tasks, and estimates what the job needs; loads no weights.

    Memory is 4 bytes a task and 8 bytes a page of its prompt, besides the ids that reading keeps.

    Args:
        job: as loaded.
        limit: take only the first tasks; the job's own limit by default.

    Raises:
        InputDataError: shards or the model cannot be read.
        JobFileError: the prompt settings fit neither themselves nor the model.
    """
    from .engine.tokenizer import Tokenizer
    from .engine.weights import load_config, locate
    from .prompts import PromptBuilder
    from .tasks import check_shards, find_shards, read_tasks

    spec = job.job
    shards = find_shards(spec.tasks.shards, job.base)
    check_shards(shards).raise_if_fatal()
    location = locate(job.model_path, Path.cwd())
    config = load_config(location)
    context = config.context(spec.model.max_context)
    builder = PromptBuilder(Tokenizer.load(location), spec.generation, context)
    counted = _Count(spec.kv_cache.page_size)
    bad = BadRows(BAD_ROWS_SHOWN)
    for row, prompt in each_prompt(read_tasks(shards, limit or spec.tasks.limit), builder):
        if isinstance(prompt, RowError):
            bad.add(row, prompt)
        elif prompt:
            counted.add(prompt.token_ids)
    return _report(spec, counted, bad, config, context)


def _report(spec: Job, counted: "_Count", bad: BadRows, config: "ModelConfig", context: int) -> PlanReport:
    from .estimate import estimate_time, kv_needs

    lengths, samples = counted.lengths(), spec.generation.samples
    quantiles = np.percentile(lengths, [0, 50, 95, 100]) if lengths.size else np.zeros(4)
    total, shared = int(lengths.sum()), counted.shared_tokens() if spec.kv_cache.prefix_caching else 0
    rows, buckets = np.repeat(lengths, samples), spec.batching.length_buckets
    return PlanReport(
        name=spec.name,
        tasks=lengths.size,
        samples=samples,
        bad_rows=bad.counts,
        first_bad_rows=tuple(problem for problems in bad.first.values() for problem in problems),
        histogram=tuple(zip([*buckets, None], _histogram(lengths, buckets), strict=True)),
        min_tokens=int(quantiles[0]),
        median_tokens=float(quantiles[1]),
        p95_tokens=float(quantiles[2]),
        max_tokens=int(quantiles[3]),
        total_tokens=total,
        shared_tokens=shared,
        sibling_tokens=total * (samples - 1),
        batching=spec.batching.mode,
        in_file_order=padding([rows], spec.batching.max_sequences),
        by_length=padding(by_length(rows, buckets), spec.batching.max_sequences),
        kv=kv_needs(spec, config, {"p95": float(quantiles[2]), "max": float(quantiles[3])}, rows.size, context),
        time=estimate_time(spec, config, prefill_tokens=total - shared, rows=rows.size),
    )


class _Count:
    """Lengths and pages of prompts, as numbers: prompts themselves would not fit for large jobs."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._lengths = array("i")
        self._pages = array("Q")  # 64-bit digests, each of a page and all before it; a chance collision is no matter here

    def add(self, tokens: Sequence[int]) -> None:
        self._lengths.append(len(tokens))
        content, size, before = np.asarray(tokens, np.int32).tobytes(), 4 * self._page_size, b""
        for start in range(0, len(content) - size, size):  # never the last token, which must be computed
            before = hashlib.blake2b(before + content[start : start + size], digest_size=8).digest()
            self._pages.frombytes(before)

    def lengths(self) -> Integers:
        return np.array(self._lengths, np.int64)

    def shared_tokens(self) -> int:
        """Tokens in pages that were counted before. Sorts the digests where they are."""
        pages = np.frombuffer(self._pages, np.uint64)
        pages.sort()
        return int(np.count_nonzero(pages[1:] == pages[:-1])) * self._page_size


def _histogram(lengths: Integers, buckets: Sequence[int]) -> list[int]:
    counts: list[int] = np.bincount(np.searchsorted(buckets, lengths, side="left"), minlength=len(buckets) + 1).tolist()
    return counts


def by_length(lengths: Integers, buckets: Sequence[int]) -> list[Integers]:
    """The lengths of each bucket, longest first."""
    bucket = np.searchsorted(buckets, lengths, side="left")
    return [-np.sort(-lengths[bucket == i]) for i in range(len(buckets) + 1)]


def padding(groups: Iterable[Integers], batch_size: int) -> Padding:
    """Padding of static batches that are made of each group in its order."""
    batches = tokens = slots = 0
    for lengths in groups:
        if not lengths.size:
            continue
        starts = np.arange(0, lengths.size, batch_size)
        sizes = np.diff(np.append(starts, lengths.size))
        batches += starts.size
        tokens += int(lengths.sum())
        slots += int((np.maximum.reduceat(lengths, starts) * sizes).sum())
    return Padding(batches, 1 - tokens / slots if slots else 0.0)
