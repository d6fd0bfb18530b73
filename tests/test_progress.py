"""Progress on a terminal, off it, and quiet; updated from many threads."""

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from codegen_batch.pipeline.progress import Progress, State, status_text
from rich.console import Console


def console(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def last_state(console: Console) -> str:
    return [line for line in text_of(console).splitlines() if "passed" in line][-1]


@pytest.fixture(autouse=True)
def _capable_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize(
    ("state", "start", "elapsed", "text"),
    [
        (State(), State(), 0.0, "0 passed, 0 running"),
        (State(total=8), State(), 10.0, "0 passed, 0 tokens/s, 0 running"),
        (State(10, 4, 50_000, 3, 2), State(10), 40.0, "2 passed, 1,250 tokens/s, 3 running, 0:01:00 left"),
        (State(10, 6, 0, 0, 0), State(10, 4), 40.0, "0 passed, 0 tokens/s, 0 running, 0:01:20 left"),
        (State(None, 6), State(), 1.0, "0 passed, 0 tokens/s, 0 running"),
    ],
    ids=["start", "nothing-done", "under-way", "resumed", "total-unknown"],
)
def test_status(state: State, start: State, elapsed: float, text: str) -> None:
    assert status_text(state, start, elapsed) == text


def test_off_terminal_it_says_the_start_and_the_end() -> None:
    out, clock = console(), count(0, 100)  # seconds: made, entered, first line, last line
    with Progress(out, State(total=10, judged=2), clock=lambda: next(clock)) as progress:
        progress.update(judged=6, tokens=2000, running=1, passed=5)
    assert text_of(out).splitlines() == [
        "0:01:40: 2 of 10 rows, 0 passed, 0 tokens/s, 0 running",
        "0:03:20: 6 of 10 rows, 5 passed, 10 tokens/s, 1 running, 0:03:20 left",
    ]


def test_off_terminal_lines_go_on_while_nothing_is_updated() -> None:
    out = console()
    with Progress(out, State(total=3), every_s=0.02):
        deadline = time.monotonic() + 10
        while text_of(out).count("\n") < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert text_of(out).count("0 of 3 rows") >= 5


def test_on_a_terminal_a_bar_ends_with_the_last_state() -> None:
    out = console(terminal=True)
    with Progress(out, State()) as progress:
        progress.update(total=7)
        progress.update(judged=7, passed=3)
    last = last_state(out)
    assert "7/7" in last
    assert "3 passed" in last


def test_a_terminal_without_a_cursor_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = console(terminal=True)
    with Progress(out, State(total=1)):
        pass
    assert text_of(out).count("0 of 1 rows") == 2


@pytest.mark.parametrize("terminal", [False, True], ids=["off-terminal", "terminal"])
def test_quiet_shows_nothing_and_starts_no_thread(terminal: bool) -> None:
    out, before = console(terminal), set(threading.enumerate())
    with Progress(out, State(total=1), quiet=True) as progress:
        progress.update(judged=1)
        assert set(threading.enumerate()) <= before
    assert text_of(out) == ""


@pytest.mark.parametrize("terminal", [False, True], ids=["off-terminal", "terminal"])
def test_no_update_is_lost_between_threads(terminal: bool) -> None:
    out = console(terminal)
    with Progress(out, State(total=100)) as progress, ThreadPoolExecutor(3) as pool:
        for n in range(1, 101):
            pool.submit(progress.update, judged=n)
            pool.submit(progress.update, running=7)
            pool.submit(progress.update, passed=77)
        pool.shutdown()
        progress.update(judged=100)
    last = last_state(out)
    assert "100" in last
    assert "77 passed" in last
    assert "7 running" in last


def test_an_error_inside_ends_the_thread_and_is_passed_on() -> None:
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="broke"), Progress(console(), State()):
        raise RuntimeError("broke")
    assert set(threading.enumerate()) <= before
