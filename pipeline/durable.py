"""File operations that survive a crash: what is written is there whole, or not there at all. And a lock that dies with us."""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..schemas.errors import EnvironmentFailure, OutputConflict, Problem

TEMPORARY = ".tmp"  # ending of files that nobody may read
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_held_locks: set[int] = set()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns OSError into EnvironmentFailure, which names the file and the way on."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        message = "the disk is full" if full else f"cannot be read or written: {error.strerror or error}"
        hint = f"{'free some space' if full else 'mend it'}, then the same command resumes"
        raise EnvironmentFailure(Problem(str(error.filename or path), message, hint)) from error


def write_temporary(folder: Path, content: bytes) -> Path:
    """Writes a new temporary file and waits until the disk has it. On failure nothing is left."""
    path = folder / f".{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        _write_all(fd, content)
        os.fsync(fd)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    return path


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file; readers see the old content or the new, never a part."""
    temporary = write_temporary(path.parent, content)
    os.replace(temporary, path)
    sync_folder(path.parent)


def claim_name(temporary: Path, final: Path) -> bool:
    """Gives a temporary file its final name; False if the name is taken, whose file then stays as it is.

    Where the file system has no hard links, an empty file claims the name first, and a rename fills it: a crash between
    the two leaves an empty file.
    """
    try:
        os.link(temporary, final)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            os.close(os.open(final, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            return False
        os.replace(temporary, final)
    return True


def append_line(path: Path, line: str, *, sync: bool) -> None:
    """Appends a line in one write; with `sync`, waits until the disk has it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        _write_all(fd, line.encode() + b"\n")
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Waits until the disk has the folder's names."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_temporaries(folder: Path) -> None:
    """Removes what dead writers left. Only for who holds the folder's lock."""
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink()


def _write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


# The lock


def take_lock(folder: Path) -> int:
    """Locks a folder for this process until `drop_lock` or death.

    Returns:
        The lock's file descriptor.

    Raises:
        OutputConflict: another process holds it, with its number and machine.
    """
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0)
    except BlockingIOError:
        holder = os.pread(lock, 1000, 0).decode(errors="replace")
        os.close(lock)
        message = f"another process writes here: {holder or 'it has not said which'}"
        raise OutputConflict(Problem(str(folder), message, "wait for it, or choose another --output")) from None
    except OSError:
        os.close(lock)
        raise
    _held_locks.add(lock)
    return lock


def holds_lock(lock: int) -> bool:
    """False once dropped, and in a forked child."""
    return lock in _held_locks


def drop_lock(lock: int) -> None:
    """Lets another process take the lock."""
    _held_locks.discard(lock)
    os.close(lock)


def _close_inherited_locks() -> None:
    """A forked child shares its parent's lock, and would keep the folder locked after the parent's death."""
    while _held_locks:
        os.close(_held_locks.pop())


os.register_at_fork(after_in_child=_close_inherited_locks)
