"""Verdicts: candidates that are right, wrong, hostile or greedy, judged apart from the test and beside it."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from codegen_batch.pipeline.validate.judge import Judge, available_levels
from codegen_batch.pipeline.validate.sandbox import LEVELS
from codegen_batch.schemas.errors import EnvironmentFailure
from codegen_batch.schemas.job import Validators
from codegen_batch.schemas.records import Judgement, Limits, Task, Verdict

Ask = Callable[[str, Task], Judgement]

CHECK = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 9\n    assert candidate(1) == 1\n"
TESTS = {"apart": CHECK, "beside": CHECK.replace("\n", "\n    import inspect\n", 1)}
GOOD = "def f(x):\n    return x * x\n"


def task(test: str | None = CHECK, kind: str | None = "check", **fields: Any) -> Task:
    return Task("t", "s.parquet", 0, test=test, test_kind=kind, **{"entry_point": "f", **fields})


@pytest.fixture(params=list(TESTS))
def trust(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def indented(code: str) -> str:
    return textwrap.dedent(code).strip("\n") + "\n"


RIGHT = {
    "plain": GOOD,
    "True for 1": "def f(x):\n    return {2: 4, 3: 9, 1: True}[x]\n",
    "demo print, main block": GOOD + "print(f(5))\nif __name__ == '__main__':\n    raise SystemExit(3)\n",
    "a 30 s thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(30,)).start()\n" + GOOD,
    "100 KB of output": "def f(x):\n    print('x' * 100_000)\n    return x * x\n",
    "getcwd and a scratch file": """
        import os
        def f(x):
            with open(os.path.join(os.getcwd(), "n.txt"), "w") as file:
                file.write(str(x * x))
            return int(open("n.txt").read())
        """,
    "tempfile": """
        import tempfile, pathlib
        def f(x):
            with tempfile.TemporaryDirectory() as folder:
                pathlib.Path(folder, "n").write_text(str(x * x))
                return int(pathlib.Path(folder, "n").read_text())
        """,
    "subprocess of the interpreter": """
        import subprocess, sys
        def f(x):
            return int(subprocess.run([sys.executable, "-c", f"print({x} ** 2)"], capture_output=True, check=True).stdout)
        """,
    "50 threads": """
        import threading
        def f(x):
            found = []
            threads = [threading.Thread(target=found.append, args=(1,)) for _ in range(50)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            return x * x if len(found) == 50 else 0
        """,
    "multiprocessing pool": """
        import multiprocessing
        def g(x): return x * x
        def f(x):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                return pool.map(g, [x])[0]
        """,
    "process pool executor": """
        from concurrent.futures import ProcessPoolExecutor
        def g(x): return x * x
        def f(x):
            with ProcessPoolExecutor(1) as pool:
                return next(iter(pool.map(g, [x])))
        """,
    "numpy": "import numpy as np\ndef f(x):\n    return (np.array([x]) ** 2)[0]\n",
    "named tuple and dataclass": """
        from collections import namedtuple
        from dataclasses import dataclass
        P = namedtuple("P", "x y")
        @dataclass
        class Q:
            x: int
        def f(x):
            return P(Q(x).x * x, 0).x
        """,
    "an int's subclass": "class N(int): pass\ndef f(x):\n    return N(x * x)\n",
    "closes every descriptor": "import os\ndef f(x):\n    os.closerange(0, 512)\n    return x * x\n",
    "ignores signals": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + GOOD,
}


@pytest.mark.parametrize("code", RIGHT.values(), ids=RIGHT.keys())
def test_right_answers_pass(ask: Ask, code: str, trust: str) -> None:
    start = time.monotonic()
    judgement = ask(indented(code), task(TESTS[trust], limits=Limits(cpu_s=4)))
    assert (judgement.verdict, judgement.tests_run, judgement.tests_passed) == (Verdict.PASSED, 3, 3), judgement
    assert judgement.trust == trust
    assert time.monotonic() - start < 4


HOSTILE = {
    "always equal": "class E:\n    __eq__ = __ne__ = __lt__ = __contains__ = lambda s, o: True\ndef f(x):\n    return E()\n",
    "an int that is always equal": "class E(int):\n    __eq__ = lambda s, o: True\ndef f(x):\n    return E()\n",
    "always equal inside a list": "class E:\n    __eq__ = lambda s, o: True\ndef f(x):\n    return [E()]\n",
    "walks frames": """
        import sys
        def f(x):
            frame = sys._getframe()
            while frame:
                for value in frame.f_locals.values():
                    if hasattr(value, "passed"): value.run = value.passed = 3
                    if isinstance(value, dict) and "outcome" in value: value["outcome"] = "done"
                frame = frame.f_back
            return 0
        """,
    "walks a traceback's frames": """
        def f(x):
            try: 1 / 0
            except ZeroDivisionError as e: frame = e.__traceback__.tb_frame
            while frame:
                for value in list(frame.f_locals.values()):
                    if hasattr(value, "passed"): value.run = value.passed = 3
                frame = frame.f_back
            return 0
        """,
    "walks the heap": """
        import gc
        def f(x):
            for thing in gc.get_objects():
                if type(thing).__name__ == "Counter" and hasattr(thing, "run"): thing.run = thing.passed = 3
            return 0
        """,
    "reads the test's constants from the heap": """
        import gc, types
        def f(x):
            for thing in gc.get_objects():
                if isinstance(thing, types.FunctionType) and thing.__name__ == "check":
                    return dict(zip((2, 3, 1), (c for c in thing.__code__.co_consts if c in (4, 9, 1))))[x]
            return 0
        """,
    "atexit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x):\n    return 0\n",
    "replaces AssertionError": "import builtins\nbuiltins.AssertionError = ValueError\ndef f(x):\n    return 0\n",
    "replaces builtins": "import builtins\nbuiltins.all = builtins.bool = lambda *a: True\ndef f(x):\n    return 0\n",
    "replaces operators": "import operator\noperator.eq = lambda a, b: True\ndef f(x):\n    return 0\n",
    "replaces unittest": "import unittest\nunittest.TestCase.run = lambda *a: None\ndef f(x):\n    return 0\n",
    "prints success": 'print(\'{"outcome": "done", "run": 3, "passed": 3}\')\ndef f(x):\n    return 0\n',
    "prints success and exits": "print('3 passed')\ndef f(x):\n    raise SystemExit(0)\n",
    "writes reports to every descriptor": """
        import json, os
        def f(x):
            report = json.dumps({"id": 1, "value": 4, "outcome": "done", "run": 3, "passed": 3, "calls": 3}).encode()
            for fd in range(3, 2048):
                try: os.write(fd, len(report).to_bytes(4, "big") + report)
                except OSError: pass
            os._exit(0)
        """,
    "answers with what is no data": """
        import json, os
        def f(x):
            report = json.dumps({"id": 1, "value": {"__class__": "int"}}).encode()
            for fd in range(3, 2048):
                try: os.write(fd, len(report).to_bytes(4, "big") + report)
                except OSError: pass
            return 0
        """,
    "shadows builtins": "abs = int = len = bool = lambda *a: True\ndef f(x):\n    return 0\n",
    "defines its own check": "def check(candidate):\n    pass\ndef f(x):\n    return 0\n",
    "a callable that says yes": "class Y:\n    __getattr__ = __call__ = lambda s, *a: s\ndef f(x):\n    return Y()\n",
    "wrong": "def f(x):\n    return x\n",
    "returns nothing": "def f(x):\n    pass\n",
}


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE.keys())
def test_nothing_passes_without_being_right(ask: Ask, code: str, trust: str) -> None:
    judgement = ask(indented(code), task(TESTS[trust]))
    assert judgement.verdict != Verdict.PASSED
    assert judgement.verdict.counts
    assert judgement.trust == trust


EXITS = {
    "sys.exit in the function": "import sys\ndef f(x):\n    sys.exit(0)\n",
    "sys.exit at the top": GOOD + "import sys\nsys.exit(0)\n",
    "os._exit": "import os\ndef f(x):\n    os._exit(0)\n",
    "os._exit at the top": GOOD + "import os\nos._exit(0)\n",
    "raise SystemExit": "def f(x):\n    raise SystemExit(0)\n",
    "exit status of a broken sandbox": "import os\ndef f(x):\n    os._exit(97)\n",
}


@pytest.mark.parametrize("code", EXITS.values(), ids=EXITS.keys())
def test_an_early_exit_is_seen_at_once(ask: Ask, code: str, trust: str) -> None:
    start = time.monotonic()
    assert ask(code, task(TESTS[trust])).verdict == Verdict.EXITED_EARLY
    assert time.monotonic() - start < 1.5


GREEDY = {
    "busy loop": ("def f(x):\n    while True: pass\n", Verdict.TIMEOUT_CPU),
    "busy loop that swallows": (
        "def f(x):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass\n",
        Verdict.TIMEOUT_CPU,
    ),
    "busy child": (
        "import os\ndef f(x):\n    if os.fork() == 0:\n        while True: pass\n    os.wait()\n",
        Verdict.TIMEOUT_CPU,
    ),
    "catastrophic regex": ("import re\ndef f(x):\n    return re.match('(a+)+$', 'a' * 40 + 'b')\n", Verdict.TIMEOUT_CPU),
    "sleep that swallows": (
        "import time\ndef f(x):\n    while True:\n        try: time.sleep(100)\n        except BaseException: pass\n",
        Verdict.TIMEOUT_WALL,
    ),
    "10 GB at once": ("def f(x):\n    return len(bytearray(10 << 30))\n", Verdict.OUT_OF_MEMORY),
    "10 MB at a time": ("def f(x):\n    kept = []\n    while True: kept.append(bytearray(10 << 20))\n", Verdict.OUT_OF_MEMORY),
    "shared memory": (
        "import mmap\ndef f(x):\n    m = mmap.mmap(-1, 2 << 30)\n    for i in range(0, 2 << 30, 4096): m[i] = 1\n",
        Verdict.OUT_OF_MEMORY,
    ),
    "deep recursion": ("def f(x):\n    return f(x + 1)\n", Verdict.RUNTIME_ERROR),
    "endless print": ("def f(x):\n    while True: print('x' * 1000)\n", Verdict.OUTPUT_LIMIT),
    "10 MB of output": ("def f(x):\n    print('x' * 10_000_000)\n    return x * x\n", Verdict.OUTPUT_LIMIT),
    "10 MB to standard error": (
        "import os\ndef f(x):\n    os.write(2, b'x' * 10_000_000)\n    return x * x\n",
        Verdict.OUTPUT_LIMIT,
    ),
    "fork bomb": (
        "import os\ndef f(x):\n    while True:\n        try: os.fork()\n        except OSError: pass\n",
        Verdict.SANDBOX_VIOLATION,
    ),
    "fills the scratch directory": (
        "def f(x):\n    for i in range(99):\n        open(str(i), 'wb').write(bytes(10 << 20))\n    return x * x\n",
        Verdict.RUNTIME_ERROR,
    ),
    "takes every inode": ("def f(x):\n    for i in range(99_999):\n        open(str(i), 'wb').close()\n", Verdict.RUNTIME_ERROR),
    "crash": ("import ctypes\ndef f(x):\n    ctypes.string_at(0)\n", Verdict.RUNTIME_ERROR),
    "raises": ("def f(x):\n    raise KeyError('k')\n", Verdict.RUNTIME_ERROR),
    "network": ("import socket\ndef f(x):\n    socket.create_connection(('192.0.2.1', 80), 2)\n", Verdict.RUNTIME_ERROR),
    "writes outside": ("def f(x):\n    open('/usr/x', 'w')\n    return x * x\n", Verdict.RUNTIME_ERROR),
    "not defined": ("def g(x):\n    return x * x\n", Verdict.RUNTIME_ERROR),
}


@pytest.mark.parametrize(("code", "verdict"), GREEDY.values(), ids=GREEDY.keys())
def test_limits(ask: Ask, code: str, verdict: Verdict, trust: str) -> None:
    limits = {Verdict.OUT_OF_MEMORY: Limits(cpu_s=5, memory_mb=128), Verdict.TIMEOUT_WALL: Limits(wall_s=1)}
    judgement = ask(code, task(TESTS[trust], limits=limits.get(verdict, Limits())))
    assert judgement.verdict == verdict, judgement
    assert len(judgement.stdout_tail) <= 2000


def test_right_answer_that_signals_its_parent_and_its_group(ask: Ask, trust: str) -> None:
    code = "import os, signal\ndef f(x):\n    os.kill(os.getppid(), 9)\n    os.killpg(0, signal.SIGTERM)\n    return x * x\n"
    assert ask(code, task(TESTS[trust])).verdict == Verdict.PASSED


def test_no_process_survives(ask: Ask, trust: str) -> None:
    code = """
        import os, time
        def f(x):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execvp("sleep", ["sleep", "77.0625"])
                os._exit(0)
            return x * x
        """
    assert ask(indented(code), task(TESTS[trust])).verdict == Verdict.PASSED
    assert not processes_with("77.0625")


def processes_with(text: str, name: str = "") -> list[str]:
    """Processes whose command line holds the text, and which have that name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes() and name in (path.parent / "comm").read_text():
                found.append(path.parent.name)
        except OSError:  # it has ended meanwhile
            continue
    return [pid for pid in found if int(pid) != os.getpid()]


def test_the_candidate_sees_little(ask: Ask) -> None:
    code = """
        import os
        def f(x):
            assert not os.path.exists("/etc/shadow") and not os.path.exists("/home") and not os.path.exists("/var")
            assert not [k for k in os.environ if "TOKEN" in k or "PYTEST" in k]
            assert sorted(p for p in os.listdir("/proc") if p.isdigit()) == ["1"]
            assert os.listdir(".") == [] and os.environ["PYTHONHASHSEED"] == "0"
            assert "NoNewPrivs:\\t1" in open("/proc/self/status").read()
            assert "CapEff:\\t0000000000000000" in open("/proc/self/status").read()
            return x * x
        """
    judgement = ask(indented(code), task("assert f(3) == 9", "asserts"))
    assert judgement.verdict == Verdict.PASSED, judgement
    assert judgement.isolation == "namespaces"


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="no filter for this processor")
@pytest.mark.parametrize("level", LEVELS[1:])
def test_calls_that_no_program_needs_are_refused(level: str) -> None:
    code = """
        import ctypes, errno, os, socket
        libc = ctypes.CDLL(None, use_errno=True)
        def refused(*arguments):
            assert libc.syscall(*arguments) == -1
            return errno.errorcode[ctypes.get_errno()]
        def f(x):
            assert "Seccomp:\t2" in open("/proc/self/status").read()
            new_user = 0x10000000
            clone, unshare = (56, 272) if os.uname().machine == "x86_64" else (220, 97)
            assert refused(unshare, new_user) == refused(clone, new_user | 17, 0, 0, 0, 0) == "EPERM"
            assert refused(425, 8, 0) == "EPERM", "io_uring_setup"
            assert refused(435, 0, 0) == "ENOSYS", "clone3"
            try:
                socket.socket(socket.AF_VSOCK)
            except OSError as error:
                assert error.errno == errno.EAFNOSUPPORT
            else:
                assert False
            socket.socketpair()[0].close()
            return x * x
        """
    _, works, why = next(found for found in available_levels() if found[0] == level)
    if not works:
        pytest.skip(why)
    with Judge(Validators(workers=1, isolation="process"), level=level) as judge:
        judgement = judge.submit(task("assert f(3) == 9", "asserts"), indented(code)).result()
    assert judgement.verdict == Verdict.PASSED, judgement


TEST_KINDS = {
    "asserts": ("assert f(2) == 4\nassert f(3) == 9", "asserts", Verdict.PASSED, 2),
    "asserts in a loop": ("for i in range(50):\n    assert f(i) == i * i", "asserts", Verdict.PASSED, 50),
    "a mutated argument": ("x = [2]\nf(x)\nassert x == [2, 1]", "asserts", Verdict.PASSED, 1),
    "an expected exception": (
        "try:\n    f(-1)\n    assert False\nexcept ValueError as e:\n    assert 'neg' in str(e)",
        "asserts",
        Verdict.PASSED,
        1,
    ),
    "the candidate's class as an argument": ("assert area(Pair(2, 3)) == 6", "asserts", Verdict.PASSED, 1),
    "the candidate's class in isinstance": ("assert isinstance(Pair(2, 3), Pair)", "asserts", Verdict.PASSED, 1),
    "attributes of a result": ("assert Pair(2, 3).x == 2", "asserts", Verdict.PASSED, 1),
    "an array": ("import numpy as np\nassert np.allclose(array(2), np.array([[0.5, 2]]))", "asserts", Verdict.PASSED, 1),
    "a generator": ("assert list(count(3)) == [0, 1, 2]\nassert next(count(1)) == 0", "asserts", Verdict.PASSED, 2),
    "a callback": ("assert apply(lambda v: v + 1, 2) == 3", "asserts", Verdict.PASSED, 1),
    "big and odd values": (
        "assert same(10 ** 5000) == 10 ** 5000\nassert same({1: (2.5, b'x', {3}, None, 1j, 'é\\ud800')}) =="
        " {1: (2.5, b'x', {3}, None, 1j, 'é\\ud800')}\nassert same(float('inf')) > 0 and same(float('nan')) != same(0)",
        "asserts",
        Verdict.PASSED,
        3,
    ),
    "an empty loop": ("for x in count(0):\n    assert False", "asserts", Verdict.WRONG_ANSWER, 0),
    "no assertion": ("f(2)", "asserts", Verdict.NO_TESTS, None),
    "no check": ("def chek(candidate):\n    assert candidate(1) == 1", "check", Verdict.NO_TESTS, None),
    "check without assertions": ("def check(candidate):\n    candidate(1)", "check", Verdict.NO_TESTS, None),
    "check that never calls": ("def check(candidate):\n    assert True", "check", Verdict.NO_TESTS, 1),
    "a test that does not parse": ("assert f(", "asserts", Verdict.INFRA_ERROR, None),
    "a test that fails on its own": ("import math\nassert math.nothing\nassert f(1)", "asserts", Verdict.INFRA_ERROR, 1),
    "unittest": ("class T: pass", "unittest", Verdict.INFRA_ERROR, None),
    "stdio": (None, "stdio", Verdict.INFRA_ERROR, None),
    "nothing to run": (None, None, Verdict.NO_TESTS, None),
}
MANY = """
def f(x):
    if isinstance(x, list):
        x.append(1)
        return None
    if x < 0:
        raise ValueError("negative")
    return x * x

class Pair:
    def __init__(self, x, y):
        self.x, self.y = x, y

def area(p):
    return p.x * p.y

def count(n):
    yield from range(n)

def apply(g, v):
    return g(v)

def array(v):
    import numpy
    return numpy.array([[0.5, v]])

def same(v):
    return v
"""


@pytest.mark.parametrize(("test", "kind", "verdict", "run"), TEST_KINDS.values(), ids=TEST_KINDS.keys())
def test_kinds_of_tests(ask: Ask, test: str | None, kind: str | None, verdict: Verdict, run: int | None) -> None:
    judgement = ask(MANY, task(test, kind))
    assert (judgement.verdict, judgement.tests_run) == (verdict, run), judgement


def test_an_entry_point_may_be_named_as_a_builtin(ask: Ask, trust: str) -> None:
    test = "assert sum(2, 3) == 6" + ("\nimport inspect" if trust == "beside" else "")
    judgement = ask("def sum(a, b):\n    return a * b\n", task(test, "asserts", entry_point="sum"))
    assert (judgement.verdict, judgement.trust) == (Verdict.PASSED, trust)


def test_before_anything_runs(ask: Ask) -> None:
    assert ask("I cannot.", task()).verdict == Verdict.NO_CODE
    broken = ask("```python\ndef f(x):\n    return (x\n```", task())
    assert broken.verdict == Verdict.SYNTAX_ERROR
    assert broken.verdict_detail.startswith("2:12:")
    assert ask("fn main() {}", task(language="rust")).verdict == Verdict.INFRA_ERROR


def test_helpers_of_the_prompt_serve_candidate_and_test(ask: Ask) -> None:
    prompt = "def twice(n):\n    return 2 * n\n\n\ndef f(x):\n    '''Twice twice.'''\n"
    asked = task("def check(candidate):\n    assert candidate(2) == twice(twice(2))\n", prompt=prompt)
    assert ask("def f(x):\n    return twice(twice(x))\n", asked).verdict == Verdict.PASSED
    assert ask("    return twice(x)\n", asked).verdict == Verdict.WRONG_ANSWER


def test_output_is_kept(ask: Ask) -> None:
    judgement = ask("import sys\ndef f(x):\n    print('out')\n    print('err', file=sys.stderr)\n    return x * x\n", task())
    assert (judgement.stdout_tail, judgement.stderr_tail) == ("out\n" * 3, "err\n" * 3)
    assert judgement.cpu_ms is not None
    assert judgement.wall_ms is not None
    assert judgement.peak_memory_mb is not None
    assert 0 < judgement.cpu_ms < 500
    assert 5 < judgement.peak_memory_mb < 200


def test_detail_names_the_assertion_and_the_result(ask: Ask) -> None:
    detail = ask("def f(x):\n    return 4\n", task()).verdict_detail
    assert "candidate(3) == 9" in detail
    assert detail.endswith("returned 4")


def test_limits_of_the_task_go_first(ask: Ask) -> None:
    start = time.monotonic()
    slow = "import time\ndef f(x):\n    time.sleep(30)\n"
    assert ask(slow, task(limits=Limits(wall_s=0.3))).verdict == Verdict.TIMEOUT_WALL
    assert time.monotonic() - start < 2


def test_tests_can_be_off() -> None:
    with Judge(Validators(tests=False, workers=1)) as judge:
        assert judge.submit(task(), GOOD).result(60).verdict == Verdict.NO_TESTS
        assert judge.submit(task(), "def f(x:\n").result(60).verdict == Verdict.SYNTAX_ERROR


def test_a_worker_that_dies_is_replaced(judge: Judge) -> None:
    before = judge.submit(task(), GOOD).result(60)
    slow = judge.submit(task(), "import time\ndef f(x):\n    time.sleep(0.3)\n    return x * x\n")
    time.sleep(0.2)
    assert judge.pending == 1
    worker = judge._workers[0]
    assert worker is not None
    worker.process.kill()
    assert slow.result(60).verdict == before.verdict == Verdict.PASSED


def test_closing_cancels_and_leaves_no_process() -> None:
    judge = Judge(Validators(workers=2))
    marker = f"sleep 55.{os.getpid()}"
    code = f"import subprocess\ndef f(x):\n    subprocess.run({marker.split()!r})\n"
    futures = [judge.submit(task(), code) for _ in range(6)]
    time.sleep(0.5)
    judge.close()
    judge.close()
    assert all(f.done() for f in futures)
    assert judge.pending == 0
    assert not processes_with(marker.split()[1])
    with pytest.raises(RuntimeError, match="closed"):
        judge.submit(task(), GOOD)


def test_a_killed_engine_leaves_no_process() -> None:
    marker = f"56.{os.getpid()}"
    script = indented(f"""
        from codegen_batch.pipeline.validate.judge import Judge
        from codegen_batch.schemas.job import Validators
        from codegen_batch.schemas.records import Task
        task = Task("t", "", 0, entry_point="f", test="assert f(1) == 1", test_kind="asserts")
        judge = Judge(Validators(workers=1, wall_s=60))
        code = "import subprocess\\ndef f(x):\\n    subprocess.run(['sleep', '{marker}'])\\n"
        future = judge.submit(task, code)
        print("ready", flush=True)
        future.result()
        """)
    engine = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert engine.stdout is not None
    assert engine.stdout.readline() == b"ready\n"
    assert wait_until(lambda: bool(processes_with(marker, "sleep")))
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    engine.stdout.close()
    assert wait_until(lambda: not processes_with(marker, "sleep"))


def wait_until(true: Callable[[], bool], limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.02)
    return False


def test_levels_are_proved_and_ordered() -> None:
    levels = available_levels()
    assert tuple(name for name, _, _ in levels) == LEVELS
    assert levels[0][1]
    assert all(ok or why for _, ok, why in levels)


def test_a_level_below_the_job_s_is_refused() -> None:
    with pytest.raises(EnvironmentFailure, match="isolation") as caught:
        Judge(Validators(isolation="namespaces"), level="none")
    assert caught.value.exit_code == 7
