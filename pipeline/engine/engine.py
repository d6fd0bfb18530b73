"""The engine: requests in, finished samples out. `step` is the whole story of a generation step."""

import time
from collections.abc import Sequence as Items
from pathlib import Path

import torch
from torch import Tensor

from ...kernels import ops as kernels
from ...kernels.kv import KvPool
from ...schemas.job import Batching, KvCache
from ...schemas.records import EngineStats, Generation, Message, RowError
from .counters import Counters, generation_of
from .memory import cache_size, fast_dtype
from .model import Model
from .pages import Pages
from .runner import forward, last_rows
from .sampler import sample, stream_key
from .scheduler import Scheduler, Step
from .sequence import Finished, Request, Sampling, Sequence, Snapshot
from .tokenizer import Tokenizer
from .weights import load_model, locate

__all__ = ["Engine", "Finished", "Request", "Sampling"]


class Engine:
    """A model on one device, with its cache.

    In a program: `Engine("model.gguf").generate(["Write hello world in C."], Sampling(temperature=0.8))`.
    For a stream of work: `add` requests while there is `room`, and call `step` until it is no longer `busy`.
    """

    def __init__(
        self,
        model: str | Path,
        sampling: Sampling | None = None,
        batching: Batching | None = None,
        kv_cache: KvCache | None = None,
        dtype: str = "auto",
        max_context: int | None = None,
        backend: kernels.Backend = "cpu",
        worker: int = 0,
    ) -> None:
        """Loads the model. Raises InputDataError for a model that can't be read, EnvironmentFailure for want of memory."""
        location = locate(str(model), Path.cwd())
        loaded = load_model(location, getattr(torch, fast_dtype() if dtype == "auto" else dtype))
        self.config, self.tokenizer, self.worker = loaded.config, Tokenizer.load(location), worker
        self.sampling, self.batching, self.cache = sampling or Sampling(), batching or Batching(), kv_cache or KvCache()
        self.max_context = loaded.config.context(max_context)
        self.ops = kernels.choose(backend)
        self.model = Model(loaded.config, loaded.weights, self.ops, self.max_context)
        self.pool, self.pages = self._storage()
        self.scheduler = Scheduler(self.pages, self.batching)
        self.counters = Counters()

    def _storage(self) -> tuple[KvPool, Pages]:
        layout, sealed, raw = cache_size(self.config, self.batching, self.cache, self.max_context)
        pages = Pages(layout.page_size, sealed, raw, self.cache.prefix_caching)
        return KvPool(layout, sealed, raw, torch.device("cpu")), pages

    # -- a stream of work ---------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.scheduler.waiting or self.scheduler.running)

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def tokens_out(self) -> int:
        """Tokens generated so far."""
        return self.counters.tokens_out

    @property
    def room(self) -> bool:
        """Whether to add more requests: fewer wait than would fill every slot anew."""
        return len(self.scheduler.waiting) < 2 * self.batching.max_sequences

    def add(self, request: Request) -> None:
        """Queues the request's samples. Raises ValueError if the prompt leaves no room for a token."""
        length, how, now = len(request.prompt), self.sampling, time.perf_counter()
        if not 1 <= length < self.max_context:
            raise ValueError(f"prompt of {length} tokens; it must have 1 to {self.max_context - 1}")
        self.scheduler.add(
            Sequence(
                request,
                sample=index,
                stream=stream_key(how.seed, request.key, index),
                added_at=now,
                tokens=list(request.prompt),
                limit=min(length + how.max_new_tokens, self.max_context),
                detokenizer=self.tokenizer.detokenizer() if how.stop else None,
            )
            for index in request.samples
        )

    def step(self) -> list[Finished]:
        """Schedules, runs and samples once; returns the samples that ended."""
        began = time.perf_counter()
        step = self.scheduler.schedule()
        if not step.chunks and not step.forks:
            return self._give_up()
        self.counters.begin(step, self.scheduler.width)
        sequences, logits, hidden = self._run(step)
        tokens = sample(self.ops, logits, hidden, self.model.head, sequences, self.sampling)
        done = [self._extend(sequence, token) for sequence, token in zip(sequences, tokens, strict=True)]
        self.counters.end(time.perf_counter() - began)
        return [finished for finished in done if finished]

    @torch.inference_mode()
    def _run(self, step: Step) -> tuple[list[Sequence], Tensor, Tensor]:
        """Runs the chunks and starts the forks: the sequences whose next token is due, their logits and hidden rows."""
        due = [(i, s) for i, (s, n) in enumerate(step.chunks) if n == s.remaining]
        x = forward(self.model, self.pool, step.chunks) if step.chunks else self.model.no_rows()
        hidden, logits = self.model.logits(x[last_rows(step.chunks)][[i for i, _ in due]])
        self.scheduler.after(step)
        for row, (_, sequence) in enumerate(due):
            if sequence.request.waiting and not sequence.request.snapshot and not sequence.generated:
                self._keep(sequence, logits[row : row + 1], hidden[row : row + 1])
        for sequence, snapshot in step.forks:
            if snapshot.raw is not None:
                self.pool.copy_raw(snapshot.raw, sequence.raws[0])
            self.scheduler.forked(sequence)
        logits = torch.cat([logits, *(snapshot.logits for _, snapshot in step.forks)])
        hidden = torch.cat([hidden, *(snapshot.hidden for _, snapshot in step.forks)])
        return [s for _, s in due] + [s for s, _ in step.forks], logits, hidden

    def _keep(self, sequence: Sequence, logits: Tensor, hidden: Tensor) -> None:
        """Keeps the prompt's state for the samples of it that have not started."""
        raw = None
        if sequence.raws:
            raw = self.pages.take_raw()
            self.pool.copy_raw(sequence.raws[0], raw)
        self.scheduler.keep(sequence, Snapshot(list(sequence.sealed), raw, logits.clone(), hidden.clone()))

    def _extend(self, sequence: Sequence, token: int) -> Finished | None:
        """Adds a token; if it ends the sequence, returns the finished sample."""
        now = time.perf_counter()
        if token < 0:
            self.scheduler.finish(sequence)
            return self._failed(sequence, "engine_failure", "the model's logits are not numbers")
        if not sequence.generated:
            sequence.first_at, sequence.first_step = now, self.counters.steps
        sequence.tokens.append(token)
        self.counters.tokens_out += 1
        sequence.last_at = now
        reason = self._end(sequence, token)
        if reason is None:
            return None
        self.scheduler.finish(sequence)
        return self._finished(sequence, reason)

    def _end(self, sequence: Sequence, token: int) -> str | None:
        """Why the sequence ends with this token, if it does. A stop string also settles the text."""
        if token in self.config.eos_ids:
            return "stop"
        if sequence.detokenizer:
            piece = sequence.detokenizer.push(token)
            sequence.watched += piece
            seen = len(sequence.watched) - len(piece)
            starts = [sequence.watched.find(s, max(0, seen - len(s) + 1)) for s in self.sampling.stop]
            if found := [at for at in starts if at >= 0]:
                sequence.text = sequence.watched[: min(found)]
                return "stop"
        return "length" if len(sequence.tokens) >= sequence.limit else None

    def _finished(self, sequence: Sequence, reason: str) -> Finished:
        new = sequence.tokens[sequence.prompt_length :]
        if sequence.text is None:
            sequence.text = self.tokenizer.decode(new[:-1] if new[-1] in self.config.eos_ids else new)
        self.counters.finish(sequence)
        generation = generation_of(sequence, reason, self.worker, self.sampling.seed)
        return Finished(sequence.request.key, sequence.sample, generation, tokens=tuple(new))

    def _failed(self, sequence: Sequence, code: str, message: str) -> Finished:
        return Finished(sequence.request.key, sequence.sample, None, RowError("generate", code, message))

    def _give_up(self) -> list[Finished]:
        """Nothing runs, and the sequence whose turn it is does not fit: it never will."""
        sequence = self.scheduler.next_up()
        if sequence is None:
            return []
        self.scheduler.finish(sequence)
        have = f"the {self.pages.sealed_total} there are; raise kv_cache.memory"
        return [self._failed(sequence, "out_of_memory", f"{len(sequence.tokens)} tokens need more cache pages than {have}")]

    @property
    def stats(self) -> EngineStats:
        """Counters since the engine was made."""
        return self.counters.stats(self.scheduler.preemptions, self.pages, self.pool.layout)

    # -- for programs and notebooks -----------------------------------------------------------------------------------

    def generate(
        self, prompts: Items[str | Items[Message]], sampling: Sampling | None = None, samples: int = 1, chat: bool = True
    ) -> list[list[Generation]]:
        """Completes every prompt; returns, in their order, `samples` generations each.

        A string is a user's turn where `chat` is true and is continued as it stands where not. Raises ValueError for
        prompts that do not fit the context, RuntimeError for a sample that the engine had to give up.
        """
        assert not self.busy, "generate() needs the engine to itself"
        self.sampling = sampling or self.sampling
        for i, prompt in enumerate(prompts):
            self.add(Request(str(i), self._encode(prompt, chat), tuple(range(samples))))
        done: dict[tuple[int, int], Generation] = {}
        while self.busy:
            for finished in self.step():
                if finished.generation is None:
                    raise RuntimeError(f"prompt {finished.key}: {finished.error.message if finished.error else ''}")
                done[int(finished.key), finished.sample] = finished.generation
        return [[done[i, j] for j in range(samples)] for i in range(len(prompts))]

    def _encode(self, prompt: str | Items[Message], chat: bool) -> list[int]:
        if isinstance(prompt, str) and not chat:
            return self.tokenizer.encode_prompt(prompt)
        return self.tokenizer.render_chat([Message("user", prompt)] if isinstance(prompt, str) else list(prompt))

    @torch.inference_mode()
    def score(self, tokens: Items[int]) -> Tensor:
        """The model's logits after each token, read through the cache as generation reads it. [T, V] float32."""
        assert not self.busy, "score() needs the engine to itself"
        sequence = Sequence(Request("", tokens), 0, 0, 0.0, list(tokens), limit=len(tokens) + 1)
        caching, self.pages.caching = self.pages.caching, False
        self.scheduler.add([sequence])
        rows = []
        try:
            while sequence.remaining:
                step = self.scheduler.schedule()
                if not step.chunks:
                    raise ValueError(f"{len(tokens)} tokens do not fit the cache; raise kv_cache.memory")
                rows.append(self.model.exact_logits(forward(self.model, self.pool, step.chunks)))
                self.scheduler.after(step)
        finally:
            self.scheduler.finish(sequence)
            self.pages.caching = caching
        return torch.cat(rows)
