"""A run's folder: who it belongs to, which rows it has, and how rows get into it exactly once.

    OUT/run.json             the resolved job, fingerprint, identity, versions, host; written once
    OUT/state.json           how many rows are expected (the run is finished when it has them), and the shards' digests
    OUT/results/part-*.parquet   immutable parts; corrupt/ has those that were damaged
    OUT/manifest.jsonl       one line a part; an index that is made again from the parts where it lacks any
    OUT/metrics.parquet
    OUT/log.jsonl
    OUT/.lock                held by the process that writes

A commit is a temporary file, fsync, link() to a free part name, fsync of the folder, and the manifest's line. A crash
before the link loses work, never rows; after it, the part counts. Nothing else makes a row count.
"""

import hashlib
import json
import logging
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..schemas.errors import EnvironmentFailure, OutputConflict, Problem, UsageError
from ..schemas.records import Json, Metric, Result
from .durable import append_line, disk_errors, drop_lock, holds_lock, remove_temporaries, replace_file, take_lock
from .parts import (
    Key,
    KeySet,
    Part,
    encode_metrics,
    encode_results,
    part_number,
    part_paths,
    read_manifest,
    read_metrics,
    recover_parts,
    write_part,
)

RUN_KEYS = ("job", "fingerprint", "identity", "versions")
_ELSEWHERE = "choose another --output, or remove the folder"


def fingerprint(parts: Mapping[str, Any]) -> str:
    """32 hex characters of the SHA-256 of `parts` as canonical JSON: neither the order of keys nor tuple or list matter."""
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class RunInfo:
    """What a run's folder says about itself, without its lock."""

    path: Path
    job: Json
    fingerprint: str
    identity: Json
    versions: Json
    parts: tuple[Path, ...]
    rows: int
    expected_rows: int | None  # None: the run has not counted its tasks yet

    @property
    def finished(self) -> bool:
        return self.expected_rows is not None and self.rows >= self.expected_rows


class RunFolder:
    """A run's folder, held by this process. Made by `open`; a context manager, which lets go of the lock.

    One thread commits; `log` may be called from any. `warnings` has what was amiss when the folder was opened.
    """

    def __init__(self, path: Path, fingerprint: str, lock: int, parts: Sequence[Part], warnings: Sequence[Problem]) -> None:
        self.path = path
        self.fingerprint = fingerprint
        self.warnings = tuple(warnings)
        self._lock = lock
        self._parts = [path / "results" / part.part for part in parts]
        self._committed = KeySet(key for part in parts for key in part.each_key())
        self._broken = False

    @classmethod
    def open(
        cls, path: str | Path, *, job: Json, fingerprint: str, identity: Mapping[str, Any], versions: Mapping[str, Any]
    ) -> Self:
        """Opens a new or an earlier run's folder, checks all of its parts, and mends what a crash left.

        Args:
            job: the resolved job; kept as it was at the first opening.
            fingerprint: of `identity`; rows of another fingerprint are never mixed with these.
            identity: what can change the output; kept to show the difference when a resume is refused.
            versions: of this package and of those it uses; informative.

        Raises:
            OutputConflict: the folder belongs to another run, or another process holds it.
            EnvironmentFailure: the folder cannot be written.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise OutputConflict(Problem(str(path), "is a file, not a run's folder", "choose another --output"))
        with disk_errors(path):
            (path / "results").mkdir(parents=True, exist_ok=True)
            lock = take_lock(path)
            try:
                _claim(path, {"job": job, "fingerprint": fingerprint, "identity": dict(identity), "versions": dict(versions)})
                for folder in (path, path / "results"):
                    remove_temporaries(folder)
                parts, warnings = recover_parts(path / "results", path / "manifest.jsonl", fingerprint)
            except BaseException:
                drop_lock(lock)
                raise
        run = cls(path, fingerprint, lock, parts, warnings)
        run.log("opened", rows=len(run._committed), job=job, versions=dict(versions), warnings=[str(w) for w in warnings])
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the lock. Commits are refused from then on."""
        if holds_lock(self._lock):
            drop_lock(self._lock)
        self._broken = True

    def committed(self) -> KeySet:
        """The keys (task_id, sample_index) of all committed rows. Grows with each commit; not to be changed."""
        return self._committed

    def results(self) -> list[Path]:
        """The committed parts, by number."""
        return list(self._parts)

    def commit(self, rows: Sequence[Result]) -> Path | None:
        """Commits rows as one part, all or none; rows whose key is committed already are dropped.

        Returns:
            The part; None if no row was left.

        Raises:
            EnvironmentFailure: the part could not be written. Then and after any other failure in here this object takes
                no more commits: whether the rows are in is only known when the folder is opened again.
        """
        if self._broken or not holds_lock(self._lock):
            raise EnvironmentFailure(
                Problem(str(self.path), "takes no more commits: closed, or after a failure", "open it again")
            )
        fresh: dict[Key, Result] = {}
        for row in rows:
            assert row.judgement or row.error, "a row is judged or in error"
            key = row.task_id, row.sample_index
            if key not in self._committed:
                fresh.setdefault(key, row)
        if dropped := len(rows) - len(fresh):
            self.log("duplicate_rows_dropped", rows=dropped)
        if not fresh:
            return None
        keys, content = list(fresh), encode_results(list(fresh.values()), self.fingerprint)
        self._broken = True
        with disk_errors(self.path):
            number = part_number(self._parts[-1]) + 1 if self._parts else 0
            path = write_part(self.path / "results", content, number)
            append_line(self.path / "manifest.jsonl", Part.of(path.name, content, keys).line, sync=True)
        self._parts.append(path)
        self._committed.update(keys)
        self._broken = False
        return path

    def metrics(self) -> list[Metric] | None:
        """The metrics that are there; None if there are none, or they are damaged."""
        return read_metrics(self.path / "metrics.parquet")

    def write_metrics(self, metrics: Sequence[Metric]) -> None:
        """Replaces metrics.parquet at once. Raises EnvironmentFailure."""
        with disk_errors(self.path):
            replace_file(self.path / "metrics.parquet", encode_metrics(metrics))

    def hold_to(self, shards: Mapping[str, str]) -> None:
        """Keeps the digests (name: SHA-256) of the task shards. A later invocation may add shards; one that changed or is
        gone would leave rows of other tasks among the new ones.

        Raises:
            OutputConflict: a shard of an earlier invocation is not among these.
            EnvironmentFailure: the folder cannot be written.
        """
        with disk_errors(self.path):
            state = _read_json(self.path / "state.json", []) or {}
            now = set(shards.values())
            lost = [name for name, digest in state.get("shards", {}).items() if digest not in now]
            if lost:
                message = "was a task shard of this run, and has changed or is not among the job's shards any more"
                raise OutputConflict(
                    *(Problem(name, message, "give the shards it began with, or another --output") for name in lost)
                )
            replace_file(self.path / "state.json", json.dumps(state | {"shards": dict(shards)}).encode())

    def set_expected(self, rows: int) -> None:
        """Says how many rows the whole run has: those committed and those to come. Raises EnvironmentFailure."""
        with disk_errors(self.path):
            state = _read_json(self.path / "state.json", []) or {}
            replace_file(self.path / "state.json", json.dumps(state | {"expected_rows": rows}).encode())

    def log(self, event: str, **fields: Any) -> None:
        """Appends to log.jsonl. A log that cannot be written is reported and ends no run."""
        try:
            line = json.dumps({"time": datetime.now(UTC).isoformat(), "event": event, **fields}, default=str)
            append_line(self.path / "log.jsonl", line, sync=False)
        except (OSError, ValueError, TypeError) as error:
            logging.getLogger(__name__).warning("%s: cannot log %s: %s", self.path / "log.jsonl", event, error)


def read_run(path: str | Path) -> RunInfo:
    """What a run's folder says, while it runs or afterwards; takes no lock and checks no checksum.

    Raises:
        UsageError: there is no run in the folder.
        OutputConflict: its run.json is damaged.
    """
    path = Path(path)
    with disk_errors(path):
        run = _read_json(path / "run.json", RUN_KEYS)
        if run is None:
            raise UsageError(Problem(str(path), "there is no run in this folder: it has no run.json"))
        listed = read_manifest(path / "manifest.jsonl")
        parts = part_paths(path / "results")
        state = _read_json(path / "state.json", []) or {}
    rows = sum(listed[part.name].rows if part.name in listed else _count_rows(part) for part in parts)
    expected = state.get("expected_rows")
    return RunInfo(path=path, parts=tuple(parts), rows=rows, expected_rows=expected, **{name: run[name] for name in RUN_KEYS})


def _count_rows(part: Path) -> int:
    """Rows of a part that is not listed yet; none if it cannot be read, since opening the folder will set it aside."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(part).num_rows)
    except (pa.ArrowException, OSError):
        return 0


# Whose folder it is


def _claim(path: Path, run: Json) -> None:
    """Writes run.json, or checks that the one that is there is of the same fingerprint."""
    stored = _read_json(path / "run.json", RUN_KEYS)
    if stored is None:
        if part_paths(path / "results"):
            raise OutputConflict(Problem(str(path), "has results but no run.json that says whose they are", _ELSEWHERE))
        host = {"name": socket.gethostname(), "cpus": os.cpu_count()}
        content = {"version": "run/1", "created_at": datetime.now(UTC).isoformat(), **run, "host": host}
        replace_file(path / "run.json", json.dumps(content, indent=2).encode())
    elif stored["fingerprint"] != run["fingerprint"]:
        message = f"belongs to a run with other settings (fingerprint {stored['fingerprint']}, now {run['fingerprint']})"
        old, new = _flat(stored["identity"]), _flat(json.loads(json.dumps(run["identity"])))
        changes = [
            Problem(key, f"was {json.dumps(old.get(key))}, now {json.dumps(new.get(key))}")
            for key in [*old, *(key for key in new if key not in old)]
            if old.get(key) != new.get(key)
        ]
        raise OutputConflict(Problem(str(path), message, _ELSEWHERE), *changes)


def _flat(identity: Mapping[str, Any], prefix: str = "") -> Json:
    """Nested sections as dotted keys."""
    flat: Json = {}
    for key, value in identity.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _read_json(path: Path, keys: Iterable[str]) -> Json | None:
    """A file's JSON object; None if there is no file. Raises OutputConflict if it is no JSON or lacks a key."""
    try:
        content: Json = json.loads(path.read_bytes())
        missing = [key for key in keys if key not in content]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError):
        raise OutputConflict(Problem(str(path), "is damaged: it is no JSON object", _ELSEWHERE)) from None
    if missing:
        raise OutputConflict(Problem(str(path), f"is damaged: it lacks {', '.join(missing)}", _ELSEWHERE))
    return content
