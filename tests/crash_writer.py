"""Writes a run's folder from processes that die on purpose. test_store.py runs this; it prints what happened as JSON.

random FOLDER: kills writers at random instants until one finishes.
lines FOLDER: for every line of the code that touches the disk, kills a writer there, then finishes its work.
full FOLDER: fills a small disk, makes room, and finishes.
"""

import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow.parquet as pq
from codegen_batch.pipeline.store import RunFolder
from codegen_batch.schemas.errors import EnvironmentFailure
from codegen_batch.schemas.records import Result, RowError

Key = tuple[str, int]


def run(folder: Path) -> RunFolder:
    return RunFolder.open(folder, job={}, fingerprint="f", identity={}, versions={})


def write(folder: Path, tasks: int, batch: int, text: str = "", acknowledge: Callable[[list[Key]], object] = list) -> None:
    """Commits what is missing of `tasks` × 2 rows; acknowledges each commit that returned."""
    with run(folder) as out:
        keys = [(f"t{i}", sample) for i in range(tasks) for sample in range(2) if (f"t{i}", sample) not in out.committed()]
        for start in range(0, len(keys), batch):
            chunk = keys[start : start + batch]
            error = RowError("judge", "judge_failure", text or "x")
            assert out.commit([Result(task, sample, datetime.now(UTC), error=error) for task, sample in chunk])
            acknowledge(chunk)


def rows(folder: Path) -> list[Key]:
    tables = [pq.read_table(path, columns=["task_id", "sample_index"]) for path in (folder / "results").glob("part-*.parquet")]
    return [(row["task_id"], row["sample_index"]) for table in tables for row in table.to_pylist()]


def fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    return pid


def killed(pid: int) -> bool:
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or status == 0, status
    return os.WIFSIGNALED(status)


def tell(pipe: int, keys: list[Key]) -> None:
    os.write(pipe, f"{json.dumps(keys)}\n".encode())


def kill_at_random(folder: Path) -> dict[str, object]:
    tasks, kills, clock = 150, 0, random.Random(3)
    acknowledged: set[Key] = set()
    while True:
        read, send = os.pipe()
        pid = fork(partial(write, folder, tasks, 2, acknowledge=partial(tell, send)))
        os.close(send)
        if kills < 40:
            time.sleep(clock.uniform(0.0, 0.06))
            os.kill(pid, signal.SIGKILL)
        was_killed = killed(pid)
        with open(read) as pipe:
            acknowledged |= {(task, sample) for line in pipe for task, sample in json.loads(line)}
        with run(folder) as out:
            assert acknowledged <= set(out.committed()), "an acknowledged row is lost"
            assert not out.warnings, out.warnings
        if not was_killed:
            break
        kills += 1
    found = rows(folder)
    return {"kills": kills, "rows": len(found), "distinct": len(set(found)), "left": leftovers(folder)}


def kill_at_line(n: int) -> Callable[[FrameType, str, object], Any]:
    """A trace function that kills this process before the n-th line of durable.py, and of who calls it."""
    functions = {"commit", "write_part", "recover_parts", "_claim", "set_expected"}
    passed = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal passed
        here = frame.f_code.co_filename.endswith("pipeline/durable.py") or frame.f_code.co_name in functions
        if event == "line" and here:
            passed += 1
            if passed == n:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace if here else None

    return trace


def kill_at_every_line(folder: Path) -> dict[str, object]:
    def work(path: Path, n: int) -> None:
        sys.settrace(kill_at_line(n))
        write(path, tasks=2, batch=2)

    wrong = []
    rows_at_death: Counter[int] = Counter()
    for n in itertools.count(1):
        path = folder / str(n)
        if not killed(fork(partial(work, path, n))):
            break
        rows_at_death[len(rows(path))] += 1
        write(path, tasks=2, batch=2)
        if sorted(rows(path)) != [("t0", 0), ("t0", 1), ("t1", 0), ("t1", 1)] or leftovers(path):
            wrong.append((n, rows(path), leftovers(path)))
        shutil.rmtree(path)
    return {"rows_at_death": rows_at_death, "wrong": wrong}


def fill_the_disk(folder: Path) -> dict[str, object]:
    ballast = folder / "ballast"
    ballast.write_bytes(os.urandom(100_000))
    out = folder / "run"
    text = os.urandom(10_000).hex()
    try:
        write(out, tasks=10, batch=2, text=text)
    except EnvironmentFailure as error:
        message = str(error)
    before, left = rows(out), leftovers(out)
    ballast.unlink()
    write(out, tasks=10, batch=2, text=text)
    after = rows(out)
    return {"message": message, "before": len(before), "left": left, "after": len(after), "distinct": len(set(after))}


def leftovers(folder: Path) -> list[str]:
    """Files that a whole run does not have: temporary ones, and parts that were set aside."""
    known = {"run.json", "manifest.jsonl", "log.jsonl", ".lock"}
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in known]
    return sorted(path.name for path in files if path.suffix != ".parquet" or path.parent.name != "results")


if __name__ == "__main__":
    mode = {"random": kill_at_random, "lines": kill_at_every_line, "full": fill_the_disk}[sys.argv[1]]
    print(json.dumps(mode(Path(sys.argv[2]))))
