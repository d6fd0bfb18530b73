"""A run's metrics, from its result parts and its counters.

A metric is known by `scope/name`; these are stable. Unless said otherwise it is over all committed rows, and its value is
null where it is undefined. `invocation` is what the last `run` of the folder did, which after a resume is not all rows.

    run/tasks, rows, attempts, error_rows      attempts: judged rows without `no_tests` and `infra_error`
    run/pass@K                                 share; K of 1, 2, 5, 10, 20, 50, 100 up to the samples a task, and these;
                                               n: tasks with K attempts or more; 95 % interval: Wilson's where each
                                               has one attempt, else a bootstrap over tasks
    run/syntax_rate                            share of the rows with a completion whose code parses
    run/tokens_in, tokens_out                  tokens; prompts are counted once a sample
    run/prefix_hit_rate                        share of the tokens in that were not computed
    run/ttft_ms_p50, _p95, _p99                ms; quantiles are interpolated linearly between neighbours
    run/latency_ms_p50, _p95, _p99             ms
    run/output_tokens_per_second               invocation: tokens out by the wall time of stage `generate`
    run/judged_per_second                      invocation: judged rows by the wall time of stage `total`
    priority=P0/pass@1, ...                    as run/pass@1, over the tasks of a priority
    verdict/VERDICT                            rows, all verdicts
    error/CODE                                 rows, the codes that occurred
    finish/REASON                              rows, the finish reasons that occurred
    engine/prompt_tokens, cached_tokens, prefill_tokens, decode_tokens, steps, preemptions    invocation: counters
    engine/prefill_tokens_per_second, decode_tokens_per_second     invocation: of one engine, by its own time
    engine/mean_batch_size                     invocation: sequences a step
    engine/padding_waste                       invocation: share of batch rows that carried no token
    engine/kv_bytes_peak, kv_bytes_bf16_peak, kv_ratio             invocation: pages in use, and what bf16 would take
    stage/load, generate, judge_wait, commit, total                invocation: seconds; stages overlap
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.records import EngineStats, Metric, Verdict
from .validate.passk import interval, mean_pass_at_k

if TYPE_CHECKING:
    import polars as pl

Counts = list[tuple[int, int]]  # attempts and passes, a task

DEFAULT_PRIORITY = "P1"
_KS = (1, 2, 5, 10, 20, 50, 100)
_QUANTILES = (50, 95, 99)
_TIMES = ("ttft_ms", "latency_ms")


def compute_metrics(
    results: Sequence[Path],
    stats: EngineStats | None,
    stage_seconds: Mapping[str, float],
    samples: int,
    priorities: Mapping[str, str] | None = None,
    since: datetime | None = None,
) -> list[Metric]:
    """All metrics of a run; reads only the columns they need, and keeps two integers a task.

    Args:
        results: committed parts; none is a run without rows.
        stats: what the engines counted, summed; None where nothing was generated.
        stage_seconds: wall time by stage.
        samples: completions asked for a task.
        priorities: priority by task_id; tasks that it lacks have the default. None: no metrics by priority.
        since: start of this invocation, in UTC: rates leave out rows that finished before it. None: all rows count.
    """
    rows = _read(results, since)
    return [
        *_row_metrics(rows),
        *(_pass_metric("run", rows.counts(), k) for k in pass_ks(samples)),
        *_priority_metrics(rows, priorities),
        *_token_metrics(rows.totals),
        *_time_metrics(rows.totals),
        *_rate_metrics(rows.totals, stage_seconds),
        *_tally("verdict", {str(verdict): 0 for verdict in Verdict} | rows.verdicts),
        *_tally("error", rows.errors),
        *_tally("finish", rows.finishes),
        *(_engine_metrics(stats) if stats else ()),
        *(Metric("stage", stage, seconds, "s") for stage, seconds in stage_seconds.items()),
    ]


def pass_ks(samples: int) -> list[int]:
    """The k that pass@k is given for."""
    return sorted({k for k in _KS if k <= samples} | {samples})


def count_verdicts(results: Sequence[Path]) -> dict[str, int]:
    """Rows by verdict, in the order of Verdict; those that do not occur are left out."""
    return _by_verdict(_count(_scan(results), "verdict").collect(engine="streaming"))


# Reading


@dataclass(frozen=True)
class _Rows:
    """What the metrics need of the result rows."""

    totals: Mapping[str, Any]  # one value a sum, count or quantile
    tasks: "pl.DataFrame"  # task_id, attempts, passes; every task that has a row
    verdicts: dict[str, int]
    errors: dict[str, int]
    finishes: dict[str, int]

    def counts(self) -> Counts:
        return self.tasks.select("attempts", "passes").rows()


def _read(results: Sequence[Path], since: datetime | None) -> _Rows:
    import polars as pl

    frame = _scan(results)
    judged = pl.col("verdict").is_not_null() & pl.col("error_code").is_null()
    attempt = judged & pl.col("verdict").is_in([str(verdict) for verdict in Verdict if verdict.counts])
    mine = pl.lit(True) if since is None else (pl.col("finished_at") >= since).fill_null(False)
    totals = frame.select(
        pl.len().alias("rows"),
        attempt.sum().alias("attempts"),
        pl.col("error_code").count().alias("error_rows"),
        pl.col("syntax_ok").filter(judged).sum().alias("syntax_ok"),
        pl.col("syntax_ok").filter(judged).count().alias("parsed"),
        pl.col("completion_tokens").count().alias("generated_rows"),
        *(pl.col(name).sum().cast(pl.Int64) for name in ("prompt_tokens", "cached_prompt_tokens", "completion_tokens")),
        pl.col("completion_tokens").filter(mine).sum().cast(pl.Int64).alias("my_tokens"),
        (judged & mine).sum().alias("my_judged"),
        *(pl.col(name).count().alias(f"{name}_n") for name in _TIMES),
        *(pl.col(name).quantile(q / 100, interpolation="linear").alias(f"{name}_p{q}") for name in _TIMES for q in _QUANTILES),
    )
    passes = (attempt & (pl.col("verdict") == Verdict.PASSED.value)).sum().alias("passes")
    tasks = frame.group_by("task_id").agg(attempt.sum().alias("attempts"), passes).sort("task_id")
    lazy = [totals, tasks, *(_count(frame, name) for name in ("verdict", "error_code", "finish_reason"))]
    read = pl.collect_all(lazy, engine="streaming")
    verdicts, errors, finishes = (dict(table.rows()) for table in read[2:])
    return _Rows(read[0].row(0, named=True), read[1], verdicts, errors, finishes)


def _scan(results: Sequence[Path]) -> "pl.LazyFrame":
    import polars as pl

    if results:
        return pl.scan_parquet(list(results))
    from ..schemas.tables import RESULT

    return pl.LazyFrame(pl.from_arrow(RESULT.empty_table()))


def _count(frame: "pl.LazyFrame", column: str) -> "pl.LazyFrame":
    """The values of a column, nulls aside, and how often they occur; the most frequent first."""
    import polars as pl

    return frame.drop_nulls(column).group_by(column).len().sort(["len", pl.col(column)], descending=[True, False])


def _by_verdict(table: "pl.DataFrame") -> dict[str, int]:
    counts = dict(table.rows())
    return {str(verdict): counts[verdict] for verdict in Verdict if verdict in counts}


# Metrics


def _row_metrics(rows: _Rows) -> Iterator[Metric]:
    totals = rows.totals
    yield Metric("run", "tasks", rows.tasks.height, "tasks")
    for name in ("rows", "attempts", "error_rows"):
        yield Metric("run", name, totals[name], "rows")
    yield Metric("run", "syntax_rate", _ratio(totals["syntax_ok"], totals["parsed"]), "share", totals["parsed"])


def _pass_metric(scope: str, counts: Counts, k: int) -> Metric:
    enough = [(attempts, passes) for attempts, passes in counts if attempts >= k]
    low, high = interval(enough, k) or (None, None)
    return Metric(scope, f"pass@{k}", mean_pass_at_k(enough, k), "share", len(enough), low, high)


def _priority_metrics(rows: _Rows, priorities: Mapping[str, str] | None) -> Iterator[Metric]:
    if priorities is None:
        return
    by_priority: dict[str, Counts] = defaultdict(list)
    for task_id, attempts, passes in rows.tasks.iter_rows():
        by_priority[priorities.get(task_id, DEFAULT_PRIORITY)].append((attempts, passes))
    for priority, counts in sorted(by_priority.items()):
        yield _pass_metric(f"priority={priority}", counts, 1)


def _token_metrics(totals: Mapping[str, Any]) -> Iterator[Metric]:
    tokens_in, n = totals["prompt_tokens"], totals["generated_rows"]
    yield Metric("run", "tokens_in", tokens_in, "tokens", n)
    yield Metric("run", "tokens_out", totals["completion_tokens"], "tokens", n)
    yield Metric("run", "prefix_hit_rate", _ratio(totals["cached_prompt_tokens"], tokens_in), "share", tokens_in)


def _time_metrics(totals: Mapping[str, Any]) -> Iterator[Metric]:
    for name in _TIMES:
        for q in _QUANTILES:
            yield Metric("run", f"{name}_p{q}", totals[f"{name}_p{q}"], "ms", totals[f"{name}_n"])


def _rate_metrics(totals: Mapping[str, Any], stage_seconds: Mapping[str, float]) -> Iterator[Metric]:
    tokens, judged = totals["my_tokens"], totals["my_judged"]
    yield Metric("run", "output_tokens_per_second", _ratio(tokens, stage_seconds.get("generate")), "tokens/s", tokens)
    yield Metric("run", "judged_per_second", _ratio(judged, stage_seconds.get("total")), "rows/s", judged)


def _tally(scope: str, counts: Mapping[str, int]) -> Iterator[Metric]:
    return (Metric(scope, name, rows, "rows") for name, rows in counts.items())


def _engine_metrics(stats: EngineStats) -> Iterator[Metric]:
    for name in ("prompt_tokens", "cached_tokens", "prefill_tokens", "decode_tokens"):
        yield Metric("engine", name, getattr(stats, name), "tokens")
    prefill = _ratio(stats.prefill_tokens, stats.prefill_seconds)
    decode = _ratio(stats.decode_tokens, stats.decode_seconds)
    yield Metric("engine", "prefill_tokens_per_second", prefill, "tokens/s", stats.prefill_tokens)
    yield Metric("engine", "decode_tokens_per_second", decode, "tokens/s", stats.decode_tokens)
    yield Metric("engine", "steps", stats.steps, "steps")
    yield Metric("engine", "preemptions", stats.preemptions, "times")
    yield Metric("engine", "mean_batch_size", _ratio(stats.batch_size_sum, stats.steps), "sequences", stats.steps)
    yield Metric("engine", "padding_waste", _ratio(stats.row_slots_idle, stats.row_slots), "share", stats.row_slots)
    yield Metric("engine", "kv_bytes_peak", stats.kv_bytes_peak, "bytes")
    yield Metric("engine", "kv_bytes_bf16_peak", stats.kv_bytes_bf16_peak, "bytes")
    yield Metric("engine", "kv_ratio", _ratio(stats.kv_bytes_peak, stats.kv_bytes_bf16_peak), "ratio")


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None
