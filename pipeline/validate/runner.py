"""The worker's handle on its warm parent: runs one group of children and gathers what they say and print."""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from . import kernel, zygote
from .sandbox import MemberLimits

OUTPUT_CAP = 4 << 20  # bytes on one stream; more ends the run
TAIL = 4096  # bytes kept of each stream
REPORT_CAP = 1 << 20  # bytes that a child may report


class WarmParentDied(Exception):
    """The warm parent is gone; its worker must end, and another will take over."""


class Abandoned(Exception):
    """The process that asked for the judgement is gone."""


@dataclass(frozen=True, slots=True)
class Role:
    """One child to start: what it is and the frames it is sent."""

    name: str  # tester, candidate, beside
    limits: MemberLimits
    frames: tuple[dict[str, Any], ...]


@dataclass(slots=True)
class Outcome:
    """What became of a group. `reason` is zygote.watch's, or `output`; `members` are its reports in the order of roles."""

    reason: str = ""
    detail: str = ""
    members: list[dict[str, Any]] = field(default_factory=list)
    reports: list[list[Any]] = field(default_factory=list)  # frames received, a list for each role
    stdout: bytes = b""
    stderr: bytes = b""
    wall_ms: float = 0.0


class _Stream:
    """The last bytes of a pipe or socket, and how many there were."""

    def __init__(self, fd: int, keep: int) -> None:
        self.fd, self.keep, self.size, self.data = fd, keep, 0, bytearray()

    def drain(self) -> bool:
        """Reads what is there; False at the end of the stream."""
        while True:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return True
            except ConnectionResetError:  # said once where a child ended with frames unread; its own data follows
                continue
            if not data:
                return False
            self.size += len(data)
            self.data += data
            if len(self.data) > 2 * self.keep:
                del self.data[: -self.keep]
            if self.size > OUTPUT_CAP:
                return True

    def tail(self) -> bytes:
        return bytes(self.data[-self.keep :])


class WarmParent:
    """Starts a warm parent by fork: make it first, while this process is small and single-threaded.

    `lifeline` is a descriptor that becomes readable or closes when the engine is gone. Raises OSError where the level
    is refused.
    """

    def __init__(self, level: str, lifeline: int) -> None:
        self.lifeline = lifeline
        self.scratch = "" if level == "namespaces" else tempfile.mkdtemp(prefix="codegen-batch-")
        if self.scratch:
            os.chmod(self.scratch, 0o711)
        if level == "process":
            kernel.become_subreaper()
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.closerange(3, other.fileno())
                os.closerange(other.fileno() + 1, 65536)
                zygote.main(other, level, self.scratch)
            finally:
                os._exit(1)
        other.close()
        greeting = json.loads(self.control.recv(65536) or b'{"failed": "the warm parent died"}')
        if "failed" in greeting:
            self.close()
            raise OSError(greeting["failed"])

    def close(self) -> None:
        """Ends the warm parent and all below it; returns when they are gone."""
        self.control.close()
        os.waitpid(self.pid, 0)
        while orphans := zygote.tree(os.getpid())[1:]:  # of a warm parent that a candidate killed
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def run(self, roles: list[Role], connected: bool) -> Outcome:
        """Runs the roles together until the first ends; `connected` gives them a call channel to each other.

        Raises WarmParentDied, Abandoned.
        """
        with contextlib.ExitStack() as stack:
            jobs, theirs, streams = self._descriptors(stack, roles, connected)
            request = {"members": [{"role": r.name, "limits": _limits(r.limits)} for r in roles]}
            try:
                socket.send_fds(self.control, [json.dumps(request).encode()], theirs)
            except OSError as e:
                raise WarmParentDied(str(e)) from e
            finally:
                for fd in theirs:
                    os.close(fd)
            start = time.monotonic()
            for job, role in zip(jobs, roles, strict=True):
                with contextlib.suppress(OSError):  # a child that could not start is reported by the warm parent
                    for frame in role.frames:
                        data = json.dumps(frame).encode()
                        job.sendall(len(data).to_bytes(4, "big") + data)
                job.setblocking(False)
            return self._gather(streams, len(roles), start)

    def _descriptors(
        self, stack: contextlib.ExitStack, roles: list[Role], connected: bool
    ) -> tuple[list[socket.socket], list[int], list[_Stream]]:
        """Our ends of the job sockets, the children's descriptors in the warm parent's order, and what we read: the job
        sockets, then standard output and standard error of the last role (the candidate's)."""
        jobs: list[socket.socket] = []
        theirs: list[int] = []
        streams: list[_Stream] = []
        calls = [s.detach() for s in socket.socketpair()]
        if not connected:
            os.close(calls.pop())
        for index in range(len(roles)):
            ours, child = socket.socketpair()
            jobs.append(stack.enter_context(ours))
            streams.append(_Stream(ours.fileno(), REPORT_CAP))
            theirs += [child.detach(), calls[index]]
            if index < len(roles) - 1:
                theirs += [os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) for _ in range(2)]
        for _ in range(2):
            read, write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(read, False)
            stack.callback(os.close, read)
            streams.append(_Stream(read, TAIL))
            theirs.append(write)
        return jobs, theirs, streams

    def _gather(self, streams: list[_Stream], roles: int, start: float) -> Outcome:
        poller = select.poll()
        by_fd = {stream.fd: stream for stream in streams}
        for fd in [*by_fd, self.control.fileno(), self.lifeline]:
            poller.register(fd, select.POLLIN)
        outcome = Outcome()
        while not outcome.reason or not outcome.members:
            ready = [fd for fd, _ in poller.poll(1000)]
            if self.lifeline in ready and _closed(self.lifeline):
                raise Abandoned
            for fd in ready:
                stream = by_fd.get(fd)
                if stream and not stream.drain():
                    poller.unregister(fd)
                if stream and stream.size > OUTPUT_CAP and not outcome.reason:
                    outcome.reason = "output"
                    poller.unregister(fd)
                    self.control.send(b"{}")
            if self.control.fileno() in ready:
                answer = json.loads(self.control.recv(65536) or b"null")
                if answer is None:
                    raise WarmParentDied("closed its control socket")
                outcome.wall_ms = (time.monotonic() - start) * 1000
                outcome.reason = outcome.reason or answer["reason"]
                outcome.members, outcome.detail = answer["members"], answer.get("detail", "")
                if answer["reason"] == "failed":
                    return outcome
        for stream in streams:
            stream.drain()
            if stream.size > OUTPUT_CAP:
                outcome.reason = "output"
        outcome.reports = [_frames(stream.tail()) for stream in streams[:roles]]
        outcome.stdout, outcome.stderr = streams[-2].tail(), streams[-1].tail()
        return outcome


def _limits(limits: MemberLimits) -> list[float]:
    return [limits.cpu_s, limits.wall_s, limits.memory_mb]


def _closed(fd: int) -> bool:
    """True at the end of the engine's socket; more requests may wait there too."""
    with socket.socket(fileno=os.dup(fd)) as peek:
        try:
            return not peek.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


def _frames(data: bytes) -> list[Any]:
    """Whole frames; what follows a broken one is dropped."""
    frames: list[Any] = []
    while len(data) >= 4:
        size = int.from_bytes(data[:4], "big")
        if len(data) < 4 + size:
            break
        try:
            frames.append(json.loads(data[4 : 4 + size]))
        except (ValueError, RecursionError):
            break
        data = data[4 + size :]
    return frames
