"""`show` and `status` on run folders that the store wrote."""

import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from codegen_batch.pipeline.show import find_rows, lock_holder, printable, read_status, show_task, status_json, status_table
from codegen_batch.pipeline.store import RunFolder, read_run
from codegen_batch.schemas.errors import InputDataError, UsageError
from codegen_batch.schemas.records import CodeFacts, ContextFile, Generation, Judgement, Message, Result, RowError, Task, Verdict
from rich.console import Console

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TASK = Task("sum", "a.parquet", 0, prompt="Write `sum_of(a, b)`.", context=(ContextFile("lib.py", "BASE = 10"),))


def judged(task_id: str, sample: int, verdict: Verdict, **judgement: object) -> Result:
    generation = Generation("Here:\ndef f(): pass", "stop", 20, 16, 9, 12.3, 1234.5, 80.0, 1, 0, 0)
    facts = CodeFacts("def f(): pass", "fence", syntax_ok=True)
    return Result(task_id, sample, NOW, generation, Judgement(facts, verdict, **judgement), None, NOW)  # type: ignore[arg-type]


def make_run(path: Path, rows: Sequence[Result], expected: int = 4) -> RunFolder:
    folder = RunFolder.open(path, job={"name": "demo"}, fingerprint="f" * 32, identity={}, versions={})
    folder.set_expected(expected)
    if rows:
        folder.commit(rows)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    wrong = judged(
        "sum", 0, Verdict.WRONG_ANSWER, verdict_detail="assert 3 == 4", stdout_tail="seen\x1b[2J", tests_run=3, tests_passed=2
    )
    failed = Result("long", 0, NOW, error=RowError("prompt", "prompt_too_long", "9000 tokens, 8192 fit"), finished_at=NOW)
    with make_run(tmp_path / "out", [judged("sum", 1, Verdict.PASSED), wrong, failed]) as folder:
        return folder.path


def shown(run: Path, task_id: str, task: Task | None = TASK, sample: int | None = None, *, terminal: bool = False) -> str:
    file = io.StringIO()
    show_task(find_rows(read_run(run), task_id, sample), task, Console(file=file, width=60, force_terminal=terminal))
    return file.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "task sum\n",
        "-- prompt\n[lib.py]\nBASE = 10\n\nWrite `sum_of(a, b)`.\n",
        "sample 0: wrong_answer\n",
        "20 prompt tokens, 16 of them cached\n9 tokens generated, finished by stop\n",
        "first token after 12 ms, last after 1,234 ms\n",
        "2 of 3 tests passed",
        "-- completion\nHere:\ndef f(): pass\n",
        "-- code\ndef f(): pass\n",
        "-- verdict\nassert 3 == 4\n",
        "-- standard output\nseen\N{REPLACEMENT CHARACTER}[2J\n",
        "sample 1: passed\n",
    ],
)
def test_all_that_became_of_a_task_is_shown(run: Path, text: str) -> None:
    assert text in shown(run, "sum")


def test_samples_are_shown_in_order_or_one_alone(run: Path) -> None:
    text = shown(run, "sum")
    assert text.index("sample 0:") < text.index("sample 1:")
    assert "sample 0:" not in shown(run, "sum", sample=1)


def test_an_error_row_shows_its_error(run: Path) -> None:
    text = shown(run, "long", None)
    assert "sample 0: prompt_too_long\n" in text
    assert "-- error\n9000 tokens, 8192 fit\n" in text
    assert "shard was not found" in text


def test_a_chat_is_shown_turn_by_turn(run: Path) -> None:
    chat = Task("sum", "a.parquet", 0, messages=(Message("system", "Be brief."), Message("user", "Sum!")))
    assert "-- prompt\n[system]\nBe brief.\n\n[user]\nSum!\n" in shown(run, "sum", chat)


def test_code_is_coloured_on_a_terminal_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "def f(): pass" not in shown(run, "sum", sample=1, terminal=True).split("-- code")[1]
    assert "\x1b" not in shown(run, "sum")


@pytest.mark.parametrize(
    ("task_id", "sample", "message"),
    [
        ("sun", None, "no result of task 'sun'.*did you mean sum"),
        ("other", None, "no result of task 'other'.*not finished, 3 of 4 rows"),
        ("sum", 7, "no sample 7.*it has 0, 1"),
    ],
    ids=["near-miss", "unknown", "no-such-sample"],
)
def test_a_row_that_is_not_there_is_a_usage_error(run: Path, task_id: str, sample: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_rows(read_run(run), task_id, sample)


def test_a_run_without_parts_has_no_rows(tmp_path: Path) -> None:
    with make_run(tmp_path / "out", []), pytest.raises(UsageError, match="no result of task"):
        find_rows(read_run(tmp_path / "out"), "sum")


def test_a_damaged_part_is_an_input_error(run: Path) -> None:
    next((run / "results").glob("part-*")).write_bytes(b"PAR1 no more")
    with pytest.raises(InputDataError, match="a part cannot be read"):
        find_rows(read_run(run), "sum")


def test_printable_keeps_lines_tabs_and_letters() -> None:
    assert printable("a\tb\r\nü→\x07\x9b") == "a\tb\nü→\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"


def status_of(run: Path) -> str:
    file = io.StringIO()
    Console(file=file, width=80).print(status_table(read_status(read_run(run))), crop=False)
    return file.getvalue()


def test_status_of_a_run_that_nobody_writes(run: Path) -> None:
    lines = status_of(run).splitlines()
    assert lines[:4] == [
        "run         demo: not finished, 3 of 4 rows",
        "written by  nobody now; the same command resumes",
        "verdicts    passed 1, wrong_answer 1",
        f"parts       1 part in {run / 'results'}",
    ]
    assert lines[4].startswith("log         20")
    assert "opened rows=0" in lines[4]


def test_status_names_the_process_that_writes(tmp_path: Path) -> None:
    with make_run(tmp_path / "out", []) as folder:
        assert "written by  pid " in status_of(folder.path)
    assert lock_holder(tmp_path / "out") is None


def test_looking_for_the_writer_leaves_the_lock_free(run: Path) -> None:
    assert lock_holder(run) is None
    with make_run(run, []) as folder:
        assert lock_holder(run) is not None
        folder.commit([judged("more", 0, Verdict.PASSED)])
    assert read_status(read_run(run)).run.finished


def test_status_survives_a_damaged_part_and_a_half_written_log(run: Path) -> None:
    next((run / "results").glob("part-*")).write_bytes(b"PAR1 no more")
    with (run / "log.jsonl").open("a") as log:
        log.write('{"time": "2026-01-01T00:00:00", "event": "stopped"}\n[1]\n{"event": "ha')
    text = status_of(run)
    assert "ATTENTION   a part cannot be read" in text
    assert text.rstrip().endswith("2026-01-01T00:00:00 stopped")


def test_status_json(run: Path) -> None:
    content = json.loads(json.dumps(status_json(read_status(read_run(run)))))
    assert content["run"]["rows"] == 3
    assert (content["writer"], content["verdicts"]) == (None, {"passed": 1, "wrong_answer": 1})
    assert content["log"][0]["event"] == "opened"
