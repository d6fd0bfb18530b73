import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from codegen_batch.pipeline.parts import KeySet
from codegen_batch.pipeline.store import RunFolder, fingerprint, read_run
from codegen_batch.schemas.errors import EnvironmentFailure, OutputConflict, UsageError
from codegen_batch.schemas.records import CodeFacts, Generation, Judgement, Metric, Result, RowError, Verdict
from codegen_batch.schemas.tables import METRIC, RESULT
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
IDENTITY = {"sampling": {"seed": 1, "temperature": 0.5}, "model": "abc"}
CRASH_WRITER = Path(__file__).with_name("crash_writer.py")


def open_run(path: Path, identity: dict[str, Any] = IDENTITY) -> RunFolder:
    return RunFolder.open(
        path, job={"name": "demo"}, fingerprint=fingerprint(identity), identity=identity, versions={"torch": "2"}
    )


def bad(task_id: str, sample: int = 0, message: str = "m") -> Result:
    return Result(task_id, sample, NOW, error=RowError("read", "bad_value", message), finished_at=NOW)


def keys(parts: Sequence[Path]) -> list[tuple[str, int]]:
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    return [(row["task_id"], row["sample_index"]) for row in rows]


FULL = Result(
    "t/1",
    3,
    NOW,
    Generation("def f(): pass", "stop", 10, 4, 5, 1.5, 9.25, 20.0, 7, 1, 2**62),
    Judgement(
        CodeFacts("def f(): pass", "fence", "python", True, "line 1", ("f",), ("C",), ("os",), 2),
        Verdict.WRONG_ANSWER, "1 != 2", "apart", 3, 2, 4.5, 6.5, 33.0, "out", "err", "namespaces",
    ),
    RowError("judge", "judge_failure", "half done"),
    NOW,
)  # fmt: skip


# Rows


def test_every_column_of_a_result_is_written(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        part = run.commit([FULL])
    assert part == tmp_path / "run/results/part-00000.parquet"
    table = pq.read_table(part)
    assert (table.schema, table.schema.metadata) == (RESULT, RESULT.metadata)
    [row] = table.to_pylist()
    assert row == {
        "task_id": "t/1", "sample_index": 3, "fingerprint": fingerprint(IDENTITY),
        "completion": "def f(): pass", "finish_reason": "stop", "prompt_tokens": 10, "cached_prompt_tokens": 4,
        "completion_tokens": 5, "ttft_ms": 1.5, "latency_ms": 9.25, "decode_tokens_per_second": 20.0, "batch_id": 7,
        "worker": 1, "seed": 2**62,
        "code": "def f(): pass", "extract_method": "fence", "language": "python", "syntax_ok": True, "syntax_error": "line 1",
        "functions": ["f"], "classes": ["C"], "imports": ["os"], "max_nesting": 2,
        "verdict": "wrong_answer", "verdict_detail": "1 != 2", "trust": "apart", "tests_run": 3, "tests_passed": 2,
        "cpu_ms": 4.5, "wall_ms": 6.5, "peak_memory_mb": 33.0, "stdout_tail": "out", "stderr_tail": "err",
        "isolation": "namespaces",
        "error_stage": "judge", "error_code": "judge_failure", "error_message": "half done",
        "started_at": NOW, "finished_at": NOW,
    }  # fmt: skip


def test_an_error_row_has_nulls_elsewhere(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        part = run.commit([bad("a")])
    assert part
    [row] = pq.read_table(part).to_pylist()
    filled = {name for name, value in row.items() if value is not None}
    assert filled == {
        "task_id",
        "sample_index",
        "fingerprint",
        "error_stage",
        "error_code",
        "error_message",
        "started_at",
        "finished_at",
    }


def test_a_row_that_is_neither_judged_nor_in_error_is_a_bug(tmp_path: Path) -> None:
    with open_run(tmp_path) as run, pytest.raises(AssertionError, match="judged or in error"):
        run.commit([Result("a", 0, NOW)])


@pytest.mark.parametrize(
    ("text", "stored"),
    [("a\ud800b", "a\ufffdb"), ("\udcff", "\ufffd"), ("\ud83d\ude00 ü", "😀 ü"), ("\ufeffx\x00y", "\ufeffx\x00y"), ("", "")],
    ids=["lone-high", "lone-low", "pair", "bom-and-nul", "empty"],
)
def test_no_text_stops_a_commit(tmp_path: Path, text: str, stored: str) -> None:
    facts = CodeFacts(code=text, functions=(text,))
    with open_run(tmp_path) as run:
        part = run.commit([bad("other"), Result("a", 0, NOW, judgement=Judgement(facts, Verdict.NO_CODE, stdout_tail=text))])
    assert part
    row = pq.read_table(part).to_pylist()[1]
    assert (row["code"], row["functions"], row["stdout_tail"]) == (stored, [stored], stored)


# Once


def test_a_committed_key_is_never_committed_again(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        first = run.commit([bad("a"), bad("b"), bad("a", message="again")])
        assert first
        assert [row["error_message"] for row in pq.read_table(first).to_pylist()] == ["m", "m"]
        assert run.commit([bad("b"), bad("a")]) is None
        second = run.commit([bad("b"), bad("b", 1)])
        assert run.results() == [first, second]
        assert set(run.committed()) == {("a", 0), ("b", 0), ("b", 1)}
        assert run.commit([]) is None
    assert keys(run.results()) == [("a", 0), ("b", 0), ("b", 1)]
    assert [path.name for path in run.results()] == ["part-00000.parquet", "part-00001.parquet"]


def test_a_resume_knows_what_is_committed(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.commit([bad("a", 1), bad("b")])
    with open_run(tmp_path) as run:
        assert run.warnings == ()
        assert set(run.committed()) == {("a", 1), ("b", 0)}
        assert run.commit([bad("b"), bad("c")]) == tmp_path / "results/part-00001.parquet"
    assert keys(run.results()) == [("a", 1), ("b", 0), ("c", 0)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 70))))
def test_a_key_set_is_a_set(members: list[tuple[str, int]]) -> None:
    built = KeySet(members[: len(members) // 2])
    built.update(members[len(members) // 2 :])
    assert set(built) == set(members)
    assert len(built) == len(set(members))
    assert sorted(built) == sorted(set(members))
    assert all((key in built) == (key in members) for key in [("a", 0), ("b", 70), ("z", 1)])


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        stranger = tmp_path / "results/part-00000.parquet"
        stranger.write_bytes(b"not ours")
        assert run.commit([bad("a")]) == tmp_path / "results/part-00001.parquet"
    assert stranger.read_bytes() == b"not ours"


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    with open_run(tmp_path) as run:
        (tmp_path / "results/part-00001.parquet").write_bytes(b"taken")
        run.commit([bad("a")])
        run.commit([bad("b")])
        assert [path.name for path in run.results()] == ["part-00000.parquet", "part-00002.parquet"]
    assert (tmp_path / "results/part-00001.parquet").read_bytes() == b"taken"
    assert keys(run.results()) == [("a", 0), ("b", 0)]


# Whose folder


def test_a_run_says_who_it_is(tmp_path: Path) -> None:
    with open_run(tmp_path / "deep/run"):
        pass
    content = json.loads((tmp_path / "deep/run/run.json").read_text())
    assert {name: content[name] for name in ("job", "fingerprint", "identity", "versions")} == {
        "job": {"name": "demo"}, "fingerprint": fingerprint(IDENTITY), "identity": IDENTITY, "versions": {"torch": "2"}
    }  # fmt: skip
    assert content["host"]["name"]


def test_another_fingerprint_is_refused_with_the_difference(tmp_path: Path) -> None:
    open_run(tmp_path).close()
    written = (tmp_path / "run.json").read_bytes()
    with pytest.raises(OutputConflict) as raised:
        open_run(tmp_path, {"sampling": {"seed": 2, "temperature": 0.5}, "judge": [1]})
    assert raised.value.exit_code == 6
    first, *changes = map(str, raised.value.problems)
    assert first.endswith("(choose another --output, or remove the folder)")
    assert fingerprint(IDENTITY) in first
    assert changes == ["sampling.seed: was 1, now 2", 'model: was "abc", now null', "judge: was null, now [1]"]
    assert (tmp_path / "run.json").read_bytes() == written
    open_run(tmp_path).close()


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"job": {}}'], ids=["empty", "torn", "list", "number", "incomplete"])
def test_a_damaged_run_json_is_a_conflict(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(OutputConflict, match=r"run\.json: is damaged"):
        open_run(tmp_path)
    with pytest.raises(OutputConflict, match=r"run\.json: is damaged"):
        read_run(tmp_path)


def test_results_without_run_json_belong_to_nobody(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.commit([bad("a")])
    (tmp_path / "run.json").unlink()
    with pytest.raises(OutputConflict, match=r"no run\.json"):
        open_run(tmp_path)


def test_a_folder_is_held_by_one_process(tmp_path: Path) -> None:
    with (
        open_run(tmp_path),
        pytest.raises(OutputConflict, match=rf"another process writes here: pid {os.getpid()} on ") as raised,
    ):
        open_run(tmp_path)
    assert raised.value.exit_code == 6
    open_run(tmp_path).close()


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from codegen_batch.pipeline.store import RunFolder\n"
        "run = RunFolder.open(sys.argv[1], job={}, fingerprint='f', identity={}, versions={})\n"
        "child = os.fork()\n"
        "if child == 0: time.sleep(60)\n"
        "print(child, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        with pytest.raises(OutputConflict, match=f"pid {parent.pid}"):
            RunFolder.open(tmp_path, job={}, fingerprint="f", identity={}, versions={})
        parent.kill()
        parent.wait()
        RunFolder.open(tmp_path, job={}, fingerprint="f", identity={}, versions={}).close()
        os.kill(child, signal.SIGKILL)


def test_a_closed_folder_takes_no_commits(tmp_path: Path) -> None:
    run = open_run(tmp_path)
    run.close()
    with pytest.raises(EnvironmentFailure, match="no more commits"):
        run.commit([bad("a")])


# Damage


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def flip(content: bytes) -> bytes:
    middle = len(content) // 3
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def two_parts(folder: Path) -> Path:
    with open_run(folder) as run:
        run.commit([bad("a"), bad("b")])
        run.commit([bad("c")])
    return folder


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda f: (f / "manifest.jsonl").unlink(), id="no-manifest"),
        pytest.param(lambda f: edit(f / "manifest.jsonl", lambda c: c[:-20]), id="torn-line"),
        pytest.param(lambda f: edit(f / "manifest.jsonl", lambda c: c.splitlines(keepends=True)[1]), id="line-lost"),
        pytest.param(lambda f: edit(f / "manifest.jsonl", lambda c: b'\xff\xfe\n[1]\n{"part": 1}\n' + c), id="foreign-lines"),
        pytest.param(lambda f: (f / "results/.1-ab.tmp").write_bytes(b"half"), id="temporary-file"),
        pytest.param(lambda f: os.link(f / "results/part-00001.parquet", f / "results/.1-ab.tmp"), id="linked-but-not-unlinked"),
        pytest.param(lambda f: (f / ".1-ab.tmp").write_bytes(b"half"), id="temporary-metrics"),
        pytest.param(lambda f: (f / "results/part-00002.parquet").touch(), id="claimed-name"),
    ],
)
def test_what_a_crash_leaves_is_mended_without_loss(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    manifest = (two_parts(tmp_path) / "manifest.jsonl").read_bytes()
    damage(tmp_path)
    with open_run(tmp_path) as run:
        assert run.warnings == ()
        assert set(run.committed()) == {("a", 0), ("b", 0), ("c", 0)}
    assert (tmp_path / "manifest.jsonl").read_bytes() == manifest
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["part-00000.parquet", "part-00001.parquet"]
    assert not list(tmp_path.glob("*.tmp"))


def part(folder: Path, number: int) -> Path:
    return folder / f"results/part-{number:05d}.parquet"


def ids_only(folder: Path) -> None:
    pq.write_table(pq.read_table(part(folder, 1)).select(["task_id"]), part(folder, 9))


def foreign(folder: Path) -> None:
    with open_run(folder.with_name("other"), {"model": "other"}) as run:
        run.commit([bad("z")])
    shutil.copy(run.results()[0], part(folder, 2))


@pytest.mark.parametrize(
    ("damage", "warning", "kept"),
    [
        pytest.param(lambda f: edit(part(f, 0), flip), "its checksum is not the one", "c", id="flipped-bits"),
        pytest.param(lambda f: edit(part(f, 1), lambda c: c[:-9]), "its checksum is not the one", "ab", id="truncated"),
        pytest.param(lambda f: edit(part(f, 1), lambda c: b""), "its checksum is not the one", "ab", id="emptied"),
        pytest.param(lambda f: part(f, 3).write_bytes(b"x" * 99), "it cannot be read", "abc", id="garbage"),
        pytest.param(ids_only, "it does not have the columns of a result", "abc", id="other-columns"),
        pytest.param(lambda f: shutil.copy(part(f, 1), part(f, 3)), "it repeats rows", "abc", id="copied-part"),
        pytest.param(foreign, "it belongs to a run with another fingerprint", "abc", id="foreign-part"),
    ],
)
def test_a_damaged_part_is_set_aside_and_its_rows_done_again(
    tmp_path: Path, damage: Callable[[Path], object], warning: str, kept: str
) -> None:
    folder = two_parts(tmp_path / "run")
    damage(folder)
    with open_run(folder) as run:
        [problem] = run.warnings
        assert warning in problem.message
        assert set(run.committed()) == {(task, 0) for task in kept}
        run.commit([bad(task) for task in "abc"])
    assert sorted(keys(run.results())) == [("a", 0), ("b", 0), ("c", 0)]
    assert len(list((folder / "results/corrupt").iterdir())) == 1
    with open_run(folder) as run:
        assert run.warnings == ()
        assert len(run.committed()) == 3


def test_damage_without_a_manifest_is_found_by_reading_the_part(tmp_path: Path) -> None:
    two_parts(tmp_path)
    (tmp_path / "manifest.jsonl").unlink()
    edit(tmp_path / "results/part-00000.parquet", flip)
    with open_run(tmp_path) as run:
        assert set(run.committed()) == {("c", 0)}
        assert "it cannot be read" in run.warnings[0].message


def test_parts_set_aside_twice_under_one_name_are_both_kept(tmp_path: Path) -> None:
    for _ in range(2):
        two_parts(tmp_path)
        edit(tmp_path / "results/part-00001.parquet", flip)
        open_run(tmp_path).close()
    names = sorted(path.name for path in (tmp_path / "results/corrupt").iterdir())
    assert names == ["part-00001.parquet", "part-00001.parquet.1"]


def test_rows_of_a_part_that_is_gone_are_done_again(tmp_path: Path) -> None:
    two_parts(tmp_path)
    (tmp_path / "results/part-00000.parquet").unlink()
    with open_run(tmp_path) as run:
        assert set(run.committed()) == {("c", 0)}
        [problem] = run.warnings
    assert "its 2 rows will be done again" in str(problem)


# Crashes


def crash(mode: str, folder: Path, *before: str) -> dict[str, Any]:
    command = [*before, sys.executable, str(CRASH_WRITER), mode, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_writers_killed_at_random_lose_and_repeat_no_row(tmp_path: Path) -> None:
    result = crash("random", tmp_path)
    assert result["kills"] >= 10  # a machine that finishes sooner needs more rows
    assert result == {"kills": result["kills"], "rows": 300, "distinct": 300, "left": []}


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: what a kill leaves does not depend on the disk, and 200 kills take seconds."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_writer_killed_at_any_line_loses_and_repeats_no_row(memory_folder: Path) -> None:
    result = crash("lines", memory_folder)
    assert result["wrong"] == []
    assert set(result["rows_at_death"]) == {"0", "2", "4"}
    assert sum(result["rows_at_death"].values()) > 100


def small_disk_is_possible() -> bool:
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "size=300k", "none", "/tmp"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not small_disk_is_possible(), reason="needs user namespaces to mount a small disk")
def test_a_full_disk_stops_the_run_and_more_room_resumes_it(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=300k none {tmp_path} && exec "$@"'
    result = crash("full", tmp_path, "unshare", "-Urm", "sh", "-c", mount, "sh")
    assert "the disk is full (free some space, then the same command resumes)" in result["message"]
    assert 0 < result["before"] < 20
    assert (result["left"], result["after"], result["distinct"]) == ([], 20, 20)


def test_a_write_that_stops_half_way_commits_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_run(tmp_path) as run:
        run.commit([bad("a")])
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, hard))
        try:
            with pytest.raises(EnvironmentFailure, match="cannot be read or written") as raised:
                run.commit([bad("b", message=os.urandom(9000).hex())])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert raised.value.exit_code == 7
        assert set(run.committed()) == {("a", 0)}
        with pytest.raises(EnvironmentFailure, match="no more commits"):
            run.commit([bad("c")])
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["part-00000.parquet"]
    with open_run(tmp_path) as run:
        assert set(run.committed()) == {("a", 0)}


@pytest.mark.parametrize("place", ["file/run", "/proc/run"], ids=["below-a-file", "no-such-disk"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailure, match="cannot be read or written"):
        open_run(tmp_path / place)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputConflict, match="is a file"):
        open_run(tmp_path / "file")


# Beside the rows


def test_metrics_are_replaced_at_once(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.write_metrics([Metric("run", "old", 1.0)])
        run.write_metrics([Metric("run", "pass@1", 0.5, "", 10, 0.2, 0.8), Metric("run", "pass@10", None)])
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert (table.schema, table.schema.metadata) == (METRIC, METRIC.metadata)
    assert table.to_pylist() == [
        {"scope": "run", "name": "pass@1", "value": 0.5, "unit": "", "n": 10, "ci_low": 0.2, "ci_high": 0.8},
        {"scope": "run", "name": "pass@10", "value": None, "unit": "", "n": None, "ci_low": None, "ci_high": None},
    ]


def test_the_log_takes_anything(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.log("step", path=tmp_path, text="\ud800\n")
    opened, step = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert (opened["event"], opened["rows"]) == ("opened", 0)
    assert (step["event"], step["path"], step["text"]) == ("step", str(tmp_path), "\ud800\n")


def test_a_log_that_cannot_be_written_is_reported_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_run(tmp_path) as run:
        (tmp_path / "log.jsonl").unlink()
        (tmp_path / "log.jsonl").mkdir()
        run.log("step")
        assert run.commit([bad("a")])
    assert "cannot log step" in caplog.text


def test_status_needs_no_lock_and_counts_unlisted_parts(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.commit([bad("a"), bad("b")])
        run.commit([bad("c")])
        info = read_run(tmp_path)
        assert (info.rows, info.expected_rows, info.finished) == (3, None, False)
        run.set_expected(3)
        assert read_run(tmp_path).finished
        run.set_expected(4)
    (tmp_path / "manifest.jsonl").write_text("torn")
    (tmp_path / "results/part-00007.parquet").write_bytes(b"damaged")
    info = read_run(tmp_path)
    assert (info.rows, info.expected_rows, info.finished, len(info.parts)) == (3, 4, False, 3)
    assert (info.job, info.fingerprint, info.identity) == ({"name": "demo"}, fingerprint(IDENTITY), IDENTITY)


def test_status_of_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run in this folder"):
        read_run(tmp_path / "absent")


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"b": [1, 2], "a": {"y": 0.1, "x": "ü"}}, True),
        ({"a": {"x": "ü", "y": 0.1}, "b": (1, 2)}, True),
        ({"a": {"x": "ü", "y": 0.1}, "b": [2, 1]}, False),
        ({"a": {"x": "u", "y": 0.1}, "b": [1, 2]}, False),
        ({"a": {"x": "ü", "y": 0.1}, "b": [1, 2], "c": None}, False),
    ],
    ids=["order-of-keys", "tuple", "order-of-items", "value", "key"],
)
def test_a_fingerprint_tells_settings_apart(other: dict[str, Any], same: bool) -> None:
    mine = fingerprint({"a": {"x": "ü", "y": 0.1}, "b": [1, 2]})
    assert re.fullmatch("[0-9a-f]{32}", mine)
    assert (fingerprint(other) == mine) is same


def test_a_fingerprint_stays_the_same_over_versions() -> None:
    assert fingerprint({"b": 1, "a": [True, None]}) == "51705a2c9eb3e7e410a58f696a770c3a"


def test_importing_the_store_is_cheap() -> None:
    code = "import sys, codegen_batch.pipeline.store, codegen_batch.pipeline.tasks; sys.exit('pyarrow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
