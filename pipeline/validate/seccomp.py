"""The system-call filter of a candidate: refuses what no program under test needs and kernels have been broken through.

A classic BPF program (see seccomp(2)) for x86-64 and aarch64. Refused calls fail with EPERM, so that a library that only
probes for one goes on; clone3 fails with ENOSYS, so that libc falls back to clone, whose flags a filter can see; sockets
are local or IP, and IP leads nowhere in a network namespace of its own.
"""

import errno
import functools
import os
import socket
import struct

from . import kernel

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_X32 = 0x40000000  # the bit of x86-64's other numbering of the same calls
_CLONE_NEWTIME, _CLONE_NEWCGROUP = 0x80, 0x02000000
_NAMESPACES = (
    (kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
    | (kernel.CLONE_NEWNET | _CLONE_NEWTIME | _CLONE_NEWCGROUP)
)  # fmt: skip
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_CLONE, _CLONE3, _SOCKET = {"x86_64": 56, "aarch64": 220}, 435, {"x86_64": 41, "aarch64": 198}
_REFUSED = {  # numbers on x86-64 and aarch64
    "other processes": {
        "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
        "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    },
    "mounts and namespaces": {
        "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
        "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
        "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268), "name_to_handle_at": (303, 264),
        "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    },
    "memory that no limit counts": {"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194)},
    "wide doors into the kernel": {
        "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
        "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
        "keyctl": (250, 219),
    },
    "the machine": {
        "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
        "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
        "acct": (163, 89), "quotactl": (179, 60), "syslog": (103, 116), "settimeofday": (164, 170),
        "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161),
        "setdomainname": (171, 162), "vhangup": (153, 58),
    },
}  # fmt: skip

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|..|K, BPF_RET|K
_NUMBER_AT, _ARCH_AT, _ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data; the low half of the first argument
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def refuse_calls() -> None:
    """Installs the filter for this thread and all that it starts, for good. Does nothing on other processors.

    Raises OSError where the kernel has no filters, or no_new_privs is not set.
    """
    if program := _program(os.uname().machine):
        kernel.install_filter(program)


@functools.cache
def _program(machine: str) -> bytes:
    """struct sock_filter[]; empty for a processor whose call numbers are not known here."""
    if machine not in _AUDIT:
        return b""
    column = list(_AUDIT).index(machine)
    refused = [numbers[column] for group in _REFUSED.values() for numbers in group.values()]
    program = [
        _step(_LOAD, _ARCH_AT),
        _step(_EQUAL, _AUDIT[machine], then=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
        *_return_if(_AT_LEAST, _X32, _ERRNO | errno.EPERM),
        *_return_if(_EQUAL, _CLONE3, _ERRNO | errno.ENOSYS),
    ]
    for number in refused:
        program += _return_if(_EQUAL, number, _ERRNO | errno.EPERM)
    flags = [_step(_LOAD, _ARGUMENT_AT), *_return_if(_ANY_BIT, _NAMESPACES, _ERRNO | errno.EPERM), _step(_RETURN, _ALLOW)]
    family = [_step(_LOAD, _ARGUMENT_AT), *(s for f in _FAMILIES for s in _return_if(_EQUAL, f, _ALLOW))]
    family.append(_step(_RETURN, _ERRNO | errno.EAFNOSUPPORT))
    program += [_step(_EQUAL, _CLONE[machine], otherwise=len(flags)), *flags]
    program += [_step(_EQUAL, _SOCKET[machine], otherwise=len(family)), *family]
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def _step(code: int, operand: int, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction; a jump skips `then` instructions if it holds, else `otherwise`."""
    return struct.pack("=HBBI", code, then, otherwise, operand)


def _return_if(test: int, operand: int, value: int) -> tuple[bytes, bytes]:
    return _step(test, operand, otherwise=1), _step(_RETURN, value)
