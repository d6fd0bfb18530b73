"""Metrics of hand-made parts, with numbers worked out by hand."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from codegen_batch.pipeline.metrics import compute_metrics, count_verdicts, pass_ks
from codegen_batch.pipeline.validate.passk import wilson
from codegen_batch.schemas.records import EngineStats, Metric, Verdict
from codegen_batch.schemas.tables import RESULT

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def judged(task_id: str, sample_index: int, verdict: str, **columns: Any) -> dict[str, Any]:
    generated = {
        "finish_reason": "stop",
        "prompt_tokens": 100,
        "cached_prompt_tokens": 0,
        "completion_tokens": 10,
        "ttft_ms": 50.0,
        "latency_ms": 500.0,
        "syntax_ok": verdict != "syntax_error",
        "finished_at": NOON,
    }
    return {"task_id": task_id, "sample_index": sample_index, "fingerprint": "f", "verdict": verdict, **generated, **columns}


def failed(task_id: str, sample_index: int, code: str) -> dict[str, Any]:
    row = {"task_id": task_id, "sample_index": sample_index, "fingerprint": "f", "finished_at": NOON}
    return {**row, "error_stage": "prompt", "error_code": code, "error_message": "no"}


def write_parts(folder: Path, *parts: list[dict[str, Any]]) -> list[Path]:
    paths = [folder / f"part-{i:05}.parquet" for i in range(len(parts))]
    for path, rows in zip(paths, parts, strict=True):
        pq.write_table(pa.Table.from_pylist(rows, schema=RESULT), path)
    return paths


def by_name(metrics: list[Metric]) -> dict[str, Metric]:
    named = {f"{metric.scope}/{metric.name}": metric for metric in metrics}
    assert len(named) == len(metrics), "scope and name identify a metric"
    return named


def of(parts: list[Path], samples: int = 1, **arguments: Any) -> dict[str, Metric]:
    return by_name(compute_metrics(parts, arguments.pop("stats", None), arguments.pop("stages", {}), samples, **arguments))


@pytest.mark.parametrize(
    ("samples", "ks"), [(1, [1]), (2, [1, 2]), (7, [1, 2, 5, 7]), (10, [1, 2, 5, 10]), (150, [1, 2, 5, 10, 20, 50, 100, 150])]
)
def test_pass_is_given_for_round_k_and_for_all_samples(samples: int, ks: list[int]) -> None:
    assert pass_ks(samples) == ks


def test_one_sample_a_task_is_the_share_that_passed_with_wilsons_interval(tmp_path: Path) -> None:
    rows = [judged(f"t{i}", 0, "passed" if i < 3 else "wrong_answer") for i in range(4)]
    metric = of(write_parts(tmp_path, rows[:2], rows[2:]))["run/pass@1"]
    assert (metric.value, metric.unit, metric.n) == (0.75, "share", 4)
    assert (metric.ci_low, metric.ci_high) == wilson(3, 4)


def test_several_samples_use_the_unbiased_estimator_with_an_interval_over_tasks(tmp_path: Path) -> None:
    a = [judged("a", i, "passed" if i == 0 else "runtime_error") for i in range(4)]
    b = [judged("b", i, "passed" if i < 2 else "timeout_cpu") for i in range(4)]
    metrics = of(write_parts(tmp_path, a, b), samples=4)
    assert metrics["run/pass@1"].value == pytest.approx((1 / 4 + 2 / 4) / 2)
    assert metrics["run/pass@2"].value == pytest.approx(((1 - 3 / 6) + (1 - 1 / 6)) / 2)
    assert metrics["run/pass@4"].value == 1.0
    low, high = metrics["run/pass@1"].ci_low, metrics["run/pass@1"].ci_high
    assert low is not None
    assert high is not None
    assert 0.25 <= low <= 0.375 <= high <= 0.5


def test_a_tasks_samples_are_counted_together_over_parts(tmp_path: Path) -> None:
    parts = write_parts(tmp_path, [judged("a", 0, "passed")], [judged("a", 1, "wrong_answer")])
    metrics = of(parts, samples=2)
    assert metrics["run/tasks"].value == 1
    assert (metrics["run/pass@1"].value, metrics["run/pass@1"].n) == (0.5, 1)


@pytest.fixture
def mixed(tmp_path: Path) -> dict[str, Metric]:
    """a: one pass, one infra_error. b: no tests. c: never generated. d: one failure, one pass."""
    rows = [
        *[judged("a", 0, "passed"), judged("a", 1, "infra_error"), judged("b", 0, "no_tests"), judged("b", 1, "no_tests")],
        *[failed("c", 0, "prompt_too_long"), failed("c", 1, "null_prompt")],
        *[judged("d", 0, "syntax_error", finish_reason="length"), judged("d", 1, "passed")],
    ]
    return of(write_parts(tmp_path, rows), samples=2)


def test_rows_that_are_no_attempts_do_not_count(mixed: dict[str, Metric]) -> None:
    assert mixed["run/attempts"].value == 3
    assert (mixed["run/pass@1"].value, mixed["run/pass@1"].n) == (0.75, 2)
    assert (mixed["run/pass@2"].value, mixed["run/pass@2"].n) == (1.0, 1)


def test_rows_that_are_no_attempts_are_reported(mixed: dict[str, Metric]) -> None:
    assert [mixed[f"run/{name}"].value for name in ("tasks", "rows", "error_rows")] == [4, 8, 2]
    verdicts = {str(verdict): mixed[f"verdict/{verdict}"].value for verdict in Verdict}
    assert {name: rows for name, rows in verdicts.items() if rows} == {
        "passed": 2,
        "syntax_error": 1,
        "no_tests": 2,
        "infra_error": 1,
    }
    assert (mixed["error/null_prompt"].value, mixed["error/prompt_too_long"].value) == (1, 1)
    assert (mixed["finish/stop"].value, mixed["finish/length"].value) == (5, 1)
    assert (mixed["run/syntax_rate"].value, mixed["run/syntax_rate"].n) == (5 / 6, 6)


def test_pass_is_null_where_no_task_has_enough_attempts(tmp_path: Path) -> None:
    metric = of(write_parts(tmp_path, [judged("a", 0, "passed"), failed("a", 1, "out_of_memory")]), samples=2)["run/pass@2"]
    assert metric == Metric("run", "pass@2", None, "share", 0)


def test_priorities_have_their_own_pass_rate_and_missing_ones_are_the_default(tmp_path: Path) -> None:
    parts = write_parts(tmp_path, [judged("a", 0, "passed"), judged("b", 0, "no_code"), judged("c", 0, "passed")])
    metrics = of(parts, priorities={"a": "P0", "b": "P2"})
    rates = {name: (metric.value, metric.n) for name, metric in metrics.items() if name.startswith("priority=")}
    assert rates == {"priority=P0/pass@1": (1.0, 1), "priority=P1/pass@1": (1.0, 1), "priority=P2/pass@1": (0.0, 1)}


def test_quantiles_are_linear_between_neighbours_and_leave_out_rows_without_a_completion(tmp_path: Path) -> None:
    rows = [judged(f"t{i}", 0, "passed", ttft_ms=float(10 * i), latency_ms=float(i)) for i in range(5)]  # 0, 10, ..., 40
    metrics = of(write_parts(tmp_path, [*rows, failed("e", 0, "engine_failure")]))
    assert [metrics[f"run/ttft_ms_p{q}"].value for q in (50, 95, 99)] == pytest.approx([20, 38, 39.6])
    assert [metrics[f"run/latency_ms_p{q}"].value for q in (50, 95, 99)] == pytest.approx([2, 3.8, 3.96])
    assert metrics["run/ttft_ms_p95"].n == 5


def test_tokens_and_prefix_hits_are_summed_over_rows(tmp_path: Path) -> None:
    rows = [judged("a", 0, "passed"), judged("a", 1, "passed", cached_prompt_tokens=60, completion_tokens=7)]
    metrics = of(write_parts(tmp_path, rows), samples=2)
    assert (metrics["run/tokens_in"].value, metrics["run/tokens_out"].value) == (200, 17)
    assert metrics["run/prefix_hit_rate"].value == 0.3


def test_rates_are_of_this_invocation_alone(tmp_path: Path) -> None:
    earlier = judged("a", 0, "passed", finished_at=NOON - timedelta(hours=1), completion_tokens=1000)
    parts = write_parts(tmp_path, [earlier, judged("b", 0, "passed"), failed("c", 0, "null_prompt")])
    stages = {"generate": 5.0, "total": 4.0}
    resumed, whole = of(parts, stages=stages, since=NOON), of(parts, stages=stages)
    assert resumed["run/output_tokens_per_second"].value == 10 / 5
    assert resumed["run/judged_per_second"].value == 1 / 4
    assert whole["run/output_tokens_per_second"].value == 1010 / 5
    assert resumed["run/tokens_out"].value == 1010


def test_engine_counters_become_rates_and_ratios(tmp_path: Path) -> None:
    stats = EngineStats(
        prompt_tokens=500,
        cached_tokens=100,
        prefill_tokens=400,
        decode_tokens=90,
        prefill_seconds=2.0,
        decode_seconds=3.0,
        steps=10,
        batch_size_sum=35,
        row_slots=40,
        row_slots_idle=5,
        preemptions=2,
        kv_bytes_peak=27,
        kv_bytes_bf16_peak=108,
    )
    metrics = of(write_parts(tmp_path, [judged("a", 0, "passed")]), stats=stats, stages={"load": 1.5})
    names = (
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
        "mean_batch_size",
        "padding_waste",
        "kv_ratio",
        "preemptions",
    )
    assert [metrics[f"engine/{name}"].value for name in names] == [200, 30, 3.5, 0.125, 0.25, 2]
    assert metrics["stage/load"] == Metric("stage", "load", 1.5, "s")


def test_workers_counters_add_up_field_by_field() -> None:
    a = EngineStats(prefill_tokens=3, decode_seconds=0.5, preemptions=1)
    total = sum([a, EngineStats(prefill_tokens=4, decode_seconds=0.25, kv_bytes_peak=9)], EngineStats())
    assert total == EngineStats(prefill_tokens=7, decode_seconds=0.75, preemptions=1, kv_bytes_peak=9)


@pytest.mark.parametrize("parts", [[], [[]]], ids=["no-part", "part-without-rows"])
def test_an_empty_run_has_zero_counts_and_null_rates(tmp_path: Path, parts: list[list[dict[str, Any]]]) -> None:
    metrics = of(write_parts(tmp_path, *parts), samples=2, stats=EngineStats(), stages={"total": 0.0}, priorities={})
    assert metrics["run/rows"].value == 0
    assert metrics["run/tokens_out"].value == 0
    undefined = [
        f"run/{name}" for name in ("pass@1", "pass@2", "syntax_rate", "prefix_hit_rate", "ttft_ms_p50", "judged_per_second")
    ]
    undefined += ["engine/padding_waste", "engine/kv_ratio", "engine/decode_tokens_per_second"]
    assert [metrics[name].value for name in undefined] == [None] * len(undefined)


def test_verdicts_are_counted_in_their_own_order(tmp_path: Path) -> None:
    rows = [
        judged("a", 0, "wrong_answer"),
        judged("b", 0, "passed"),
        judged("c", 0, "wrong_answer"),
        failed("d", 0, "null_prompt"),
    ]
    assert list(count_verdicts(write_parts(tmp_path, rows)).items()) == [("passed", 1), ("wrong_answer", 2)]
    assert count_verdicts([]) == {}
