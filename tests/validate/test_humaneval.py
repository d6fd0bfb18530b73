"""HumanEval's own references pass, a stub never does."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from codegen_batch.pipeline.validate.judge import Judge
from codegen_batch.schemas.job import Validators
from codegen_batch.schemas.records import Task

SHARD = Path(__file__).parents[2] / "data" / "humaneval" / "HumanEval.jsonl.gz"
ROWS = [json.loads(line) for line in gzip.decompress(SHARD.read_bytes()).splitlines()]
FORMS = {
    "body": "{canonical_solution}",
    "whole in a fence": "Here you are:\n\n```python\n{prompt}{canonical_solution}```\n\nIt isn't hard.\n",
    "body without its indentation": "{stripped}",
}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(Validators(workers=2)) as judge:
        yield judge


def verdicts(judge: Judge, form: str) -> dict[str, str]:
    futures = {}
    for row in ROWS:
        task = Task(
            row["task_id"], SHARD.name, 0, row["prompt"], entry_point=row["entry_point"], test=row["test"], test_kind="check"
        )
        futures[task.task_id] = judge.submit(task, form.format(**row, stripped=row["canonical_solution"].lstrip()))
    return {task_id: f"{j.verdict} {j.trust}" for task_id, future in futures.items() for j in [future.result(60)]}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_reference_passes(judge: Judge, form: str) -> None:
    assert Counter(verdicts(judge, form).values()) == {"passed apart": 164}


def test_no_stub_passes(judge: Judge) -> None:
    found = verdicts(judge, "    pass\n")
    assert not [task_id for task_id, verdict in found.items() if not verdict.startswith(("wrong_answer", "runtime_error"))]
