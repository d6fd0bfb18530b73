"""Parts: the immutable Parquet files that hold a run's results, and the manifest that lists them.

The parts are the truth and the manifest an index with checksums: whatever it lacks is read from the parts again.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.errors import Problem
from ..schemas.records import Metric, Result
from .durable import claim_name, replace_file, sync_folder, write_temporary

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[str, int]  # task_id, sample_index
_PART_NAME = re.compile(r"part-(\d{5,})\.parquet")


class KeySet(Set[Key]):
    """A set of row keys: one dictionary entry a task, whose integer has a bit for each sample."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._bits: dict[str, int] = {}
        self._count = 0
        self.update(keys)

    def update(self, keys: Iterable[Key]) -> None:
        """Adds keys."""
        for task_id, sample in keys:
            bits = self._bits.get(task_id, 0)
            self._count += not bits >> sample & 1
            self._bits[task_id] = bits | 1 << sample

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, tuple)
        task_id, sample = key
        return bool(self._bits.get(task_id, 0) >> sample & 1)

    def __iter__(self) -> Iterator[Key]:
        return ((task_id, i) for task_id, bits in self._bits.items() for i in range(bits.bit_length()) if bits >> i & 1)

    def __len__(self) -> int:
        return self._count


@dataclass(frozen=True)
class Part:
    """One part, as the manifest lists it."""

    part: str  # file name
    rows: int
    sha256: str  # of the whole file
    keys: dict[str, list[int]]  # task_id: sample indices

    @classmethod
    def of(cls, name: str, content: bytes, keys: Sequence[Key]) -> "Part":
        by_task: dict[str, list[int]] = {}
        for task_id, sample in keys:
            by_task.setdefault(task_id, []).append(sample)
        return cls(name, len(keys), hashlib.sha256(content).hexdigest(), by_task)

    @property
    def line(self) -> str:
        """The manifest's line, without its end."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def each_key(self) -> Iterator[Key]:
        return ((task_id, sample) for task_id, samples in self.keys.items() for sample in samples)


class DamagedPart(Exception):
    """A part that cannot be used, and why."""


# Writing


def encode_results(rows: Sequence[Result], fingerprint: str) -> bytes:
    """Result rows as a Parquet file. Text that Unicode has no bytes for is replaced, so that no completion stops a commit."""
    from ..schemas.tables import RESULT

    return _encode([_result_columns(row) | {"fingerprint": fingerprint} for row in rows], RESULT)


def encode_metrics(metrics: Sequence[Metric]) -> bytes:
    """Metrics as a Parquet file."""
    from ..schemas.tables import METRIC

    return _encode([_columns(metric) for metric in metrics], METRIC)


def write_part(folder: Path, content: bytes, number: int) -> Path:
    """Writes a part under the first free number from `number` on, durably; an existing file is never touched."""
    temporary = write_temporary(folder, content)
    try:
        while not claim_name(temporary, path := folder / f"part-{number:05d}.parquet"):
            number += 1
        sync_folder(folder)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _result_columns(row: Result) -> dict[str, Any]:
    columns = {name: getattr(row, name) for name in ("task_id", "sample_index", "started_at", "finished_at")}
    if row.generation:
        columns |= _columns(row.generation)
    if row.judgement:
        columns |= _columns(row.judgement) | _columns(row.judgement.facts)
    if row.error:
        columns |= {f"error_{name}": value for name, value in _columns(row.error).items()}
    return columns


def _columns(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _encode(rows: Sequence[dict[str, Any]], schema: "pa.Schema") -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [pa.array([_sound(row.get(field.name)) for row in rows], field.type) for field in schema]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(columns, schema=schema)
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _sound(value: Any) -> Any:
    """Joins surrogate pairs and replaces lone surrogates, which UTF-8 cannot hold."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return [_sound(item) for item in value] if isinstance(value, tuple) else value


# Reading


def read_metrics(path: Path) -> list[Metric] | None:
    """The metrics in a file; None if there is none, or it is damaged: they can be computed again."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return [Metric(**row) for row in pq.read_table(path).to_pylist()]
    except (pa.ArrowException, OSError, TypeError):
        return None


def part_number(path: Path) -> int:
    """The number in a part's name; -1 if the file is no part."""
    match = _PART_NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def part_paths(folder: Path) -> list[Path]:
    """The parts in a folder, by number."""
    return sorted((path for path in folder.glob("part-*.parquet") if part_number(path) >= 0), key=part_number)


def read_manifest(path: Path) -> dict[str, Part]:
    """What the manifest lists, by file name. Torn and foreign lines are passed over: their parts are still there to be read."""
    parts = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            part = Part(**json.loads(line))
        except (ValueError, TypeError):
            continue
        parts[part.part] = part
    return parts


def recover_parts(folder: Path, manifest: Path, fingerprint: str) -> tuple[list[Part], list[Problem]]:
    """Checks every part against the manifest, and makes the manifest list what is there. Only for who holds the lock.

    A part that is damaged, of another run, or that repeats committed rows moves to `corrupt/`; its rows are then not
    committed, and so are those of a part that is gone.

    Returns:
        The sound parts by number, and a warning for each thing that was not as it should be.
    """
    listed = read_manifest(manifest)
    sound: list[Part] = []
    warnings: list[Problem] = []
    seen = KeySet()
    for path in part_paths(folder):
        content = path.read_bytes()
        if not content and path.name not in listed:
            path.unlink()  # a claimed name, see durable.claim_name
            continue
        try:
            part = _checked(path.name, content, listed.pop(path.name, None), fingerprint)
            if any(key in seen for key in part.each_key()):
                raise DamagedPart("it repeats rows of earlier parts")
        except DamagedPart as reason:
            moved = _set_aside(path)
            warnings.append(Problem(str(path), str(reason), f"moved to {moved}; rows that only it had will be done again"))
        else:
            seen.update(part.each_key())
            sound.append(part)
    for name, part in listed.items():
        warnings.append(Problem(str(folder / name), "the part is gone", f"its {part.rows} rows will be done again"))
    content = "".join(f"{part.line}\n" for part in sound).encode()
    if not manifest.exists() or manifest.read_bytes() != content:
        replace_file(manifest, content)
    return sound, warnings


def _checked(name: str, content: bytes, listed: Part | None, fingerprint: str) -> Part:
    if listed is None:
        return Part.of(name, content, _read_keys(content, fingerprint))
    if hashlib.sha256(content).hexdigest() != listed.sha256:
        raise DamagedPart("its checksum is not the one in the manifest")
    return listed


def _read_keys(content: bytes, fingerprint: str) -> list[Key]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ..schemas.tables import RESULT

    try:  # all columns, so that damage anywhere shows
        table = pq.read_table(pa.BufferReader(content), page_checksum_verification=True)
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise DamagedPart(f"it cannot be read: {str(error).splitlines()[0]}") from None
    if not table.schema.equals(RESULT):
        raise DamagedPart("it does not have the columns of a result")
    if set(table["fingerprint"].to_pylist()) - {fingerprint}:
        raise DamagedPart("it belongs to a run with another fingerprint")
    return list(zip(table["task_id"].to_pylist(), table["sample_index"].to_pylist(), strict=True))


def _set_aside(path: Path) -> Path:
    folder = path.parent / "corrupt"
    folder.mkdir(exist_ok=True)
    copies = sum(1 for _ in folder.glob(f"{path.name}*"))
    moved = path.rename(folder / (f"{path.name}.{copies}" if copies else path.name))
    sync_folder(path.parent)
    return moved
