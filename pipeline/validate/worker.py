"""A judge's worker: a process of its own that extracts, checks syntax, and has the tests run by its warm parent.

Started by judge.py with `python -s -P` (no user site, no working directory on the path) and a scrubbed environment;
`-I` would also ignore the fixed hash seed. Trusted: candidate code is data here.
"""

import json
import os
import secrets
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from ...schemas.records import CodeFacts, Judgement, Task, Verdict
from . import verdict
from .extract import extract
from .prepare import packed, prepare
from .runner import Abandoned, Outcome, Role, WarmParent, WarmParentDied
from .sandbox import MemberLimits
from .syntax import GRAMMARS, compile_error, compiled, facts

NICE = 2  # generation goes first, but judging goes on
MESSAGE_TAIL = 2000  # characters of details and output in a row
_KINDS = ("check", "asserts")
_TESTER_EXTRA_MB = 256  # the tester holds decoded results beside its own data


def main() -> NoReturn:
    """`argv[1]`: descriptor of the engine's socket, `argv[2]`: level, `argv[3]`: the job's `validators` as JSON."""
    fd, level, settings = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    os.nice(NICE)
    status = 1
    with suppress(EOFError, OSError, Abandoned):  # the engine is gone: nobody is left to tell
        status = _serve(Connection(fd), fd, level, settings)
    os._exit(status)


def _serve(connection: Connection, fd: int, level: str, settings: dict[str, Any]) -> int:
    """Judges what comes until the warm parent dies. Returns an exit status. Raises EOFError, OSError, Abandoned."""
    try:
        warm = WarmParent(level, fd)
    except OSError as e:
        connection.send(("failed", str(e)))
        return 1
    try:
        worker = Worker(warm, level, settings)
        fault = worker.prove()
        connection.send(("failed", fault) if fault else ("ready", level))
        while not fault:
            task, completion = connection.recv()
            connection.send(worker.judge(task, completion))
    except WarmParentDied:
        pass
    finally:
        warm.close()
    return 1


class Worker:
    """Judges one sample at a time."""

    def __init__(self, warm: WarmParent, level: str, settings: dict[str, Any]) -> None:
        self.warm, self.level, self.settings = warm, level, settings

    def prove(self) -> str | None:
        """Judges a sample that must pass, and so loads what the first would wait for. Returns what is wrong if it does not."""
        task = Task("proof", "", 0, entry_point="f", test="assert f() == 1", test_kind="asserts")
        judgement = self.judge(task, "def f():\n    return 1\n", force_tests=True)
        return None if judgement.verdict == Verdict.PASSED else f"{judgement.verdict}: {judgement.verdict_detail}"

    def judge(self, task: Task, completion: str, force_tests: bool = False) -> Judgement:
        """Never raises for what task or completion hold. Raises WarmParentDied, Abandoned."""
        found = extract(completion, task)
        if found.code is None:
            nothing = CodeFacts(extract_method=found.method, language=task.language)
            return Judgement(nothing, Verdict.NO_CODE, "no code in the completion")
        if self.settings["syntax"] or task.language != "python":
            held = replace(facts(found.code, task.language), extract_method=found.method)
        else:
            error = compile_error(found.code)
            held = CodeFacts(found.code, found.method, task.language, syntax_ok=error is None, syntax_error=error)
        if held.syntax_error is not None:
            return Judgement(held, Verdict.SYNTAX_ERROR, held.syntax_error)
        if not (self.settings["tests"] or force_tests) or task.test_kind is None:
            return Judgement(held, Verdict.NO_TESTS, "tests are off" if task.test_kind else "the task has no tests")
        if task.language not in GRAMMARS:
            return Judgement(held, Verdict.INFRA_ERROR, f"language {task.language!r} is not supported yet")
        if task.test_kind not in _KINDS:
            return Judgement(held, Verdict.INFRA_ERROR, f"test_kind {task.test_kind!r} is not supported yet")
        return self._test(task, held)

    def _test(self, task: Task, held: CodeFacts) -> Judgement:
        prepared = prepare(task)
        if isinstance(prepared, verdict.Finding):
            return Judgement(held, prepared.verdict, prepared.detail)
        limits = MemberLimits(
            task.limits.cpu_s or self.settings["cpu_s"],
            task.limits.wall_s or self.settings["wall_s"],
            task.limits.memory_mb or self.settings["memory_mb"],
        )
        program = {"code": held.code, "program": packed(compiled(held.code or ""))}
        if not prepared.needs.beside:
            roomy = replace(limits, memory_mb=limits.memory_mb + _TESTER_EXTRA_MB)
            roles = [Role("tester", roomy, (prepared.apart,)), Role("candidate", limits, (program,))]
            outcome = self.warm.run(roles, connected=True)
            if finding := verdict.apart(outcome, limits):
                return self._judgement(held, finding, outcome, "apart")
        token = secrets.token_hex(16)
        outcome = self.warm.run([Role("beside", limits, (prepared.beside | program, {"token": token}))], connected=False)
        return self._judgement(held, verdict.beside(outcome, limits, token), outcome, "beside")

    def _judgement(self, held: CodeFacts, finding: verdict.Finding, outcome: Outcome, trust: str) -> Judgement:
        candidate = outcome.members[-1] if outcome.members else {"cpu_ms": None, "peak_mb": None}
        starts = [r["start_cpu_ms"] for r in (outcome.reports or [[]])[-1] if isinstance(r, dict) and "start_cpu_ms" in r]
        cpu_ms = candidate["cpu_ms"]
        return Judgement(
            facts=held,
            verdict=finding.verdict,
            verdict_detail=finding.detail[:MESSAGE_TAIL],
            trust=trust,
            tests_run=finding.run,
            tests_passed=finding.passed,
            cpu_ms=max(0.0, cpu_ms - float(starts[0])) if cpu_ms is not None and starts else cpu_ms,
            wall_ms=outcome.wall_ms,
            peak_memory_mb=candidate["peak_mb"],
            stdout_tail=outcome.stdout.decode("utf-8", "replace")[-MESSAGE_TAIL:],
            stderr_tail=(outcome.stderr.decode("utf-8", "replace") or finding.trace)[-MESSAGE_TAIL:],
            isolation=self.level,
        )
