"""The scheduler and its pages, driven with tokens from a script in the model's place: every sequence ends, no page is lost."""

import pytest
from codegen_batch.pipeline.engine.pages import Pages
from codegen_batch.pipeline.engine.scheduler import Scheduler
from codegen_batch.pipeline.engine.sequence import Request, Sequence, Snapshot, State
from codegen_batch.schemas.job import Batching
from hypothesis import given, settings
from hypothesis import strategies as st

PAGE = 16


class Driver:
    """Runs a scheduler as the engine does; the token after n tokens of a prompt is a function of the prompt alone."""

    def __init__(self, pages: int, batching: Batching, caching: bool = True) -> None:
        raw = 4 * batching.max_sequences + batching.max_batch_tokens // PAGE
        self.pages = Pages(PAGE, pages, raw, caching)
        self.scheduler = Scheduler(self.pages, batching)
        self.computed = 0  # tokens that went through a forward pass
        self.gave_up: list[Sequence] = []

    def add(self, prompt: list[int], new: int, samples: int = 1) -> list[Sequence]:
        request = Request("r", prompt, tuple(range(samples)))
        made = [Sequence(request, i, 0, 0.0, list(prompt), len(prompt) + new) for i in range(samples)]
        self.scheduler.add(made)
        return made

    def step(self) -> None:
        step = self.scheduler.schedule()
        if not step.chunks and not step.forks:
            stuck = self.scheduler.next_up()
            assert stuck is not None
            self.gave_up.append(stuck)
            self.scheduler.finish(stuck)
            return
        rows = sum(n for _, n in step.chunks)
        assert rows <= self.scheduler.batching.max_batch_tokens
        assert len(self.scheduler.running) <= self.scheduler.batching.max_sequences
        self.computed += rows
        due = [s for s, n in step.chunks if n == s.remaining]
        self.scheduler.after(step)
        for sequence in due:
            if sequence.request.waiting and not sequence.request.snapshot and not sequence.generated:
                raw = self.pages.take_raw() if sequence.raws else None
                self.scheduler.keep(sequence, Snapshot(list(sequence.sealed), raw, None, None))  # type: ignore[arg-type]
        for sequence, _ in step.forks:
            self.scheduler.forked(sequence)
        for sequence in due + [s for s, _ in step.forks]:
            sequence.tokens.append(1000 + len(sequence.tokens))
            if len(sequence.tokens) >= sequence.limit:
                self.scheduler.finish(sequence)
        self.pages.check()

    def run(self) -> None:
        for _ in range(10_000):
            if not (self.scheduler.waiting or self.scheduler.running):
                break
            self.step()
        else:
            pytest.fail("the scheduler makes no progress")
        assert self.pages.available == self.pages.sealed_total
        assert len(self.pages._raw) == self.pages.raw_total


requests = st.lists(
    st.tuples(st.integers(1, 120), st.integers(1, 40), st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=12
)


@settings(max_examples=200, deadline=None)
@given(
    requests=requests,
    pages=st.integers(1, 40),
    width=st.sampled_from([1, 3, 8]),
    mode=st.sampled_from(["dynamic", "static"]),
    caching=st.booleans(),
)
def test_everything_ends_and_no_page_is_lost(
    requests: list[tuple[int, int, int, int]], pages: int, width: int, mode: str, caching: bool
) -> None:
    batching = Batching(max_sequences=width, max_batch_tokens=64, mode=mode, length_buckets=[32, 64])
    driver = Driver(pages, batching, caching)
    made = [
        (sequence, length + new)
        for length, new, samples, prefix in requests
        for sequence in driver.add([prefix] * min(40, length) + list(range(max(0, length - 40))), new, samples)
    ]
    driver.run()
    for sequence, total in made:
        assert sequence.state is State.FINISHED
        if sequence in driver.gave_up:
            assert total // PAGE >= pages, "given up although it fits alone"
        else:
            assert len(sequence.tokens) == total


def test_samples_of_a_prompt_prefill_it_once() -> None:
    driver = Driver(100, Batching(max_sequences=16, max_batch_tokens=512))
    driver.add(list(range(75)), new=5, samples=10)
    driver.run()
    assert driver.computed == 75 + 10 * 4  # the first token of each sample needs no row of its own


@pytest.mark.parametrize("samples", [3, 40], ids=["fewer-than-slots", "more-than-slots"])
def test_samples_beyond_the_slots_still_prefill_once(samples: int) -> None:
    driver = Driver(100, Batching(max_sequences=4, max_batch_tokens=64))
    driver.add(list(range(50)), new=3, samples=samples)
    driver.run()
    assert driver.computed == 50 + samples * 2


def test_a_shared_prefix_is_prefilled_once_by_prompts_that_arrive_together() -> None:
    driver = Driver(400, Batching(max_sequences=64, max_batch_tokens=512))
    for i in range(64):
        driver.add([*range(600), 5000 + i], new=1)
    driver.run()
    assert driver.computed <= 601 + 63 * (600 % PAGE + 1)


def test_preempted_sequences_finish_in_a_small_cache() -> None:
    driver = Driver(12, Batching(max_sequences=8, max_batch_tokens=64))
    made = [driver.add([i] * 20, new=60)[0] for i in range(8)]
    driver.run()
    assert driver.scheduler.preemptions > 0
    assert not driver.gave_up
    assert all(len(s.tokens) == 80 for s in made)


def test_a_static_batch_takes_one_length_bucket_and_nothing_joins_it() -> None:
    batching = Batching(max_sequences=4, max_batch_tokens=512, mode="static", length_buckets=[32, 128])
    driver = Driver(200, batching)
    short = [driver.add([i] * 10, new=3 + i)[0] for i in range(3)]
    long = [driver.add([i] * 100, new=3)[0] for i in range(3)]
    while not long[0].started:
        driver.step()
        running = {id(s) for s in driver.scheduler.running}
        assert running <= {id(s) for s in short} or running <= {id(s) for s in long}
    assert all(s.state is State.FINISHED for s in short)
    driver.run()


def test_equal_pages_computed_twice_are_kept_once() -> None:
    pages = Pages(PAGE, 4, 4, caching=True)
    first, second = pages.take(), pages.take()
    tokens = list(range(PAGE))
    assert pages.seal([], first, tokens) == first
    assert pages.seal([], second, tokens) == first
    pages.give([first])
    pages.give([first])
    assert pages.find([*tokens, 1]) == [first]
    assert pages.available == 4


def test_the_last_token_of_a_prompt_is_never_taken_from_the_cache() -> None:
    pages = Pages(PAGE, 4, 4, caching=True)
    page = pages.take()
    pages.seal([], page, list(range(PAGE)))
    assert pages.find(list(range(PAGE))) == []
    assert pages.find(list(range(PAGE + 1))) == [page]


def test_the_page_used_least_recently_goes_first() -> None:
    pages = Pages(PAGE, 2, 4, caching=True)
    for start in (0, 100):
        page = pages.take()
        pages.seal([], page, list(range(start, start + PAGE)))
        pages.give([page])
    pages.share(pages.find(list(range(PAGE + 1))))
    pages.give(pages.find(list(range(PAGE + 1))))
    pages.take()
    assert pages.find(list(range(PAGE + 1)))
    assert not pages.find(list(range(100, 100 + PAGE + 1)))
