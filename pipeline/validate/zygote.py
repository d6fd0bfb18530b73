"""The warm parent: a small, pre-imported process that forks an isolated child for each candidate and watches over it.

It never sees code or tests: children read their jobs from sockets of their own, so that nothing of an earlier or a
neighbouring job is in the memory that a child inherits. It is PID 1 of its PID namespace at the level `namespaces`;
its death is the death of all that it forked.

The control socket (SOCK_SEQPACKET) carries one request at a time: a JSON object and four descriptors a member.
`{"members": [{"role": ..., "limits": [cpu_s, wall_s, memory_mb]}, ...]}` starts a group; the first member is the
driver, whose end ends the group. Any further packet stops it. The answer is `{"reason": ..., "members": [...]}`,
sent when no process of the group is left.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from . import child, kernel, sandbox, tester
from .sandbox import MemberLimits

WATCH_S = 0.05  # between looks at CPU time, memory and the number of processes
GRACE_S = 0.5  # for the driver to report after another member has ended
FDS_A_MEMBER = 4  # job, call channel, standard output, standard error
_ROLES = {"candidate": child.serve, "tester": tester.run_apart, "beside": tester.run_beside}
_TICKS = os.sysconf("SC_CLK_TCK")
_COMMON = (  # what candidates import most; each costs every fork a little
    *("array", "bisect", "cmath", "collections.abc", "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum"),
    *("fractions", "functools", "hashlib", "heapq", "itertools", "json", "math", "operator", "random", "re"),
    *("statistics", "string", "threading", "typing"),
)


@dataclass(slots=True)
class Member:
    """One child of a group, as the warm parent sees it."""

    pid: int
    limits: MemberLimits
    status: int | None = None  # as os.waitstatus_to_exitcode says; None while it lives
    cpu_ms: float = 0.0
    peak_mb: float = 0.0
    killed: bool = False  # by us, while it lived

    def report(self) -> dict[str, Any]:
        return {"status": self.status, "cpu_ms": self.cpu_ms, "peak_mb": self.peak_mb, "killed": self.killed}


def main(control: socket.socket, level: str, scratch: str) -> NoReturn:
    """Runs in a process of its own until the control socket closes. Says `{"ready": true}` or `{"failed": why}` first.

    `scratch` is a folder for the children's own below the level `namespaces`.
    """
    try:
        if level != "none":
            kernel.die_with_parent(signal.SIGKILL)
            kernel.become_subreaper()
        if level == "namespaces":
            sandbox.enter_view()
        elif level == "process" and os.getuid() == 0:
            _require_readable_interpreter()
    except (OSError, ValueError) as e:
        control.send(json.dumps({"failed": str(e)}).encode())
        os._exit(1)
    sandbox.harden(level)
    for name in _COMMON:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    Zygote(control, level, scratch).serve()


def _require_readable_interpreter() -> None:
    """At the level `process` root's candidates run as nobody, who must be able to import."""
    for path in [Path(sys.executable).resolve(), Path(os.__file__)]:
        for part in [path, *path.parents]:
            if not part.stat().st_mode & (0o001 if part.is_dir() else 0o004):
                raise ValueError(f"{part} is closed to ordinary users, and a candidate must not run as root")


class Zygote:
    """The loop of the warm parent. Single-threaded: children are forked from a quiet process."""

    def __init__(self, control: socket.socket, level: str, scratch: str) -> None:
        self.control = control
        self.scratch = scratch
        self.level = level
        self.own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if level == "namespaces" else -1
        self.base_mb = _resident_mb(os.getpid())
        self.wake_r, self.wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)

    def serve(self) -> NoReturn:
        self.control.send(b'{"ready": true}')
        while True:
            packet, fds, _, _ = socket.recv_fds(self.control, 65536, 2 * FDS_A_MEMBER)
            if not packet:
                os._exit(0)
            if fds:  # else a stop that came too late
                self.control.send(json.dumps(self.run(json.loads(packet), fds)).encode())

    def run(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Forks the members, waits for the driver's end or a limit, and leaves nothing behind."""
        scratch = "" if self.level == "namespaces" else tempfile.mkdtemp(dir=self.scratch)
        if self.level == "process" and os.getuid() == 0:
            os.chown(scratch, sandbox.NOBODY, sandbox.NOBODY)
        members: list[Member] = []
        try:
            for index, wanted in enumerate(request["members"]):
                own = fds[index * FDS_A_MEMBER : (index + 1) * FDS_A_MEMBER]
                members.append(self.spawn(wanted["role"], MemberLimits(*wanted["limits"]), own, scratch))
        except OSError as e:
            self.kill_all(members)
            return {"reason": "failed", "detail": str(e), "members": []}
        finally:
            for fd in fds:
                os.close(fd)
        reason = self.watch(members)
        self.kill_all(members)
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)
        return {"reason": reason, "members": [m.report() for m in members]}

    def spawn(self, role: str, limits: MemberLimits, fds: list[int], scratch: str) -> Member:
        """Forks one member. In the child this never returns."""
        if self.level == "namespaces":
            kernel.unshare(kernel.CLONE_NEWPID)
        pid = os.fork()
        if pid:
            if self.level == "namespaces":
                kernel.setns(self.own_pid_namespace, kernel.CLONE_NEWPID)
            return Member(pid, limits)
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep_only(fds)
            sandbox.confine(self.level, limits, scratch)
            child.start(_ROLES[role])
        except BaseException as e:
            child.report_setup_failure(e)
        finally:
            os._exit(child.SETUP_FAILED)

    def watch(self, members: list[Member]) -> str:
        """Returns why the group ends: exit, stopped, cpu, wall, memory or processes."""
        start = time.monotonic()
        poller = select.poll()
        poller.register(self.wake_r, select.POLLIN)
        poller.register(self.control, select.POLLIN)
        next_look, driver_must_end = start + WATCH_S, float("inf")
        while True:
            wait_s = max(0.0, min(next_look, driver_must_end) - time.monotonic())
            events = poller.poll(wait_s * 1000)
            if any(fd == self.control.fileno() for fd, _ in events):
                self.control.recv(65536)
                return "stopped"
            self.reap(members)
            if members[0].status is not None or time.monotonic() > driver_must_end:
                return "exit"
            if driver_must_end == float("inf") and any(m.status is not None for m in members):
                driver_must_end = time.monotonic() + GRACE_S
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + WATCH_S
                if reason := next(filter(None, (self.over_limit(m, time.monotonic() - start) for m in members)), None):
                    return reason

    def over_limit(self, member: Member, wall_s: float) -> str | None:
        """Looks at the whole tree below a member."""
        if member.status is not None:
            return None
        pids = tree(member.pid)
        if sum(map(_cpu_s, pids)) > member.limits.cpu_s:
            return "cpu"
        if sum(max(0.0, _resident_mb(pid) - self.base_mb) for pid in pids) > member.limits.memory_mb:
            return "memory"
        if len(pids) > sandbox.MAX_PROCESSES:  # threads are not among these
            return "processes"
        return "wall" if wall_s - _waited_s(member.pid) > member.limits.wall_s else None

    def reap(self, members: list[Member]) -> None:
        """Collects every ended child: members, and at the level `process` their orphans."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_r, 4096)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                for member in members:
                    if member.pid == pid:
                        member.status = os.waitstatus_to_exitcode(status)
                        member.cpu_ms = (usage.ru_utime + usage.ru_stime) * 1000
                        member.peak_mb = usage.ru_maxrss / 1024

    def kill_all(self, members: list[Member]) -> None:
        """Ends all that lives below this process and waits for it; the kernel does so for a whole PID namespace."""
        while True:
            alive = [m.pid for m in members if m.status is None] if self.level == "namespaces" else tree(os.getpid())[1:]
            if not alive:
                return
            for member in members:
                member.killed = member.killed or member.status is None
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            select.select([self.wake_r], [], [], 0.01)
            self.reap(members)


def _keep_only(fds: list[int]) -> None:
    """Moves the member's descriptors to their places (see child.py) and closes all others."""
    job, call, stdout, stderr = fds
    os.dup2(job, child.JOB_FD, inheritable=False)
    os.dup2(call, child.CALL_FD, inheritable=False)
    for target, fd in enumerate((os.open("/dev/null", os.O_RDWR), stdout, stderr)):
        os.dup2(fd, target)
    os.closerange(3, child.JOB_FD)


def tree(root: int) -> list[int]:
    """The process and all its descendants that live now."""
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and of its children that it has waited for; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def _waited_s(pid: int) -> float:
    """Seconds that a process was ready and had no processor: a loaded machine must not change a verdict."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _resident_mb(pid: int) -> float:
    """Memory that a process holds and that is not a file's; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))) / 1024
