"""What confines a candidate: the levels, the view of the file system, and the last steps before its code runs.

Levels, weakest first; the strongest that the machine allows is used, never one below the job's `isolation`:

none        a separate process with resource limits; where the kernel is not Linux
process     and: no new privileges, no capabilities, a system-call filter, an ordinary user where we are root, orphans
            found and killed
namespaces  and: own process, network, IPC and mount namespaces; sees a read-only root with the interpreter and the
            system libraries alone, and a private scratch that is capped in bytes and files

Two steps at the level `namespaces`. `enter_view` is done once by a warm parent: it leaves the host's root for
the view. `confine` is done by each child that the parent forks into a PID namespace of its own (see zygote.py).
File rules belong at the end of `confine`, once nothing else needs rights.
"""

import os
import resource
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import kernel, seccomp

LEVELS = ("none", "process", "namespaces")  # weakest first
NOBODY = 65534
SCRATCH_ROOT = "/scratch"  # /tmp and /dev/shm lead there
SCRATCH = f"{SCRATCH_ROOT}/work"
SCRATCH_MB = 64
SCRATCH_INODES = 4096
MAX_PROCESSES = 128  # of one sandbox
MAX_TASKS = 256  # processes and threads of one sandbox
MAX_OPEN_FILES = 512
MAX_FILE_MB = 64
MAX_STACK_MB = 64
_ALL = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
)
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives",
    "group",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "passwd",
)
_DEVICES = ("null", "zero", "full", "random", "urandom")
_BASES = ("/mnt", "/media", "/srv", "/tmp", "/var/tmp")  # directories to build the view upon


@dataclass(frozen=True, slots=True)
class MemberLimits:
    """Limits of one process tree. Filled by worker.py from the task's and the job's limits."""

    cpu_s: float
    wall_s: float
    memory_mb: int


def environment() -> dict[str, str]:
    """All that the candidate finds in its environment; nothing of ours. Hashes and threads are fixed, so that
    verdicts repeat."""
    return {
        "HOME": SCRATCH,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
    }


def enter_view() -> None:
    """Leaves the host: afterwards this process is PID 1 of its own PID namespace, holds capabilities only in its own
    user namespace, and sees only the view. The process that called waits for it and never returns.

    Raises OSError where the kernel refuses.
    """
    privileged = os.getuid() == 0 and _may_mount()
    if not privileged:
        _new_user_namespace()
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    _build_view()
    if privileged:
        become_nobody()
        _new_user_namespace()
    inner = os.fork()
    if inner:
        kernel.die_with_parent(signal.SIGKILL)
        _, status = os.waitpid(inner, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    kernel.die_with_parent(signal.SIGKILL)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")  # a namespace would give its maker capabilities


def harden(level: str) -> None:
    """What a warm parent does once for all its children: environment, rights of programs to come, fixed limits."""
    os.environ.clear()
    os.environ.update(environment())
    megabyte = 1 << 20
    _limit(resource.RLIMIT_FSIZE, MAX_FILE_MB * megabyte)
    _limit(resource.RLIMIT_STACK, MAX_STACK_MB * megabyte)
    _limit(resource.RLIMIT_CORE, 0)
    if level != "none":
        kernel.drop_bounding_set()
        kernel.no_new_privileges()


def become_nobody() -> None:
    """Root only: becomes an ordinary user that owns nothing."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    kernel.set_dumpable()


def _may_mount() -> bool:
    """True where root may unshare its mount namespace, which is done; containers often forbid it."""
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
    except OSError:
        return False
    return True


def _new_user_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(_ALL)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _interpreter_folders() -> list[str]:
    folders = {os.path.realpath(p) for p in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)}
    folders |= {os.path.abspath(p) for p in (sys.prefix, sys.base_prefix)}  # a venv may go through a link
    return sorted(f for f in folders if not _inside(f, _SYSTEM) and not _inside(f, folders - {f}))


def _inside(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(root + "/") for root in roots)


def _build_view() -> None:
    """A small tmpfs with the interpreter, libraries and devices bound in, made this namespace's root, read-only."""
    folders = _interpreter_folders()
    base = next(b for b in _BASES if os.path.isdir(b) and not any((f + "/").startswith(b + "/") for f in folders))
    kernel.mount("view", base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    for source in [*_SYSTEM, *folders, *(f"/etc/{name}" for name in _ETC), *(f"/dev/{name}" for name in _DEVICES), "/proc"]:
        _show(source, base)
    for folder in (SCRATCH_ROOT, "/old"):
        os.mkdir(base + folder)
    os.symlink(f"{SCRATCH_ROOT}/shm", f"{base}/dev/shm")
    if not os.path.exists(f"{base}/tmp"):  # else the interpreter itself lives below /tmp
        os.symlink(SCRATCH_ROOT, f"{base}/tmp")
    for name, target in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        os.symlink(f"/proc/self/{target}", f"{base}/dev/{name}")
    _make_read_only(base)
    os.chdir(base)
    kernel.pivot_root(".", "old")
    os.chdir("/")
    kernel.umount("/old", kernel.MNT_DETACH)
    os.rmdir("/old")
    kernel.mount("view", "/", flags=kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV)


def _show(source: str, base: str) -> None:
    target = base + source
    if not os.path.exists(source):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source) and source in _SYSTEM:
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        Path(target).touch()
    kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC)


def _make_read_only(base: str) -> None:
    """Remounts all that is bound below `base`; flags that a mount already has are kept, as a user namespace must."""
    flags = {
        "nosuid": kernel.MS_NOSUID,
        "nodev": kernel.MS_NODEV,
        "noexec": kernel.MS_NOEXEC,
        "noatime": kernel.MS_NOATIME,
        "nodiratime": kernel.MS_NODIRATIME,
        "relatime": kernel.MS_RELATIME,
    }
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = {[m for m in mounts if m[4] == base][-1][0]}  # mounts that the view hides also have paths below `base`
    for number, parent, _, _, quoted, options, *_ in mounts:
        if parent not in below:
            continue
        below.add(number)
        target = quoted.encode().decode("unicode_escape")
        if not target.startswith((f"{base}/proc", f"{base}/dev/")):
            kept = sum(flags.get(option, 0) for option in options.split(","))
            kernel.mount("none", target, flags=kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kept)


def confine(level: str, limits: MemberLimits, scratch: str) -> None:
    """The child's last steps before it reads its job: namespaces, scratch, limits, rights, environment.

    At the level `namespaces` the caller has forked it into a new PID namespace already and `scratch` is unused.
    """
    os.setsid()
    if level == "namespaces":
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        size = f"size={SCRATCH_MB}m,nr_inodes={SCRATCH_INODES},mode=777"
        kernel.mount("scratch", SCRATCH_ROOT, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size)
        scratch = SCRATCH
        os.mkdir(f"{SCRATCH_ROOT}/shm")
        os.mkdir(scratch)
    elif level == "process":
        if os.getuid() == 0:
            become_nobody()
        kernel.die_with_parent(signal.SIGKILL)
    os.chdir(scratch)
    _set_limits(limits, level)
    if level != "none":
        kernel.drop_capabilities()
        seccomp.refuse_calls()
    os.environ["HOME"], os.environ["TMPDIR"] = scratch, SCRATCH_ROOT if level == "namespaces" else scratch


def _set_limits(limits: MemberLimits, level: str) -> None:
    """Kernel limits on each process; zygote.py watches the sums over the tree.

    RLIMIT_DATA counts private writable memory, which is what a program allocates; RLIMIT_AS also counts what threads
    and numeric libraries only reserve, so it is a wide backstop.
    """
    megabyte = 1 << 20
    _limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    _limit(resource.RLIMIT_CPU, int(limits.cpu_s) + 2)
    _limit(resource.RLIMIT_DATA, limits.memory_mb * megabyte)
    _limit(resource.RLIMIT_AS, (4 * limits.memory_mb + 4096) * megabyte)
    if level == "namespaces":  # elsewhere the limit would count all processes of this user
        _limit(resource.RLIMIT_NPROC, MAX_TASKS)


def _limit(kind: int, bound: int) -> None:
    _, hard = resource.getrlimit(kind)
    bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(kind, (bound, bound))
