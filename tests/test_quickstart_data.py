"""The quickstart shards: what build.py makes, tasks that a right answer passes and a wrong one does not."""

import ast
import copy
import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from codegen_batch.pipeline.shard_writer import check_task
from codegen_batch.pipeline.task_rows import make_task
from codegen_batch.pipeline.validate.judge import Judge
from codegen_batch.schemas.job import Validators
from codegen_batch.schemas.records import Task, Verdict
from codegen_batch.schemas.tables import TASK

FOLDER = Path(__file__).parent.parent / "data" / "quickstart"
SHARDS = ("short", "medium", "long")
CONSTANTS: tuple[Any, ...] = (None, True, False, 0, 1, -1, 0.0, "", [], {}, ())


def load_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quickstart_build", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(FOLDER / f"{name}.parquet").to_pylist()
    return rows


TASKS = [row for name in SHARDS for row in read_rows(name)]
each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task["task_id"].removeprefix("quickstart/"))


def run_test(task: dict[str, Any], candidate: Any) -> None:
    """Runs a task's test on a candidate; raises what the test raises."""
    namespace = {task["entry_point"]: candidate}
    exec(task["test"], namespace)
    if task["test_kind"] == "check":
        namespace["check"](candidate)


def reference_of(task: dict[str, Any]) -> Any:
    namespace: dict[str, Any] = {}
    exec(task["reference"], namespace)
    return namespace[task["entry_point"]]


def passes(task: dict[str, Any], candidate: Any) -> bool:
    try:
        run_test(task, candidate)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("name", SHARDS)
def test_shard_is_what_build_makes(name: str) -> None:
    stored = pq.read_table(FOLDER / f"{name}.parquet")
    assert stored.schema.metadata == TASK.metadata
    assert stored.cast(TASK).equals(load_build().build_table(name))


def test_there_are_enough_tasks_with_unique_ids_and_names() -> None:
    assert len(TASKS) >= 48
    assert max(Counter(task["task_id"] for task in TASKS).values()) == 1
    assert max(Counter(task["entry_point"] for task in TASKS).values()) == 1
    assert {task["test_kind"] for task in TASKS} == {"check", "asserts"}
    assert {task["priority"] for task in TASKS} == {"P0", "P1", "P2"}


def test_prompt_lengths_do_not_overlap() -> None:
    def characters(task: dict[str, Any]) -> int:
        return len(task["prompt"]) + sum(len(file["text"]) for file in task["context"] or [])

    short, medium, long = ([characters(row) for row in read_rows(name)] for name in SHARDS)
    assert max(short) < min(medium)
    assert max(medium) < min(long)


def test_some_long_prompts_share_a_long_prefix() -> None:
    starts = Counter(row["prompt"][:1_500] for row in read_rows("long"))
    assert max(starts.values()) >= 4


@each_task
def test_row_is_a_task(task: dict[str, Any]) -> None:
    assert check_task(task) == task
    assert task["entry_point"] in task["prompt"]
    assert json.loads(task["metadata"])["topic"]
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(task["test"]))) >= 4


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(Validators(workers=2, isolation="none")) as judge:
        yield judge


@each_task
def test_judge_passes_the_reference_and_not_a_stub(task: dict[str, Any], judge: Judge) -> None:
    as_read = make_task(task, shard="", row=0)
    assert isinstance(as_read, Task)
    reference = judge.submit(as_read, task["reference"])
    stub = judge.submit(as_read, f"def {task['entry_point']}(*arguments):\n    return None\n")
    assert reference.result().verdict is Verdict.PASSED, reference.result()
    assert stub.result().verdict in (Verdict.WRONG_ANSWER, Verdict.RUNTIME_ERROR), stub.result()


@each_task
def test_constants_fail(task: dict[str, Any]) -> None:
    """Even constants that are the right answer to one of the test's calls."""
    reference, answers = reference_of(task), []

    def recording(*arguments: Any) -> Any:
        answer = reference(*arguments)
        answers.append(copy.deepcopy(answer))
        return answer

    run_test(task, recording)
    lucky = [constant for constant in (*CONSTANTS, *answers) if passes(task, lambda *_, constant=constant: copy.copy(constant))]
    assert lucky == []


@each_task
def test_candidate_that_returns_its_argument_fails(task: dict[str, Any]) -> None:
    assert not passes(task, lambda *arguments: arguments[0])
