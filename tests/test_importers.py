"""Importers: what becomes a task, what is refused and why, and that no shard is ever half there."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from codegen_batch.pipeline.import_columns import parse_columns
from codegen_batch.pipeline.importers import ImportReport, import_hf, import_humaneval, import_jsonl, import_mbpp
from codegen_batch.pipeline.tasks import check_shards, read_tasks
from codegen_batch.pipeline.validate.judge import Judge
from codegen_batch.schemas.errors import EnvironmentFailure, InputDataError, UsageError
from codegen_batch.schemas.job import Validators
from codegen_batch.schemas.records import Task, Verdict
from codegen_batch.schemas.tables import TASK

HUMANEVAL = Path(__file__).parent.parent / "data" / "humaneval"

MBPP_ROWS = [
    {
        "text": "Write a function to halve an even number.",
        "code": "def halve(n):\r\n  return n // 2",
        "task_id": 9001,
        "test_setup_code": "",
        "test_list": ["assert halve(4) == 2", "assert halve(0) == 0", "assert halve(-6) == -3"],
        "challenge_test_list": ["assert halve(10**9) == 5 * 10**8"],
    },
    {
        "text": "Write a function to list the corners of a box once each.",
        "code": "class Box(object):\n  def __init__(self, w, h):\n    self.w, self.h = w, h\n\n"
        "def helper(box):\n  return [0, box.w], [0, box.h]\n\ndef corners(box):\n  xs, ys = helper(box)\n"
        "  return [(x, y) for x in xs for y in ys]",
        "task_id": 9002,
        "test_setup_code": "unit = Box(1, 1)",
        "test_list": ["assert set(corners(Box(1, 2))) == {(0, 0), (0, 2), (1, 0), (1, 2)}", "assert len(corners(unit)) == 4"],
        "challenge_test_list": [],
    },
]
SANITIZED_ROWS = [
    {
        "source_file": "made for this test",
        "task_id": 9003,
        "prompt": "Write a function to return the length of the diagonal of a square.",
        "code": "import math\n\ndef diagonal(side):\n    return side * math.sqrt(2)",
        "test_imports": ["import math"],
        "test_list": ["assert math.isclose(diagonal(1), math.sqrt(2))", "assert diagonal(0) == 0"],
    }
]
PLAIN = {"task_id": "a", "prompt": "Write f."}


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"task_id": f"t{number}", "prompt": f"Write f{number}."} for number in range(count)]


def rows_of(report: ImportReport) -> list[dict[str, Any]]:
    return [row for shard in report.shards for row in pq.read_table(shard).to_pylist()]


def rejects_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rejected.jsonl").read_text(encoding="utf-8").splitlines()]


def names_in(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


# HumanEval


def test_humaneval_is_imported_whole(tmp_path: Path) -> None:
    report = import_humaneval(HUMANEVAL / "HumanEval.jsonl.gz", tmp_path)
    assert (report.rows, report.rejected) == (164, 0)
    with gzip.open(HUMANEVAL / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        originals = [json.loads(line) for line in file]
    for original, row in zip(originals, rows_of(report), strict=True):
        assert row["task_id"] == original["task_id"]
        assert row["prompt"] == original["prompt"]
        assert row["test"] == original["test"]
        assert row["test_kind"] == "check"
        assert row["reference"] == original["prompt"] + original["canonical_solution"]


def test_stored_humaneval_shard_is_what_the_importer_writes(tmp_path: Path) -> None:
    report = import_humaneval(HUMANEVAL / "HumanEval.jsonl.gz", tmp_path)
    assert pq.read_table(HUMANEVAL / report.shards[0].name).equals(pq.read_table(report.shards[0]))


def test_judge_passes_every_reference_of_humaneval() -> None:
    tasks = [task for task in read_tasks(sorted(HUMANEVAL.glob("*.parquet"))) if isinstance(task, Task)]
    assert len(tasks) == 164
    with Judge(Validators(workers=2, isolation="none")) as judge:
        judged = [(task.task_id, judge.submit(task, task.reference or "")) for task in tasks]
        assert [task_id for task_id, future in judged if future.result().verdict is not Verdict.PASSED] == []


# MBPP


def run_task(row: dict[str, Any]) -> None:
    """Runs the test on the reference; raises what the test raises."""
    exec(row["reference"] + "\n" + row["test"], {})


def test_mbpp_rows_become_tasks_whose_references_pass(tmp_path: Path) -> None:
    report = import_mbpp(write_jsonl(tmp_path / "mbpp.jsonl", MBPP_ROWS), tmp_path / "out")
    halve, corners = rows_of(report)
    assert [halve["task_id"], corners["task_id"]] == ["MBPP/9001", "MBPP/9002"]
    assert [halve["entry_point"], corners["entry_point"]] == ["halve", "corners"]
    assert halve["prompt"].startswith(MBPP_ROWS[0]["text"])
    assert "`halve`" in halve["prompt"]
    assert all(test in halve["prompt"] for test in halve["test"].splitlines())
    assert "\r" not in halve["reference"]
    assert json.loads(halve["metadata"])["challenge_test_list"] == MBPP_ROWS[0]["challenge_test_list"]
    assert corners["test"].startswith("unit = Box(1, 1)\nassert ")
    run_task(halve)
    run_task(corners)


def test_sanitized_mbpp_is_a_json_list(tmp_path: Path) -> None:
    source = tmp_path / "sanitized-mbpp.json"
    source.write_text(json.dumps(SANITIZED_ROWS, indent=2), encoding="utf-8")
    (diagonal,) = rows_of(import_mbpp(source, tmp_path / "out"))
    assert diagonal["entry_point"] == "diagonal"
    assert diagonal["prompt"].startswith(SANITIZED_ROWS[0]["prompt"])
    assert diagonal["test"].startswith("import math\nassert ")
    run_task(diagonal)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"code": None}, "column code: is missing", id="no-code"),
        pytest.param({"code": "def halve(n) return"}, "column code: is not valid Python", id="bad-code"),
        pytest.param({"test_list": []}, "calls nothing that code defines", id="no-tests"),
        pytest.param({"test_list": ["assert other(1)"]}, "calls nothing that code defines", id="other-function"),
        pytest.param({"test_list": "assert halve(2)"}, "column test_list: must be a list of strings", id="tests-as-text"),
        pytest.param({"test_setup_code": 3}, "column test_setup_code: must be a string, not int", id="setup-is-number"),
        pytest.param({"text": None}, "column text: is missing", id="no-text"),
    ],
)
def test_bad_mbpp_row_is_rejected(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    source = write_jsonl(tmp_path / "mbpp.jsonl", [MBPP_ROWS[0] | change, MBPP_ROWS[1]])
    report = import_mbpp(source, tmp_path / "out")
    assert (report.rows, report.rejected) == (1, 1)
    assert reason in rejects_of(tmp_path / "out")[0]["reason"]


# JSONL and columns


@pytest.mark.parametrize(
    ("pair", "row", "field", "expected"),
    [
        pytest.param("prompt=question", {"task_id": "a", "question": "Q"}, "prompt", "Q", id="renamed"),
        pytest.param("prompt=q.text", {"task_id": "a", "q": {"text": "Q"}}, "prompt", "Q", id="dotted"),
        pytest.param("prompt=q.1.text", {"task_id": "a", "q": [0, {"text": "Q"}]}, "prompt", "Q", id="dotted-list"),
        pytest.param("prompt=q.text", {"task_id": "a", "q.text": "Q", "q": {}}, "prompt", "Q", id="dot-in-name"),
        pytest.param("priority:=P0", PLAIN, "priority", "P0", id="constant"),
        pytest.param("prompt:=a=b", {"task_id": "a"}, "prompt", "a=b", id="constant-with-equals"),
        pytest.param('metadata:={"k": 1}', PLAIN, "metadata", '{"k": 1}', id="constant-text-field"),
        pytest.param('compare:={"mode": "tokens"}', PLAIN, "compare", {"mode": "tokens"}, id="constant-json"),
        pytest.param("metadata=info", PLAIN | {"info": {"b": 1, "a": "é"}}, "metadata", '{"a": "é", "b": 1}', id="to-json"),
        pytest.param("task_id=n", {"n": 7, "prompt": "Q"}, "task_id", "7", id="integer-id"),
        pytest.param("prompt=text", {"task_id": "a", "prompt": "old", "text": "new"}, "prompt", "new", id="mapped-wins"),
        pytest.param("turn=turn", PLAIN | {"turn": 2, "other": []}, "turn", 2, id="unknown-columns-ignored"),
    ],
)
def test_columns(tmp_path: Path, pair: str, row: dict[str, Any], field: str, expected: Any) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [row])
    (task,) = rows_of(import_jsonl(source, tmp_path / "out", parse_columns([pair])))
    value = task[field]
    assert ({key: value[key] for key in expected} if isinstance(expected, dict) else value) == expected


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        pytest.param(["promt=text"], "did you mean `prompt`?", id="misspelt-field"),
        pytest.param(["prompt"], "write target=source", id="no-equals"),
        pytest.param(["prompt=a", "prompt=b"], "mapped twice", id="twice"),
        pytest.param(["prompt=a", "prompt:=b"], "mapped twice", id="column-and-constant"),
        pytest.param(["limits:=5s"], "not JSON", id="constant-not-json"),
        pytest.param(["test=tset"], "did you mean `test`?", id="source-in-no-row"),
    ],
)
def test_bad_columns_are_usage_errors(tmp_path: Path, pairs: list[str], message: str) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [PLAIN | {"test": None}])
    with pytest.raises(UsageError) as caught:
        import_jsonl(source, tmp_path / "out", parse_columns(pairs))
    assert message in str(caught.value)
    assert not list(tmp_path.glob("out/*"))


def test_all_bad_columns_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        import_jsonl(tmp_path / "in.jsonl", tmp_path / "out", {"promt": "a", "idd": "b"})
    assert len(caught.value.problems) == 2


def test_gzip_bom_and_empty_lines(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl.gz"
    source.write_bytes(gzip.compress(b'\xef\xbb\xbf{"task_id": "a", "prompt": "P"}\r\n\n  \n{"task_id": "b", "prompt": "Q"}'))
    report = import_jsonl(source, tmp_path / "out", {})
    assert [row["task_id"] for row in rows_of(report)] == ["a", "b"]


# Rejected rows


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        pytest.param({"prompt": "P"}, "column task_id", id="no-id"),
        pytest.param({"task_id": True, "prompt": "P"}, "column task_id: must be a string", id="boolean-id"),
        pytest.param({"task_id": "x"}, "prompt and messages", id="no-prompt"),
        pytest.param({"task_id": "x", "prompt": 5}, "column prompt: must be a string, not int", id="prompt-is-number"),
        pytest.param({"task_id": "x", "prompt": "\ud800"}, "lone surrogate", id="surrogate"),
        pytest.param({"task_id": "good", "prompt": "P"}, "'good' is already the id of an earlier row", id="id-taken"),
        pytest.param({"messages": "hi"}, "column messages: must be a list, not str", id="messages-is-text"),
        pytest.param({"messages": [{"role": "user"}]}, "column messages[0].content", id="message-without-content"),
        pytest.param({"messages": [{"role": "robot", "content": ""}]}, "column messages[0].role", id="unknown-role"),
        pytest.param({"messages": [{"roll": "user"}]}, "did you mean `role`?", id="misspelt-member"),
        pytest.param({"messages": [None]}, "column messages[0]: must not be null", id="null-message"),
        pytest.param({"priority": "P7"}, "column priority: must be one of P0, P1, P2", id="unknown-priority"),
        pytest.param({"turn": 2**31}, "column turn: is out of range", id="turn-too-large"),
        pytest.param({"turn": 1.5}, "column turn: must be of type int32, not float", id="turn-is-fraction"),
        pytest.param({"limits": {"cpu_s": 0}}, "column limits.cpu_s", id="limit-of-zero"),
        pytest.param({"metadata": "{"}, "column metadata: must be JSON", id="metadata-not-json"),
        pytest.param({"test": "assert f()"}, "column test_kind: is missing", id="test-without-kind"),
        pytest.param({"test_kind": "asserts"}, "column test: is missing", id="kind-without-test"),
        pytest.param({"test_kind": "stdio", "test": "x"}, "column stdio_cases: is missing", id="stdio-without-cases"),
        pytest.param({"test_kind": "check", "test": "def check(c): pass"}, "column entry_point: is missing", id="no-entry-point"),
        pytest.param({"test_kind": "check", "test": "x = 1", "entry_point": "f"}, "does not define check", id="no-check"),
        pytest.param({"test_kind": "asserts", "test": "assert ("}, "column test: is not valid Python", id="test-syntax"),
        pytest.param({"reference": "f = 1\ndef g(:"}, "(line 2)", id="reference-syntax"),
        pytest.param({"reference": "def g(): pass", "entry_point": "f"}, "does not define 'f'", id="reference-lacks-f"),
        pytest.param({"reference": "f = " + "(" * 500 + ")" * 500}, "column reference: ", id="reference-too-nested"),
    ],
)
def test_bad_row_is_rejected_with_its_reason(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    if not row.keys() & {"task_id", "prompt"}:
        row = {"task_id": "x"} | ({} if "messages" in row else {"prompt": "P"}) | row
    source = write_jsonl(tmp_path / "in.jsonl", [{"task_id": "good", "prompt": "P"}, row])
    report = import_jsonl(source, tmp_path / "out", {})
    assert (report.rows, report.rejected) == (1, 1)
    (reject,) = rejects_of(tmp_path / "out")
    assert reject["where"] == f"{source}:2"
    assert reason in reject["reason"]
    assert reject["row"] == row


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param(b"{oops}", "not JSON", id="not-json"),
        pytest.param(b"[" * 100_000, "not JSON", id="nested-too-deep"),
        pytest.param(b'{"task_id": "\xff"}', "not UTF-8: byte 0xff at position 13", id="not-utf8"),
        pytest.param(b'["a"]', "not an object but list", id="list"),
        pytest.param(b'{"a": ' + b"9" * 5_000 + b"}", "not JSON", id="number-too-long"),
    ],
)
def test_bad_line_is_rejected_with_its_number(tmp_path: Path, line: bytes, reason: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n" + line + b'\n{"task_id": "a", "prompt": "P"}\n')
    report = import_jsonl(source, tmp_path / "out", {})
    assert (report.rows, report.rejected) == (1, 1)
    (reject,) = rejects_of(tmp_path / "out")
    assert reject["where"] == f"{source}:2"
    assert reason in reject["reason"]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"reference": "try:\n    f = len\nexcept NameError:\n    pass"}, id="assigned-in-try"),
        pytest.param({"reference": "from math import sqrt as f"}, id="imported"),
        pytest.param({"reference": "class f:\n    pass"}, id="class"),
        pytest.param({"reference": "puts 1", "language": "ruby"}, id="other-language"),
        pytest.param({"reference": "'\\d'\ndef f(): pass"}, id="invalid-escape"),
    ],
)
def test_unusual_references_are_taken(tmp_path: Path, values: dict[str, Any]) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [PLAIN | {"entry_point": "f"} | values])
    assert import_jsonl(source, tmp_path / "out", {}).rejected == 0


def test_all_rejected_is_an_error_that_names_the_first(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"task_id": str(number)} for number in range(20)])
    with pytest.raises(InputDataError) as caught:
        import_jsonl(source, tmp_path / "out", {})
    assert "all 20 rows were rejected" in str(caught.value)
    assert f"{source}:1" in str(caught.value)
    assert len(caught.value.problems) == 6
    assert names_in(tmp_path / "out") == ["rejected.jsonl"]
    assert len(rejects_of(tmp_path / "out")) == 20


# Shards


def test_shards_are_numbered_and_conform_to_the_schema(tmp_path: Path) -> None:
    progress: list[int] = []
    source = write_jsonl(tmp_path / "in.jsonl", numbered(3_501))
    report = import_jsonl(source, tmp_path / "out", {}, rows_per_shard=1_500, on_progress=progress.append)
    assert names_in(tmp_path / "out") == [f"shard-0000{number}-of-00003.parquet" for number in range(3)]
    assert list(report.shards) == [tmp_path / "out" / name for name in names_in(tmp_path / "out")]
    assert progress == [1_000, 2_000, 3_000, 3_501]
    files = [pq.ParquetFile(shard) for shard in report.shards]
    groups = [[file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] for file in files]
    assert groups == [[1_000, 500], [1_000, 500], [501]]
    for shard in report.shards:
        table = pq.read_table(shard)
        assert table.schema.metadata == TASK.metadata
        assert table.cast(TASK).schema == TASK
    assert check_shards(report.shards).warnings == ()
    tasks = list(read_tasks(report.shards))
    assert all(isinstance(task, Task) for task in tasks)
    assert [task.task_id for task in tasks] == [f"t{number}" for number in range(3_501)]


def test_existing_shards_are_not_overwritten_unasked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = import_jsonl(write_jsonl(tmp_path / "one.jsonl", numbered(5)), out, {}, rows_per_shard=2)
    second = write_jsonl(tmp_path / "two.jsonl", [PLAIN])
    with pytest.raises(UsageError, match="exists already"):
        import_jsonl(second, out, {})
    assert len(rows_of(first)) == 5
    report = import_jsonl(second, out, {}, overwrite=True)
    assert names_in(out) == ["shard-00000-of-00001.parquet"]
    assert [row["task_id"] for row in rows_of(report)] == ["a"]


def test_overwriting_removes_the_old_report_of_rejected_rows(tmp_path: Path) -> None:
    out = tmp_path / "out"
    import_jsonl(write_jsonl(tmp_path / "one.jsonl", [PLAIN, {}]), out, {})
    assert "rejected.jsonl" in names_in(out)
    import_jsonl(write_jsonl(tmp_path / "two.jsonl", [PLAIN]), out, {}, overwrite=True)
    assert names_in(out) == ["shard-00000-of-00001.parquet"]


def test_shards_that_appear_meanwhile_stay_and_nothing_is_left_behind(tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = write_jsonl(tmp_path / "in.jsonl", numbered(3))
    theirs = out / "shard-00001-of-00003.parquet"

    def appear(rows: int) -> None:
        theirs.write_text("theirs")

    with pytest.raises(UsageError, match="exists already"):
        import_jsonl(source, out, {}, rows_per_shard=1, on_progress=appear)
    assert names_in(out) == [theirs.name]
    assert theirs.read_text() == "theirs"


def test_interrupted_import_leaves_the_old_shards_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    import_jsonl(write_jsonl(tmp_path / "one.jsonl", [PLAIN]), out, {})

    def interrupt(rows: int) -> None:
        raise KeyboardInterrupt

    source = write_jsonl(tmp_path / "two.jsonl", numbered(2_500))
    with pytest.raises(KeyboardInterrupt):
        import_jsonl(source, out, {}, overwrite=True, rows_per_shard=600, on_progress=interrupt)
    assert names_in(out) == ["shard-00000-of-00001.parquet"]
    assert pq.read_table(out / "shard-00000-of-00001.parquet")["task_id"].to_pylist() == ["a"]


def test_damaged_source_is_streamed_up_to_the_damage_and_leaves_nothing(tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in numbered(20_000)).encode()
    source = tmp_path / "in.jsonl.gz"
    source.write_bytes(gzip.compress(lines)[:-20_000])
    progress: list[int] = []
    with pytest.raises(InputDataError, match="damaged gzip file"):
        import_jsonl(source, tmp_path / "out", {}, on_progress=progress.append)
    assert progress[0] == 1_000
    assert names_in(tmp_path / "out") == []


# Sources and folders that cannot be used

Importer = Callable[[Path, Path], ImportReport]
each_importer = pytest.mark.parametrize(
    "importer",
    [
        pytest.param(import_humaneval, id="humaneval"),
        pytest.param(import_mbpp, id="mbpp"),
        pytest.param(lambda src, out: import_jsonl(src, out, {}), id="jsonl"),
    ],
)


@each_importer
def test_missing_source(tmp_path: Path, importer: Importer) -> None:
    with pytest.raises(InputDataError, match="there is no such file"):
        importer(tmp_path / "absent.jsonl", tmp_path / "out")


@each_importer
def test_source_is_a_folder(tmp_path: Path, importer: Importer) -> None:
    with pytest.raises(InputDataError, match="cannot be read"):
        importer(tmp_path, tmp_path / "out")


@each_importer
def test_empty_source(tmp_path: Path, importer: Importer) -> None:
    (tmp_path / "in.jsonl").write_text("\n")
    with pytest.raises(InputDataError, match="has no rows"):
        importer(tmp_path / "in.jsonl", tmp_path / "out")


def test_empty_gzip_file(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"\x1f\x8bgarbage")
    with pytest.raises(InputDataError, match="damaged gzip file"):
        import_humaneval(tmp_path / "in.jsonl", tmp_path / "out")


def test_out_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="is a file, not a folder"):
        import_mbpp(write_jsonl(tmp_path / "mbpp.jsonl", MBPP_ROWS), tmp_path / "out")


def test_out_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match="cannot be written"):
        import_mbpp(write_jsonl(tmp_path / "mbpp.jsonl", MBPP_ROWS), tmp_path / "file" / "out")


def test_shards_without_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        import_jsonl(write_jsonl(tmp_path / "in.jsonl", [PLAIN]), tmp_path / "out", {}, rows_per_shard=0)


# datasets


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    """A folder of data files with a train and a test split."""
    folder = tmp_path / "hf"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", [{"id": f"train/{n}", "q": {"text": f"Write f{n}."}} for n in range(3)])
    write_jsonl(folder / "test.jsonl", [{"id": "test/0", "q": {"text": "Write g."}}, {"id": "test/1", "q": {"text": None}}])
    return folder


HF_COLUMNS = {"task_id": "id", "prompt": "q.text", "language:": "python"}


def test_hf_folder_is_read_by_split(tmp_path: Path, hf_folder: Path) -> None:
    report = import_hf(hf_folder, tmp_path / "out", HF_COLUMNS, split="train")
    assert [(row["task_id"], row["prompt"], row["language"]) for row in rows_of(report)] == [
        (f"train/{n}", f"Write f{n}.", "python") for n in range(3)
    ]


def test_hf_rows_are_rejected_by_number(tmp_path: Path, hf_folder: Path) -> None:
    report = import_hf(str(hf_folder), tmp_path / "out", HF_COLUMNS, split="test")
    assert (report.rows, report.rejected) == (1, 1)
    assert rejects_of(tmp_path / "out")[0]["where"] == f"{hf_folder} test row 2"


@pytest.mark.parametrize(
    ("split", "message"),
    [pytest.param(None, "name one of its splits", id="none"), pytest.param("tset", "did you mean `test`?", id="misspelt")],
)
def test_hf_split_must_be_clear(tmp_path: Path, hf_folder: Path, split: str | None, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        import_hf(hf_folder, tmp_path / "out", HF_COLUMNS, split=split)
    assert message in str(caught.value)


def test_hf_parquet_folder_with_one_split(tmp_path: Path) -> None:
    shards = import_jsonl(write_jsonl(tmp_path / "in.jsonl", numbered(2_100)), tmp_path / "first", {}, rows_per_shard=1_000)
    report = import_hf(tmp_path / "first", tmp_path / "second", {})
    assert rows_of(report) == rows_of(shards)


def test_hf_saved_to_disk(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_list(numbered(4))
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"dev": data}).save_to_disk(tmp_path / "many")
    assert import_hf(tmp_path / "one", tmp_path / "out-one", {}).rows == 4
    assert import_hf(tmp_path / "many", tmp_path / "out-many", {}, split="dev").rows == 4


def test_hf_values_beyond_json_are_rejected_not_fatal(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_dict({"task_id": ["a", "b"], "prompt": ["P", "Q"], "metadata": [None, {"blob": b"\xff"}]})
    data.save_to_disk(tmp_path / "hf")
    report = import_hf(tmp_path / "hf", tmp_path / "out", {})
    assert (report.rows, report.rejected) == (1, 1)
    assert "column metadata" in rejects_of(tmp_path / "out")[0]["reason"]


def test_hf_folder_without_data(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    with pytest.raises(InputDataError, match="cannot be loaded"):
        import_hf(tmp_path / "hf", tmp_path / "out", {})


def test_hf_folder_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="there is no such folder"):
        import_hf(tmp_path / "absent", tmp_path / "out", {})


def test_hf_damaged_data_is_named(tmp_path: Path, hf_folder: Path) -> None:
    (hf_folder / "train.jsonl").write_text('{"id": "a", "q": {"text": "T"}}\n{"id": oops\n')
    with pytest.raises(InputDataError, match="hf"):
        import_hf(hf_folder, tmp_path / "out", HF_COLUMNS, split="train")
    assert not list(tmp_path.glob("out/shard-*"))
