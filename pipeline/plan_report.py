"""A plan as a table for people and as a dictionary for machines."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..schemas.records import Json
from .estimate import COMPLETION_SHARE, SLOWEST, KvNeed, TimeEstimate
from .plan import Padding, PlanReport
from .report import LOUD, Line, aligned, bytes_text, plural

if TYPE_CHECKING:
    from rich.console import RenderableType

BAR = 30  # characters of the longest bar
NO_LINE: Line = ("", "", "")


def plan_table(plan: PlanReport) -> "RenderableType":
    """Tasks, lengths, sharing, padding, cache and time."""
    bad = sum(plan.bad_rows.values())
    head: list[Line] = [
        ("job", f"{plan.name}: {plural(plan.tasks + bad, 'task')}, {plural(plan.samples, 'sample')} each", "bold"),
        ("rows", f"{plan.rows:,} results", ""),
    ]
    if bad:
        counts = ", ".join(f"{code} {count:,}" for code, count in plan.bad_rows.items())
        head.append(("ATTENTION", f"{plural(bad, 'task')} cannot be answered: {counts}", LOUD))
        head += [("", str(problem), "") for problem in plan.first_bad_rows]
    blocks = [head, list(_lengths(plan)), list(_work(plan)), list(_needs(plan))]
    lines = [line for block in blocks for line in [*block, NO_LINE]]
    return aligned(lines[:-1])


def plan_json(plan: PlanReport) -> Json:
    """The same for machines."""
    content = asdict(plan)
    content["first_bad_rows"] = [asdict(problem) for problem in plan.first_bad_rows]
    content["histogram"] = [{"up_to": bound, "tasks": tasks} for bound, tasks in plan.histogram]
    content["kv"] = [asdict(need) | {"fits": need.fits} for need in plan.kv]
    return content | {"rows": plan.rows}


def _lengths(plan: PlanReport) -> Iterator[Line]:
    spread = f"min {plan.min_tokens:,}, median {plan.median_tokens:,.0f}, p95 {plan.p95_tokens:,.0f}, max {plan.max_tokens:,}"
    yield "tokens", f"{plan.total_tokens:,} of prompts; {spread}", ""
    used = [i for i, (_, tasks) in enumerate(plan.histogram) if tasks]
    most = max((tasks for _, tasks in plan.histogram), default=0)
    for i, (bound, tasks) in enumerate(plan.histogram[: used[-1] + 1] if used else ()):
        label = f"> {plan.histogram[-2][0]:,}" if bound is None else f"<= {bound:,}"
        bar = "#" * round(BAR * tasks / most)
        yield "lengths" if i == 0 else "", f"{label:>9}  {tasks:>9,}  {bar}".rstrip(), ""


def _work(plan: PlanReport) -> Iterator[Line]:
    share = plan.shared_tokens / plan.total_tokens if plan.total_tokens else 0.0
    yield "prefixes", f"{plan.shared_tokens:,} tokens ({share:.1%}) are in pages that another task has too", ""
    if plan.sibling_tokens:
        yield "", f"{plan.sibling_tokens:,} more are those of further samples, which take over their prompt's pages", ""
    yield "padding", f"{_padding(plan.by_length)} of similar length, {_padding(plan.in_file_order)} in file order", ""
    if plan.batching == "dynamic":
        yield "", "if batches were static: this job's are dynamic, which do not pad", ""


def _padding(padding: Padding) -> str:
    return f"{padding.waste:.1%} in {padding.batches:,} {'batch' if padding.batches == 1 else 'batches'}"


def _needs(plan: PlanReport) -> Iterator[Line]:
    for i, need in enumerate(plan.kv):
        yield "KV cache" if i == 0 else "", _kv_text(need), "" if need.fits else "bold"
    if plan.kv:
        yield "", f"{bytes_text(plan.kv[0].budget)} may be taken; sequences that do not fit wait", ""
    yield "time", _time_text(plan.time), ""


def _kv_text(need: KvNeed) -> str:
    sizes = ", ".join(f"{bytes_text(size)} in {dtype}" for dtype, size in need.bytes_by_dtype.items())
    return f"{need.of}: {need.sequences:,} × {need.tokens:,} tokens, {sizes}"


def _time_text(time: TimeEstimate) -> str:
    prefill, decode = time.prefill_flops / 1e9, time.decode_flops / 1e9
    return (
        f"{_duration(time.low_s)} to {_duration(time.high_s)} of generation on this machine, as busy as it is now, if "
        f"completions use {COMPLETION_SHARE:.0%} of max_new_tokens ({time.decode_tokens:,} tokens); the first is for matrix "
        f"products alone, at the {prefill:,.0f} (prompts) and {decode:,.0f} (completions) GFLOP/s measured, the second is "
        f"{SLOWEST:.0f} times that"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
