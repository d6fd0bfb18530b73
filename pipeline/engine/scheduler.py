"""What runs next: admission, chunked prefill, prefix sharing, and preemption when pages run out."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from ...schemas.job import Batching
from .pages import Key, Pages, token_bytes
from .sequence import Request, Sequence, Snapshot, State

LOOKAHEAD = 256  # waiting sequences considered a step


@dataclass(slots=True)
class Step:
    """One forward pass: rows to compute, by sequence, and sequences that start from a sibling's prompt without any."""

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)  # sequence, number of its tokens
    forks: list[tuple[Sequence, Snapshot]] = field(default_factory=list)


class Scheduler:
    """Chooses the rows of each step. Owns the sequences' pages and slots; `finish` and preemption return them.

    dynamic: sequences join whenever there is a slot, pages and room in the batch. static: a batch of prompts from one
    length bucket starts when the last has ended, and nothing joins it.
    """

    def __init__(self, pages: Pages, batching: Batching) -> None:
        self.pages, self.batching = pages, batching
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first
        self.preemptions = 0
        self._slots = list(range(batching.max_sequences - 1, -1, -1))
        self._batch: list[Sequence] = []  # members of the static batch

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Puts the samples of a request at the end of the queue."""
        for sequence in sequences:
            sequence.request.waiting += 1
            self.waiting.append(sequence)

    @property
    def width(self) -> tuple[int, int]:
        """(slots of the batch, those that carry no token): a static batch keeps the slots of members that have ended."""
        if self.batching.mode == "dynamic":
            return len(self.running), 0
        return len(self._batch), len(self._batch) - len(self.running)

    def schedule(self) -> Step:
        """The next step, its pages reserved. Empty only if nothing runs and the first that waits cannot fit at all."""
        step, budget = Step(), self.batching.max_batch_tokens
        for sequence in sorted(self.running, key=lambda s: s.remaining > 1):  # decode first
            if sequence.state is State.RUNNING and budget:
                budget -= self._take_rows(step, sequence, budget)
        step.chunks = [chunk for chunk in step.chunks if chunk[0].state is State.RUNNING]  # less those preempted since
        self._admit(step, budget)
        if not self.running and self._forget_all():
            self._admit(step, budget)
        return step

    def next_up(self) -> Sequence | None:
        """The sequence whose turn it is to be let in; when nothing runs and a step is empty, it never will be."""
        return next(iter(self._candidates()), None)

    def after(self, step: Step) -> None:
        """Accounts for a step that has run: new sealed pages enter the prefix tree, filled raw pages go back."""
        size = self.pages.page_size
        for sequence, rows in step.chunks:
            first = sequence.cached // size
            sequence.cached += rows
            for i in range(first, sequence.cached // size):
                tokens = sequence.tokens[i * size : (i + 1) * size]
                sequence.sealed[i] = self.pages.seal(sequence.sealed[:i], sequence.sealed[i], tokens)
                self.pages.give_raw(sequence.raws.pop(0))
            assert len(sequence.raws) == (sequence.cached % size > 0)

    def keep(self, sequence: Sequence, snapshot: Snapshot) -> None:
        """Keeps a freshly prefilled prompt for siblings that have not started. Takes over the snapshot's raw page."""
        self.pages.share(snapshot.sealed)
        sequence.request.snapshot = snapshot

    def finish(self, sequence: Sequence) -> None:
        """Returns all that the sequence holds."""
        if sequence.state is State.RUNNING:
            self._release(sequence)
        else:
            self.waiting.remove(sequence)
            self._count_start(sequence)
        sequence.state = State.FINISHED

    # -- admission ----------------------------------------------------------------------------------------------------

    def _admit(self, step: Step, budget: int) -> None:
        """Lets waiting sequences in. One that must wait for another's pages keeps a slot free for its turn."""
        prefilling = {id(s.request) for s in self.running if not s.generated}
        making = set(self._pages_in_the_making())
        held = 0
        for sequence in self._candidates():
            if len(self._slots) <= held:
                return
            snapshot = sequence.request.snapshot
            if snapshot and not sequence.generated:
                self._fork(step, sequence, snapshot)
                continue
            found = self.pages.find(sequence.tokens)
            page = self._next_page(sequence, found)
            if page in making or (not sequence.generated and id(sequence.request) in prefilling):
                held += 1
                continue
            if budget == 0 or not self._fits(sequence, found):
                return
            self._start(sequence, found)
            budget -= self._take_rows(step, sequence, budget)
            prefilling.add(id(sequence.request))
            if page is not None:
                making.add(page)

    def _candidates(self) -> list[Sequence]:
        if self.batching.mode == "dynamic":
            return list(islice(self.waiting, LOOKAHEAD))
        if not self.running and not any(s.state is State.WAITING for s in self._batch):
            self._batch = self._next_batch()
        return [s for s in self._batch if s.state is State.WAITING]

    def _next_batch(self) -> list[Sequence]:
        """The next max_sequences waiting sequences whose prompts share the first one's length bucket."""
        buckets = self.batching.length_buckets
        same = (s for s in self.waiting if self._bucket(s, buckets) == self._bucket(self.waiting[0], buckets))
        return list(islice(same, self.batching.max_sequences))

    @staticmethod
    def _bucket(sequence: Sequence, buckets: list[int]) -> int:
        return bisect_left(buckets, sequence.prompt_length)

    def _pages_in_the_making(self) -> Iterator[Key]:
        """Pages that running prefills are computing, by their place in the prefix tree."""
        for sequence in self.running:
            if sequence.remaining > 1:
                page = self._next_page(sequence, sequence.sealed[: sequence.cached // self.pages.page_size])
                if page is not None:
                    yield page

    def _next_page(self, sequence: Sequence, sealed: list[int]) -> Key | None:
        """The tree's key of the first page that the sequence lacks; None if its tokens do not fill that page."""
        size = self.pages.page_size
        start, node = len(sealed) * size, self.pages.node(sealed)
        if not self.pages.caching or node is None or start + size > len(sequence.tokens):
            return None
        return node, token_bytes(sequence.tokens[start : start + size])

    def _fits(self, sequence: Sequence, found: list[int]) -> bool:
        """Room for all of its tokens, and a page for each running sequence, so that admission seldom preempts."""
        need = len(sequence.tokens) // self.pages.page_size - len(found)
        return self.pages.available_beside(found) >= need + len(self.running)

    def _start(self, sequence: Sequence, found: list[int]) -> None:
        self._enter(sequence)
        self.pages.share(found)
        sequence.sealed = list(found)
        sequence.cached = len(found) * self.pages.page_size
        if not sequence.started:
            sequence.prompt_hits = sequence.cached
        self._count_start(sequence)

    def _fork(self, step: Step, sequence: Sequence, snapshot: Snapshot) -> None:
        """Starts a sample from its sibling's prompt; the engine copies the raw page before the next step."""
        self._enter(sequence)
        self.pages.share(snapshot.sealed)
        sequence.sealed = list(snapshot.sealed)
        sequence.raws = [] if snapshot.raw is None else [self.pages.take_raw()]
        sequence.cached = sequence.prompt_hits = sequence.prompt_length
        step.forks.append((sequence, snapshot))

    def forked(self, sequence: Sequence) -> None:
        """The engine has copied what the fork needs of the snapshot."""
        self._count_start(sequence)

    def _enter(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.slot = self._slots.pop()
        sequence.state = State.RUNNING

    def _count_start(self, sequence: Sequence) -> None:
        """Counts a sample's first start; with the last one, the prompt's snapshot goes."""
        if sequence.started:
            return
        sequence.started = True
        request = sequence.request
        request.waiting -= 1
        if request.waiting == 0 and request.snapshot:
            self._forget(request, request.snapshot)

    def _forget_all(self) -> bool:
        """Gives up the prompts kept for waiting samples, which may be what leaves no room; whether there were any."""
        kept = {id(s.request): s.request for s in self.waiting if s.request.snapshot}
        for request in kept.values():
            assert request.snapshot
            self._forget(request, request.snapshot)
        return bool(kept)

    def _forget(self, request: Request, snapshot: Snapshot) -> None:
        self.pages.give(snapshot.sealed)
        if snapshot.raw is not None:
            self.pages.give_raw(snapshot.raw)
        request.snapshot = None

    # -- pages --------------------------------------------------------------------------------------------------------

    def _take_rows(self, step: Step, sequence: Sequence, budget: int) -> int:
        """Adds as many of the sequence's rows as the budget and the pages allow; returns their number."""
        rows = min(sequence.remaining, budget)
        if not self._reserve(sequence, rows):
            return 0
        step.chunks.append((sequence, rows))
        return rows

    def _reserve(self, sequence: Sequence, rows: int) -> bool:
        """Takes the pages that these rows touch; preempts the youngest sequences if need be. False: it went itself."""
        size, end = self.pages.page_size, sequence.cached + rows
        need = end // size - len(sequence.sealed)
        while self.pages.available < need:
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        sequence.sealed.extend(self.pages.take() for _ in range(need))
        touched = (end - 1) // size - sequence.cached // size + 1
        sequence.raws.extend(self.pages.take_raw() for _ in range(touched - len(sequence.raws)))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Takes back all pages; the sequence computes them again, or finds them in the cache, when its turn comes."""
        self._release(sequence)
        sequence.state = State.WAITING
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._slots.append(sequence.slot)
        self.pages.give(sequence.sealed)
        for raw in sequence.raws:
            self.pages.give_raw(raw)
        sequence.slot, sequence.sealed, sequence.raws, sequence.cached = -1, [], [], 0
