import glob
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from codegen_batch.pipeline.tasks import check_shards, count_rows, find_shards, read_tasks, shard_names
from codegen_batch.schemas.errors import InputDataError
from codegen_batch.schemas.records import BadRow, Compare, ContextFile, Limits, Message, StdioCase, Task
from codegen_batch.schemas.tables import RESULT, TASK

FULL = {
    "task_id": "t/1",
    "prompt": "def f():",
    "language": " Python3 ",
    "entry_point": "f",
    "test": "def check(c): pass",
    "test_kind": "check",
    "stdio_cases": [{"stdin": None, "stdout": "1\n"}],
    "reference": "    return 1",
    "priority": "P0",
    "session_id": "s",
    "turn": 2,
    "context": [{"path": "a.py", "text": "x = 1"}],
    "limits": {"cpu_s": 1.5, "wall_s": None, "memory_mb": 64},
    "compare": {"mode": "float", "abs_tol": 1e-6, "rel_tol": None},
    "metadata": '{"source": [1, null]}',
}


def shard(path: Path, rows: Sequence[dict[str, Any]], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([{"prompt": None, **row} for row in rows], schema=TASK), path, **options)
    return path


def table(path: Path, columns: dict[str, Any], metadata: dict[bytes, bytes] | None = None) -> Path:
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    return path


def text(*values: bytes) -> pa.Array:
    """A string column whose bytes are not checked."""
    return pa.array(values, pa.binary()).view(pa.string())


# Rows


def test_every_field_of_a_row_arrives(tmp_path: Path) -> None:
    [task] = read_tasks([shard(tmp_path / "a.parquet", [FULL])])
    assert task == Task(
        task_id="t/1",
        shard="a.parquet",
        row=0,
        prompt="def f():",
        language="python",
        entry_point="f",
        test="def check(c): pass",
        test_kind="check",
        stdio_cases=(StdioCase("", "1\n"),),
        reference="    return 1",
        priority="P0",
        session_id="s",
        turn=2,
        context=(ContextFile("a.py", "x = 1"),),
        limits=Limits(cpu_s=1.5, memory_mb=64),
        compare=Compare("float", 1e-6, 0.0),
        metadata='{"source": [1, null]}',
    )


def test_a_shard_of_two_columns_is_enough(tmp_path: Path) -> None:
    messages = [[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]]
    path = table(tmp_path / "a.parquet", {"task_id": ["x"], "messages": messages})
    assert check_shards([path]).fatal == ()
    assert list(read_tasks([path])) == [Task("x", "a.parquet", 0, messages=(Message("system", "s"), Message("user", "u")))]


USER = {"role": "user", "content": "u"}


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        pytest.param({"prompt": None}, "null_prompt", "columns prompt and messages: both are empty", id="no-prompt"),
        pytest.param({"prompt": ""}, "null_prompt", "both are empty", id="empty-prompt"),
        pytest.param({"messages": [USER]}, "bad_value", "column prompt: must be null where messages are given", id="both"),
        pytest.param(
            {"test_kind": "doctest"},
            "bad_value",
            "column test_kind: must be one of check, asserts, unittest, stdio, not 'doctest'",
            id="test-kind",
        ),
        pytest.param({"priority": "high"}, "bad_value", "column priority: must be one of P0, P1, P2, not 'high'", id="priority"),
        pytest.param(
            {"compare": {"mode": "fuzzy"}},
            "bad_value",
            "column compare.mode: must be one of exact, tokens, float, not 'fuzzy'",
            id="compare",
        ),
        pytest.param(
            {"compare": {"abs_tol": float("nan")}}, "bad_value", "column compare.abs_tol: must be a finite number", id="tolerance"
        ),
        pytest.param(
            {"prompt": None, "messages": [{"role": "robot", "content": "u"}]},
            "bad_value",
            "column messages[0].role: must be one of system, user, assistant, not 'robot'",
            id="role",
        ),
        pytest.param(
            {"prompt": None, "messages": [USER, {"role": "user"}]},
            "bad_value",
            "column messages[1].content: must not be null",
            id="content",
        ),
        pytest.param(
            {"prompt": None, "messages": [None]}, "bad_value", "column messages[0]: must not be null", id="null-message"
        ),
        pytest.param(
            {"limits": {"cpu_s": -1.0}}, "bad_value", "column limits.cpu_s: must be a finite number above 0, not -1.0", id="cpu"
        ),
        pytest.param(
            {"limits": {"wall_s": 0.0}}, "bad_value", "column limits.wall_s: must be a finite number above 0, not 0.0", id="wall"
        ),
        pytest.param(
            {"limits": {"memory_mb": 0}},
            "bad_value",
            "column limits.memory_mb: must be a whole number of at least 1, not 0",
            id="memory",
        ),
        pytest.param({"turn": -1}, "bad_value", "column turn: must be a whole number of at least 0, not -1", id="turn"),
        pytest.param({"metadata": "{a: 1}"}, "bad_value", "column metadata: must be JSON: ", id="metadata"),
        pytest.param({"metadata": "NaN"}, "bad_value", "column metadata: must be JSON: NaN is not JSON", id="metadata-nan"),
        pytest.param({"metadata": "[" * 100_000}, "bad_value", "column metadata: must be JSON: ", id="metadata-deep"),
        pytest.param(
            {"context": [{"path": None, "text": "x"}]}, "bad_value", "column context[0].path: must not be null", id="context"
        ),
        pytest.param(
            {"stdio_cases": [{"stdin": "x", "stdout": None}]},
            "bad_value",
            "column stdio_cases[0].stdout: must not be null",
            id="stdout",
        ),
    ],
)
def test_a_bad_row_is_lost_alone_and_says_why(tmp_path: Path, change: dict[str, Any], code: str, message: str) -> None:
    path = shard(tmp_path / "a.parquet", [{**FULL, "task_id": "first"}, {**FULL, **change}, {**FULL, "task_id": "last"}])
    first, bad, last = read_tasks([path])
    assert isinstance(first, Task)
    assert isinstance(last, Task)
    assert isinstance(bad, BadRow)
    assert (bad.task_id, bad.shard, bad.row, bad.error.stage, bad.error.code) == ("t/1", "a.parquet", 1, "read", code)
    assert message in bad.error.message


@pytest.mark.parametrize("task_id", [None, ""], ids=["null", "empty"])
def test_a_row_without_an_id_gets_one(tmp_path: Path, task_id: str | None) -> None:
    path = table(tmp_path / "a.parquet", {"task_id": ["x", task_id], "prompt": ["p", "p"]})
    _, bad = read_tasks([path])
    assert (bad.task_id, isinstance(bad, BadRow) and bad.error.code) == ("a.parquet#1", "bad_value")


def test_ids_are_unique_over_the_job(tmp_path: Path) -> None:
    first = table(tmp_path / "a.parquet", {"task_id": ["x", "x@b.parquet#0", "b.parquet#1"], "prompt": ["p", "p", "p"]})
    second = table(tmp_path / "b.parquet", {"task_id": ["x", None, "y", "y"], "prompt": ["p", "p", None, "p"]})
    rows = list(read_tasks([first, second]))
    ids = [row.task_id for row in rows]
    assert len(set(ids)) == len(ids) == 7
    assert ids[3:] == ["x@b.parquet#0@b.parquet#0", "b.parquet#1@b.parquet#1", "y", "y@b.parquet#3"]
    codes = [row.error.code for row in rows if isinstance(row, BadRow)]
    assert codes == ["duplicate_task_id", "bad_value", "null_prompt", "duplicate_task_id"]
    assert "'x' is already the id of an earlier row" in next(row.error.message for row in rows if isinstance(row, BadRow))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_text_that_is_not_utf8_loses_only_its_row(tmp_path: Path, kind: pa.DataType) -> None:
    prompt = text(b"good", b"caf\xe9", b"gr\xc3\xbcn").cast(pa.binary() if pa.types.is_dictionary(kind) else kind, safe=False)
    if pa.types.is_dictionary(kind):
        encoded = prompt.dictionary_encode()
        prompt = pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.view(pa.string()))
    path = table(tmp_path / "a.parquet", {"task_id": ["a", "b", "c"], "prompt": prompt})
    good, bad, umlaut = read_tasks([path])
    assert (good.task_id, umlaut.task_id) == ("a", "c")
    assert isinstance(umlaut, Task)
    assert umlaut.prompt == "grün"
    assert isinstance(bad, BadRow)
    assert (bad.error.code, bad.error.message) == ("invalid_utf8", "column prompt: not UTF-8: byte 0xe9 at position 3")


def test_bad_utf8_in_an_id_or_deep_in_a_list(tmp_path: Path) -> None:
    item = pa.StructArray.from_arrays([text(b"user", b"user"), text(b"\xff", b"fine")], ["role", "content"])
    messages = pa.ListArray.from_arrays([0, 1, 2], item)
    nested, in_id = read_tasks([table(tmp_path / "a.parquet", {"task_id": text(b"a", b"\x80"), "messages": messages})])
    assert isinstance(nested, BadRow)
    assert isinstance(in_id, BadRow)
    assert (nested.task_id, nested.error.code) == ("a", "invalid_utf8")
    assert (in_id.task_id, in_id.error.code) == ("a.parquet#1", "invalid_utf8")


NAMED_TURN = pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.string())])


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"prompt": pa.array(["p", "q"], pa.large_string())}, id="large-string"),
        pytest.param({"prompt": pa.array(["p", "q"], pa.string_view())}, id="string-view"),
        pytest.param({"prompt": pa.array(["p", "q"]).dictionary_encode()}, id="dictionary"),
        pytest.param({"prompt": ["p", "q"], "test": pa.nulls(2)}, id="null-column"),
        pytest.param({"prompt": ["p", "q"], "messages": pa.array([[], None], pa.list_(pa.null()))}, id="list-of-null"),
        pytest.param({"prompt": ["p", "q"], "turn": pa.array([1, None], pa.int64())}, id="int64"),
        pytest.param({"prompt": ["p", "q"], "turn": pa.array([1.0, None])}, id="whole-floats"),
        pytest.param({"prompt": ["p", "q"], "limits": [{"cpu_s": 3}, None]}, id="int-for-float-and-fields-left-out"),
        pytest.param({"messages": pa.array([[USER], [USER]], pa.large_list(NAMED_TURN))}, id="large-list-with-another-field"),
    ],
)
def test_types_that_hold_the_same_are_accepted(tmp_path: Path, columns: dict[str, Any]) -> None:
    path = table(tmp_path / "a.parquet", {"task_id": ["a", "b"], **columns})
    assert check_shards([path]).fatal == ()
    assert [type(row) for row in read_tasks([path])] == [Task, Task]


def test_a_fraction_is_no_turn(tmp_path: Path) -> None:
    [bad] = read_tasks([table(tmp_path / "a.parquet", {"task_id": ["a"], "prompt": ["p"], "turn": [1.5]})])
    assert isinstance(bad, BadRow)
    assert bad.error.message == "column turn: must be a whole number of at least 0, not 1.5"


@pytest.mark.parametrize("limit", [1, 3, 5, 99])
def test_a_limit_takes_the_first_rows(tmp_path: Path, limit: int) -> None:
    paths = [shard(tmp_path / f"{n}.parquet", [{"task_id": f"{n}{i}", "prompt": "p"} for i in range(3)]) for n in "ab"]
    ids = [row.task_id for row in read_tasks(paths, limit)]
    assert ids == ["a0", "a1", "a2", "b0", "b1", "b2"][:limit]
    assert count_rows(paths) == 6


# Damage


def damage(path: Path, group: int, column: str) -> None:
    """Overwrites the middle of one column's pages in one row group."""
    metadata = pq.read_metadata(path)
    chunk = metadata.row_group(group).column(metadata.schema.names.index(column))
    start = chunk.data_page_offset + chunk.total_compressed_size // 2
    content = bytearray(path.read_bytes())
    content[start : start + 64] = b"\xff" * 64
    path.write_bytes(content)


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_a_damaged_page_loses_its_row_group_and_reading_goes_on(tmp_path: Path, compression: str) -> None:
    rows = [{"task_id": f"t{i}", "prompt": f"{i} {i * i} {i**3}" * 5} for i in range(3000)]
    path = shard(
        tmp_path / "a.parquet", rows, row_group_size=1000, compression=compression, use_dictionary=False, write_page_checksum=True
    )
    damage(path, 1, "prompt")
    got = list(read_tasks([path]))
    assert [row.row for row in got] == list(range(3000))
    lost = [row for row in got if isinstance(row, BadRow)]
    assert lost
    assert all(1000 <= row.row < 2000 and row.task_id == f"a.parquet#{row.row}" for row in lost)
    assert lost[-1].row == 1999
    assert {row.error.code for row in lost} == {"unreadable_row_group"}
    assert "row group 1 cannot be decoded" in lost[0].error.message
    assert [row.task_id for row in got[2000:]] == [f"t{i}" for i in range(2000, 3000)]


def test_a_shard_that_goes_away_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="not a readable Parquet file"):
        list(read_tasks([tmp_path / "gone.parquet"]))
    with pytest.raises(InputDataError, match="not a readable Parquet file"):
        count_rows([tmp_path / "gone.parquet"])


# Footers


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "not a readable Parquet file", id="no-bytes"),
        pytest.param(b"task_id,prompt\n1,x\n" * 9, "not a readable Parquet file", id="csv"),
        pytest.param(b"PAR1" + b"\xff" * 99 + b"PAR1", "not a readable Parquet file", id="garbage"),
    ],
)
def test_a_file_that_is_no_parquet(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    [problem] = check_shards([path]).fatal
    assert problem.where == str(path)
    assert message in problem.message


def test_a_truncated_shard(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.parquet", [FULL])
    path.write_bytes(path.read_bytes()[:-100])
    assert "not a readable Parquet file" in check_shards([path]).fatal[0].message


TWO = {"task_id": ["a"], "prompt": ["p"]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        pytest.param({"taskid": ["a"], "prompt": ["p"]}, "{}: has no column task_id (did you mean taskid?)", id="no-id"),
        pytest.param(
            {"task_id": ["a"], "promt": ["p"]},
            "{}: has neither a column prompt nor a column messages (did you mean promt?)",
            id="no-prompt",
        ),
        pytest.param(
            {"task_id": [1], "prompt": ["p"]}, "{} task_id: the column's type is int64, not string", id="number-for-text"
        ),
        pytest.param({"task_id": ["a"], "prompt": [b"p"]}, "{} prompt: the column's type is binary, not string", id="binary"),
        pytest.param({**TWO, "turn": ["1"]}, "{} turn: the column's type is string, not int32", id="text-for-number"),
        pytest.param(
            {**TWO, "metadata": [{"a": 1}]},
            "{} metadata: the column's type is struct<a: int64>, not string",
            id="struct-for-json",
        ),
        pytest.param(
            {"task_id": ["a"], "messages": [[{"role": "user", "text": "x"}]]},
            "{} messages: the column's type is list<",
            id="message-fields",
        ),
        pytest.param(
            {**TWO, "limits": [{"cpu_s": "1"}]},
            "{} limits: the column's type is struct<cpu_s: string>, not struct<cpu_s: double, ",
            id="text-in-struct",
        ),
        pytest.param({**TWO, "context": ["a.py"]}, "{} context: the column's type is string, not list<", id="text-for-list"),
    ],
)
def test_columns_that_are_missing_or_of_another_type(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = table(tmp_path / "a.parquet", columns)
    [problem] = check_shards([path]).fatal
    assert str(problem).startswith(message.format(path))


def test_a_column_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.Table.from_arrays([pa.array(["a"]), pa.array(["p"]), pa.array(["q"])], ["task_id", "prompt", "prompt"]), path
    )
    assert [str(p) for p in check_shards([path]).fatal] == [f"{path} prompt: there are 2 columns of this name (keep one of them)"]


@pytest.mark.parametrize("version", [b"task/2", RESULT.metadata[b"codegen_batch.schema"]], ids=["newer", "results"])
def test_another_schema_version(tmp_path: Path, version: bytes) -> None:
    path = table(tmp_path / "a.parquet", TWO, {b"codegen_batch.schema": version})
    [problem] = check_shards([path]).fatal
    assert f"its schema is {version.decode()!r}, not 'task/1'" in problem.message


def test_unknown_columns_and_tests_without_a_kind_are_warned_about(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", {**TWO, "sesion_id": ["s"], "test": ["assert f()"]})
    report = check_shards([path])
    assert report.fatal == ()
    assert [str(warning) for warning in report.warnings] == [
        f"{path} sesion_id: unknown column, ignored (did you mean session_id?)",
        f"{path}: has tests but no column test_kind (without a kind nothing is run)",
    ]
    assert [type(row) for row in read_tasks([path])] == [Task]


def test_an_empty_shard_is_fatal_only_alone(tmp_path: Path) -> None:
    empty, full = shard(tmp_path / "empty.parquet", []), shard(tmp_path / "full.parquet", [FULL])
    both = check_shards([empty, full])
    assert (both.fatal, both.rows, len(both.warnings)) == ((), 1, 1)
    assert "has no rows" in both.warnings[0].message
    alone = check_shards([empty])
    with pytest.raises(InputDataError, match=r"there are no tasks") as raised:
        alone.raise_if_fatal()
    assert raised.value.exit_code == 4


def test_all_fatal_problems_come_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    other = table(tmp_path / "b.parquet", {"x": [1]})
    with pytest.raises(InputDataError) as raised:
        check_shards([tmp_path / "a.parquet", other]).raise_if_fatal()
    assert len(raised.value.problems) == 3


# Finding


def test_globs_are_sorted_and_each_file_comes_once(tmp_path: Path) -> None:
    a, b, c = (shard(tmp_path / name, [FULL]) for name in ("x/a.parquet", "x/b[1].parquet", "y/z/c.parquet"))
    (tmp_path / "x/link.parquet").symlink_to(a)
    (tmp_path / "x/folder.parquet").mkdir()
    assert find_shards(["**/*.parquet", "x/b[1].parquet", str(c), "./x/a.parquet"], tmp_path) == [a, b, c]
    assert find_shards([f"{tmp_path}/y/*/c.parquet"], Path("/")) == [c]


@pytest.mark.parametrize("pattern", ["a.parquet", "*.parquet", "{escaped}/a.parquet", "{escaped}/*.parquet"])
def test_a_folder_whose_name_looks_like_a_glob(tmp_path: Path, pattern: str) -> None:
    path = shard(tmp_path / "[odd]/a.parquet", [FULL])
    assert find_shards([pattern.format(escaped=glob.escape(str(path.parent)))], path.parent) == [path]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        pytest.param(
            "tasks/trian.parquet", "tasks/trian.parquet: no such file in {}/tasks (did you mean train.parquet?)", id="typo"
        ),
        pytest.param("tasks/*.jsonl", "tasks/*.jsonl: no such file in {}/tasks", id="glob"),
        pytest.param("task/a.parquet", "task/a.parquet: there is no folder {}/task", id="folder"),
        pytest.param("*/none/a.parquet", "*/none/a.parquet: no such file in {}", id="glob-in-folder"),
        pytest.param("tasks/", "tasks/: is a folder, not a shard (write tasks/*.parquet)", id="names-a-folder"),
    ],
)
def test_a_pattern_that_names_no_file(tmp_path: Path, pattern: str, message: str) -> None:
    shard(tmp_path / "tasks/train.parquet", [FULL])
    with pytest.raises(InputDataError) as raised:
        find_shards([pattern, "tasks/*.parquet"], tmp_path)
    assert [str(problem) for problem in raised.value.problems] == [message.format(tmp_path)]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/d/a.parquet", "/d/b.parquet"], ["a.parquet", "b.parquet"]),
        (["/d/x/a.parquet", "/d/y/a.parquet", "/d/y/b.parquet"], ["x/a.parquet", "y/a.parquet", "b.parquet"]),
        (["/x/d/a.parquet", "/y/d/a.parquet"], ["x/d/a.parquet", "y/d/a.parquet"]),
        (["/a.parquet", "/d/a.parquet"], ["//a.parquet", "d/a.parquet"]),
        ([], []),
    ],
    ids=["different", "one-folder", "two-folders", "root", "none"],
)
def test_shards_of_the_same_file_name_are_told_apart(paths: list[str], names: list[str]) -> None:
    assert shard_names([Path(path) for path in paths]) == names


# Memory

READ_ALL = """
import resource, sys
from pathlib import Path
from codegen_batch.pipeline.tasks import read_tasks
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
paths = [Path(p) for p in sys.argv[1:]]
for _ in read_tasks(paths[:1]):
    pass
before = peak()
rows = sum(1 for _ in read_tasks(paths))
print(rows, (peak() - before) // 1024)
"""


def test_reading_takes_constant_memory(tmp_path: Path) -> None:
    words = "x" * 40_000
    prompts = [{"task_id": f"t{i}", "prompt": f"{i} {words}"} for i in range(2000)]  # 80 MB of text in one row group
    big = shard(tmp_path / "big.parquet", prompts, compression="zstd", use_dictionary=False)
    small = shard(tmp_path / "a.parquet", prompts[:300], compression="zstd", use_dictionary=False)
    run = subprocess.run([sys.executable, "-c", READ_ALL, small, big], capture_output=True, text=True, check=True)
    rows, grown_mb = map(int, run.stdout.split())
    assert rows == 2300
    assert grown_mb < 40
