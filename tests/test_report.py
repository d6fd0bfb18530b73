"""The closing summary, from metrics of a real folder to text and JSON."""

import io
import json
from pathlib import Path

import pytest
from codegen_batch.pipeline.report import bytes_text, plural, print_summary, progress_of, summary_json
from codegen_batch.pipeline.store import RunInfo
from codegen_batch.schemas.records import Metric
from rich.console import Console

METRICS = [
    Metric("run", "tasks", 4.0, "tasks"),
    Metric("run", "pass@1", 0.75, "share", 4, 0.301, 0.954),
    Metric("run", "pass@5", None, "share", 0),
    Metric("priority=P0", "pass@1", 1.0, "share", 1, 0.207, 1.0),
    Metric("run", "syntax_rate", 0.875, "share", 8),
    Metric("run", "tokens_in", 12345.0, "tokens"),
    Metric("run", "tokens_out", 6789.0, "tokens"),
    Metric("run", "prefix_hit_rate", 0.3, "share"),
    Metric("run", "ttft_ms_p50", 20.4, "ms"),
    Metric("run", "output_tokens_per_second", 1234.5, "tokens/s"),
    Metric("verdict", "passed", 3.0, "rows"),
    Metric("verdict", "wrong_answer", 1.0, "rows"),
    Metric("verdict", "timeout_cpu", 0.0, "rows"),
    Metric("finish", "stop", 4.0, "rows"),
    Metric("stage", "generate", 12.34, "s"),
    Metric("stage", "judge_wait", 0.5, "s"),
]
ENGINE = [
    Metric("engine", "steps", 10.0, "steps"),
    Metric("engine", "preemptions", 1.0, "times"),
    Metric("engine", "mean_batch_size", 3.5, "sequences"),
    Metric("engine", "padding_waste", 0.125, "share"),
    Metric("engine", "kv_bytes_peak", 27 * 2.0**20, "bytes"),
    Metric("engine", "kv_bytes_bf16_peak", 108 * 2.0**20, "bytes"),
    Metric("engine", "kv_ratio", 0.25, "ratio"),
]


def run_info(path: Path, rows: int = 4, expected: int | None = 4) -> RunInfo:
    return RunInfo(path, {"name": "demo"}, "f" * 32, {}, {}, (path / "results" / "part-00000.parquet",), rows, expected)


def printed(metrics: list[Metric], path: Path = Path("runs/demo"), *, terminal: bool = False) -> str:
    file = io.StringIO()
    print_summary(metrics, run_info(path), Console(file=file, width=80, force_terminal=terminal))
    return file.getvalue()


def line(text: str, label: str) -> str:
    return next(line.removeprefix(label).strip() for line in text.splitlines() if line.startswith(label))


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("run", "demo: finished, 4 of 4 rows"),
        ("pass@1", "0.750  [0.301, 0.954]  4 tasks"),
        ("pass@5", "-  no task has that many attempts"),
        ("P0 pass@1", "1.000  [0.207, 1.000]  1 task"),
        ("syntax ok", "87.5 %"),
        ("verdicts", "passed 3, wrong_answer 1"),
        ("finished by", "stop 4"),
        ("tokens/s", "output 1,234, prefill -, decode -"),
        ("tokens ", "in 12,345, out 6,789, prefix hits 30.0 %"),
        ("TTFT ms", "p50 20, p95 -, p99 -"),
        ("KV cache", "27.0 MiB at its peak, 0.25 of the 108.0 MiB that bf16 takes"),
        ("batches", "mean 3.5 sequences, padding 12.5 %, 1 preemption"),
        ("time", "generate 12.3 s, judge wait 0.5 s"),
        ("results", "runs/demo"),
    ],
)
def test_a_line_of_the_summary(label: str, text: str) -> None:
    assert line(printed(METRICS + ENGINE), label) == text


def test_nothing_calls_for_attention_when_all_rows_are_attempts() -> None:
    assert "ATTENTION" not in printed(METRICS + ENGINE)


def test_rows_that_are_no_attempts_call_for_attention() -> None:
    lost = [Metric("verdict", "no_tests", 2.0, "rows"), Metric("verdict", "infra_error", 1.0, "rows")]
    text = printed([*METRICS, *lost, Metric("error", "null_prompt", 1.0, "rows")])
    loud = [line.removeprefix("ATTENTION").strip() for line in text.splitlines() if line.startswith("ATTENTION")]
    assert loud == [
        "3 rows not judged, not counted in pass@k: no_tests 2, infra_error 1",
        "1 row failed, not counted in pass@k: null_prompt 1",
    ]


def test_engine_lines_are_left_out_where_nothing_was_generated() -> None:
    text = printed([Metric("run", "pass@1", 0.5, "share", 2, 0.1, 0.9)])
    assert "KV cache" not in text
    assert "tokens" not in text


def test_off_terminal_it_is_plain() -> None:
    assert "\x1b" not in printed(METRICS + ENGINE)


def test_no_color_leaves_colours_out_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    loud = Metric("verdict", "infra_error", 1.0, "rows")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[1;31m" in printed([loud], terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "31m" not in printed([loud], terminal=True)


def test_a_long_path_is_neither_cut_nor_wrapped() -> None:
    path = Path("/".join(["a-long-folder-name"] * 12))
    assert line(printed(METRICS, path), "results") == str(path)


def test_long_texts_wrap_below_themselves() -> None:
    many = [Metric("finish", f"reason_{i}", 1.0, "rows") for i in range(9)]
    lines = printed(many).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("finished by"))
    assert lines[start + 1].startswith(" " * 12 + "1, reason_")
    assert all(len(line) <= 80 for line in lines)


def test_json_has_every_metric_and_is_valid_where_numbers_are_not_finite() -> None:
    content = summary_json([*METRICS, Metric("run", "odd", float("nan"))], run_info(Path("out"), rows=3))
    content = json.loads(json.dumps(content, allow_nan=False))
    assert content["metrics"]["run"]["pass@1"] == {"value": 0.75, "ci_low": 0.301, "ci_high": 0.954, "unit": "share", "n": 4}
    assert content["metrics"]["run"]["odd"]["value"] is None
    assert content["metrics"]["verdict"]["timeout_cpu"]["value"] == 0
    assert (content["run"]["name"], content["run"]["path"], content["run"]["finished"]) == ("demo", "out", False)


@pytest.mark.parametrize(
    ("rows", "expected", "text"),
    [
        (4, 4, "finished, 4 of 4 rows"),
        (1, 1200, "not finished, 1 of 1,200 rows"),
        (1, None, "1 row, the tasks are not counted yet"),
    ],
    ids=["finished", "under-way", "not-counted"],
)
def test_how_far_a_run_is(rows: int, expected: int | None, text: str) -> None:
    assert progress_of(run_info(Path("x"), rows, expected)) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (1 << 50, "1024.0 TiB")],
)
def test_bytes_in_binary_units(count: int | None, text: str) -> None:
    assert bytes_text(count) == text


def test_plurals() -> None:
    assert [plural(n, "row") for n in (0, 1, 1000)] == ["0 rows", "1 row", "1,000 rows"]
