"""From what became of the children to a verdict. Pure."""

import signal
from dataclasses import dataclass
from typing import Any

from ...schemas.records import Verdict
from .runner import Outcome
from .sandbox import MemberLimits

_REASONS = {
    "cpu": (Verdict.TIMEOUT_CPU, "over its CPU time"),
    "wall": (Verdict.TIMEOUT_WALL, "over its wall time"),
    "memory": (Verdict.OUT_OF_MEMORY, "over its memory"),
    "processes": (Verdict.SANDBOX_VIOLATION, "too many processes"),
    "output": (Verdict.OUTPUT_LIMIT, "too much output"),
}
_SIMPLE = {
    "assert": Verdict.WRONG_ANSWER,
    "exited": Verdict.EXITED_EARLY,
    "too_large": Verdict.OUTPUT_LIMIT,
    "violation": Verdict.SANDBOX_VIOLATION,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict and what it rests on."""

    verdict: Verdict
    detail: str
    run: int | None = None
    passed: int | None = None
    trace: str = ""


def apart(outcome: Outcome, limits: MemberLimits) -> Finding | None:
    """The verdict of a tester and a candidate in two processes; None if the test needs to run beside."""
    if finding := _unstarted(outcome, candidate=1):
        return finding
    report = next((r for r in outcome.reports[0] if isinstance(r, dict) and "outcome" in r), None)
    if report is None:
        return _by_reason(outcome) or _tester_died(outcome)
    if report["outcome"] == "beside":
        return None
    if finding := _by_reason(outcome):
        return finding
    run, passed, calls = int(report["run"]), int(report["passed"]), int(report["calls"])
    if report["outcome"] == "lost":
        return _died(outcome.members[1], limits, run, passed)
    if report["outcome"] == "done" and not calls:
        return Finding(Verdict.NO_TESTS, "the test never calls the candidate", run, passed)
    if report["outcome"] == "test_raised" and not calls:
        return Finding(Verdict.INFRA_ERROR, f"the test failed before it called the candidate: {report['detail']}", run, passed)
    return _reported(report, run, passed)


def beside(outcome: Outcome, limits: MemberLimits, token: str) -> Finding:
    """The verdict of a test in the candidate's process. A report counts only with the token."""
    if finding := _unstarted(outcome, candidate=0):
        return finding
    if finding := _by_reason(outcome):
        return finding
    reports = [r for r in outcome.reports[0] if isinstance(r, dict) and r.get("token") == token]
    if not reports:
        return _died(outcome.members[0], limits, None, None)
    report = reports[-1]
    try:
        return _reported(report, int(report["run"]), int(report["passed"]))
    except (KeyError, TypeError, ValueError) as e:
        return Finding(Verdict.SANDBOX_VIOLATION, f"a forged report: {e}")


def _unstarted(outcome: Outcome, candidate: int) -> Finding | None:
    """Not the candidate's fault: it was never reached."""
    if outcome.reason == "failed":
        return Finding(Verdict.INFRA_ERROR, f"no child could be started: {outcome.detail}")
    if not any(isinstance(r, dict) and "start_cpu_ms" in r for r in outcome.reports[candidate]):
        reports = [r for frames in outcome.reports for r in frames if isinstance(r, dict)]
        why = next((r["setup_failed"] for r in reports if "setup_failed" in r), f"the group ended with {outcome.reason}")
        return Finding(Verdict.INFRA_ERROR, f"the child could not be confined: {why}")
    return None


def _by_reason(outcome: Outcome) -> Finding | None:
    if outcome.reason not in _REASONS:
        return None
    verdict, detail = _REASONS[outcome.reason]
    return Finding(verdict, detail)


def _tester_died(outcome: Outcome) -> Finding:
    """The tester reports unless it is killed; what it chewed on came from the candidate."""
    status = outcome.members[0]["status"]
    return Finding(Verdict.RUNTIME_ERROR, f"the test ended with {_ending(status)} while it handled the candidate's results")


def _died(member: dict[str, Any], limits: MemberLimits, run: int | None, passed: int | None) -> Finding:
    """The candidate's process ended, or cut itself off, before the test did."""
    status = member["status"]
    if status is not None and status >= 0:
        return Finding(Verdict.EXITED_EARLY, f"exit status {status} before the test ended", run, passed)
    if member["cpu_ms"] >= limits.cpu_s * 1000:
        return Finding(Verdict.TIMEOUT_CPU, "over its CPU time", run, passed)
    if status is not None and status != -signal.SIGKILL:
        return Finding(Verdict.RUNTIME_ERROR, f"ended with {_ending(status)}", run, passed)
    if member["killed"]:
        return Finding(Verdict.SANDBOX_VIOLATION, "cut its connection to the judge", run, passed)
    return Finding(Verdict.OUT_OF_MEMORY, "killed by the kernel", run, passed)


def _ending(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exit status {status}"
    return signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"


def _reported(report: dict[str, Any], run: int, passed: int) -> Finding:
    kind, detail = report["outcome"], str(report.get("detail", ""))
    if kind in _SIMPLE:
        return Finding(_SIMPLE[kind], detail, run, passed)
    if kind == "done" and run:
        return Finding(Verdict.PASSED, "", run, passed)
    if kind == "done":
        return Finding(Verdict.WRONG_ANSWER, "the test ended without reaching an assertion", run, passed)
    if kind == "raised":
        verdict = Verdict.OUT_OF_MEMORY if "MemoryError" in report["bases"] else Verdict.RUNTIME_ERROR
        return Finding(verdict, f"{report['type']}: {report['text']}", run, passed, str(report["trace"]))
    return Finding(Verdict.WRONG_ANSWER, f"the test could not use the result: {detail}", run, passed)
