"""The closing summary of a run: a table for people, a dictionary for machines."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..schemas.records import Json, Metric, Verdict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from .store import RunInfo

Line = tuple[str, str, str]  # label, text, style
UNDEFINED = "-"
LOUD = "bold red"
WHOLE = "whole"  # a text that is copied, such as a path: neither cut nor wrapped
LABEL_WIDTH = 12


def print_summary(metrics: Sequence[Metric], run: "RunInfo", console: "Console") -> None:
    """Prints the closing table; a long path is never cut or wrapped, so that it can be copied."""
    console.print(summary_table(metrics, run), crop=False)


def summary_table(metrics: Sequence[Metric], run: "RunInfo") -> "RenderableType":
    """One glance: pass@k, verdicts, what went wrong, throughput, cache, and where the results are."""
    by_name = {(metric.scope, metric.name): metric for metric in metrics}
    blocks = [
        [("run", f"{run.job.get('name', run.path.name)}: {progress_of(run)}", "bold")],
        [*_quality(metrics, by_name), *_loud(metrics)],
        list(_throughput(by_name)),
        list(_cache(by_name)),
        [*_stages(metrics), ("results", str(run.path), WHOLE)],
    ]
    lines = [line for block in blocks if block for line in [*block, ("", "", "")]]
    return aligned(lines[:-1])


def aligned(lines: Iterable[Line]) -> "RenderableType":
    """Labels and texts in two columns; texts wrap within theirs, but for the style WHOLE."""
    from rich.console import Group
    from rich.table import Column, Table
    from rich.text import Text

    def row(label: str, text: str, style: str) -> "RenderableType":
        if style == WHOLE or not text:
            return Text.assemble((f"{label:<{LABEL_WIDTH}}" if label else "", "dim"), text, no_wrap=True, overflow="ignore")
        grid = Table.grid(Column(width=LABEL_WIDTH, style="dim"), Column())
        grid.add_row(Text(label), Text(text, style))
        return grid

    return Group(*(row(*line) for line in lines))


def summary_json(metrics: Sequence[Metric], run: "RunInfo") -> Json:
    """The same for machines: the run, and all metrics as `{scope: {name: {value, unit, n, ci_low, ci_high}}}`."""
    scopes: Json = {}
    for metric in metrics:
        numbers = {"value": metric.value, "ci_low": metric.ci_low, "ci_high": metric.ci_high}
        finite = {name: number if number is not None and math.isfinite(number) else None for name, number in numbers.items()}
        scopes.setdefault(metric.scope, {})[metric.name] = {**finite, "unit": metric.unit, "n": metric.n}
    return {"run": run_json(run), "metrics": scopes}


def run_json(run: "RunInfo") -> Json:
    """What is known of a run's folder, for machines."""
    return {
        "name": run.job.get("name"),
        "path": str(run.path),
        "fingerprint": run.fingerprint,
        "rows": run.rows,
        "expected_rows": run.expected_rows,
        "finished": run.finished,
        "parts": [str(part) for part in run.parts],
    }


def progress_of(run: "RunInfo") -> str:
    """How far a run is, in words."""
    if run.expected_rows is None:
        return f"{plural(run.rows, 'row')}, the tasks are not counted yet"
    state = "finished" if run.finished else "not finished"
    return f"{state}, {run.rows:,} of {plural(run.expected_rows, 'row')}"


# Lines

Names = Mapping[tuple[str, str], Metric]


def _quality(metrics: Sequence[Metric], by_name: Names) -> Iterator[Line]:
    for metric in metrics:
        if metric.name.startswith("pass@"):
            scope, _, priority = metric.scope.partition("=")
            label = f"{priority} {metric.name}" if scope == "priority" else metric.name
            yield label, _pass_text(metric), "bold" if metric.scope == "run" else ""
    yield "syntax ok", _percent(by_name, "run", "syntax_rate"), ""
    verdicts = [(metric.name, metric.value) for metric in metrics if metric.scope == "verdict" and metric.value]
    if verdicts:
        yield "verdicts", ", ".join(f"{name} {rows:,.0f}" for name, rows in verdicts), ""
    finishes = [f"{metric.name} {metric.value:,.0f}" for metric in metrics if metric.scope == "finish"]
    if finishes:
        yield "finished by", ", ".join(finishes), ""


def _pass_text(metric: Metric) -> str:
    if metric.value is None:
        return f"{UNDEFINED}  no task has that many attempts"
    interval = f"  [{metric.ci_low:.3f}, {metric.ci_high:.3f}]" if None not in (metric.ci_low, metric.ci_high) else ""
    return f"{metric.value:.3f}{interval}  {plural(metric.n or 0, 'task')}"


def _loud(metrics: Sequence[Metric]) -> Iterator[Line]:
    """Rows that are no attempts, so that no pass@k is read without them."""
    lost = [m for m in metrics if m.scope == "verdict" and m.value and not Verdict(m.name).counts]
    errors = [m for m in metrics if m.scope == "error" and m.value]
    for found, what in ((lost, "not judged"), (errors, "failed")):
        if found:
            rows = int(sum(m.value or 0 for m in found))
            names = ", ".join(f"{m.name} {m.value:,.0f}" for m in found)
            yield "ATTENTION", f"{plural(rows, 'row')} {what}, not counted in pass@k: {names}", LOUD


def _throughput(by_name: Names) -> Iterator[Line]:
    rates = {
        "output": _amount(by_name, "run", "output_tokens_per_second"),
        "prefill": _amount(by_name, "engine", "prefill_tokens_per_second"),
        "decode": _amount(by_name, "engine", "decode_tokens_per_second"),
    }
    if all(text == UNDEFINED for text in rates.values()):
        return
    yield "tokens/s", ", ".join(f"{name} {text}" for name, text in rates.items()), ""
    tokens = [f"{name} {_amount(by_name, 'run', f'tokens_{name}')}" for name in ("in", "out")]
    yield "tokens", ", ".join([*tokens, f"prefix hits {_percent(by_name, 'run', 'prefix_hit_rate')}"]), ""
    for label, name in (("TTFT ms", "ttft_ms"), ("latency ms", "latency_ms")):
        yield label, ", ".join(f"p{q} {_amount(by_name, 'run', f'{name}_p{q}')}" for q in (50, 95, 99)), ""
    yield "judged/s", _amount(by_name, "run", "judged_per_second", decimals=1), ""


def _cache(by_name: Names) -> Iterator[Line]:
    if ("engine", "steps") not in by_name:
        return
    used, in_bf16 = (by_name["engine", name].value for name in ("kv_bytes_peak", "kv_bytes_bf16_peak"))
    ratio = _amount(by_name, "engine", "kv_ratio", decimals=2)
    yield "KV cache", f"{bytes_text(used)} at its peak, {ratio} of the {bytes_text(in_bf16)} that bf16 takes", ""
    batch = _amount(by_name, "engine", "mean_batch_size", decimals=1)
    preemptions = plural(int(by_name["engine", "preemptions"].value or 0), "preemption")
    yield "batches", f"mean {batch} sequences, padding {_percent(by_name, 'engine', 'padding_waste')}, {preemptions}", ""


def _stages(metrics: Sequence[Metric]) -> Iterator[Line]:
    stages = [f"{m.name.replace('_', ' ')} {m.value:,.1f} s" for m in metrics if m.scope == "stage" and m.value is not None]
    if stages:
        yield "time", ", ".join(stages), ""


# Numbers


def plural(count: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def bytes_text(count: float | None) -> str:
    """Bytes in binary units with one decimal."""
    if count is None:
        return UNDEFINED
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _value(by_name: Names, scope: str, name: str) -> float | None:
    metric = by_name.get((scope, name))
    return metric.value if metric else None


def _amount(by_name: Names, scope: str, name: str, decimals: int = 0) -> str:
    value = _value(by_name, scope, name)
    return UNDEFINED if value is None else f"{value:,.{decimals}f}"


def _percent(by_name: Names, scope: str, name: str) -> str:
    value = _value(by_name, scope, name)
    return UNDEFINED if value is None else f"{100 * value:.1f} %"
