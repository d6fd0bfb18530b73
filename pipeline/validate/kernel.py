"""Linux system calls that Python 3.11 does not offer, through ctypes. Each raises OSError with the call's name."""

import ctypes
import functools
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_RELATIME = 1 << 21
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63  # the call says EINVAL past the kernel's own last


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Leaves the namespaces in `flags`; a new PID namespace begins with the next child."""
    _check(_libc().unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    """Joins the namespace that `fd` refers to; for PID namespaces this says where the next child goes."""
    _check(_libc().setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mounts as mount(2) does."""
    arguments = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None)
    _check(_libc().mount(*arguments), f"mount {target}")


def umount(target: str, flags: int = 0) -> None:
    """Unmounts as umount2(2) does."""
    _check(_libc().umount2(target.encode(), ctypes.c_int(flags)), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Makes `new` the root of this mount namespace and puts the old root at `old`."""
    number = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}[os.uname().machine]
    _check(_libc().syscall(ctypes.c_long(number), new.encode(), old.encode()), "pivot_root")


def _prctl(option: int, value: int, what: str) -> None:
    arguments = [ctypes.c_ulong(v) for v in (value, 0, 0, 0)]
    _check(_libc().prctl(ctypes.c_int(option), *arguments), what)


def die_with_parent(signal_number: int) -> None:
    """The kernel sends this signal when the parent's thread ends. Cleared by a change of user: set it afterwards."""
    _prctl(_PR_SET_PDEATHSIG, signal_number, "PR_SET_PDEATHSIG")


def set_dumpable() -> None:
    """After a change of user: own /proc/self again, to write the maps of a user namespace."""
    _prctl(_PR_SET_DUMPABLE, 1, "PR_SET_DUMPABLE")


def become_subreaper() -> None:
    """Orphaned descendants become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def no_new_privileges() -> None:
    """No program run from here on gains rights: set-user-id bits and file capabilities are ignored."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


def drop_bounding_set() -> None:
    """No program run from here on can hold a capability; those of this process stay."""
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc().prctl(ctypes.c_int(_PR_CAPBSET_DROP), ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break


def drop_capabilities() -> None:
    """Empties the effective, permitted and inheritable sets of this thread."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    _check(_libc().capset(header, sets), "capset")


def install_filter(program: bytes) -> None:
    """Filters the system calls of this thread and all that it starts, by a BPF program: struct sock_filter[]."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    held = Program(len(program) // 8, program)
    _check(
        _libc().prctl(ctypes.c_int(_PR_SET_SECCOMP), ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(held)),
        "PR_SET_SECCOMP",
    )
