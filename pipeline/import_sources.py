"""Foreign data sets, row by row: JSONL files, one JSON list, and whatever `datasets` loads."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..schemas.errors import InputDataError, Problem, UsageError
from .shard_writer import nearest

_BOM = b"\xef\xbb\xbf"
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row as its source has it. `fault` is set where it cannot be read as an object; `value` is what is there instead."""

    where: str  # file:line, or data set and number of the row, from 1
    value: Any
    fault: str = ""


def read_jsonl(src: Path) -> Iterator[SourceRow]:
    """Stream the rows of a JSONL file, gzipped or not; empty lines are none. Raises InputDataError if it cannot be read."""
    with _open(src) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _parse_line(line.removeprefix(_BOM) if number == 1 else line, f"{src}:{number}")


def read_json_list(src: Path) -> Iterator[SourceRow]:
    """The items of a file that is one JSON list; it is held in memory. Raises InputDataError if it cannot be read."""
    with _open(src) as file:
        try:
            items = json.loads(file.read().removeprefix(_BOM))
        except (ValueError, RecursionError) as error:
            raise InputDataError(Problem(str(src), f"is not JSON: {error}", "download the file again")) from None
    for number, item in enumerate(items, start=1):
        yield _row(f"{src} item {number}", item)


def is_json_list(src: Path) -> bool:
    """Whether the first character of a file opens a JSON list. Raises InputDataError if it cannot be read."""
    with _open(src) as file:
        return file.read(1024).removeprefix(_BOM).lstrip().startswith(b"[")


def read_dataset(src: str, split: str | None, config: str | None) -> Iterator[SourceRow]:
    """Stream one split of a data set: a folder of data files, a folder written by save_to_disk, or a hub id.

    Raises:
        UsageError: no such split, or none was named and there are several.
        InputDataError: `datasets` cannot load it, or fails on the way.
    """
    if not Path(src).is_dir() and not _HUB_ID.fullmatch(src):
        raise InputDataError(
            Problem(src, "there is no such folder", "give a folder of data files, or a hub id such as OWNER/NAME")
        )
    try:
        splits = _load(src, config)
    except Exception as error:  # anything: `datasets` and its many loaders share no base class
        message = f"cannot be loaded: {_brief(error)}"
        raise InputDataError(Problem(src, message, "give a folder of data files, or a hub id if the network allows")) from error
    name = split or (next(iter(splits)) if len(splits) == 1 else "")
    if name not in splits:
        message = f"there is no split {split!r}" if split else "name one of its splits"
        raise UsageError(Problem(src, message, nearest(name, list(splits))))
    number = 0
    try:
        for number, row in enumerate(splits[name], start=1):
            yield _row(f"{src} {name} row {number}", row)
    except Exception as error:
        where = f"{src} {name} row {number + 1}"
        raise InputDataError(Problem(where, f"cannot be read: {_brief(error)}", "mend or download the data set again")) from error


def _load(src: str, config: str | None) -> Mapping[str, Any]:
    """The splits of a data set by name, each an iterable of dictionaries."""
    import datasets

    folder = Path(src)
    if any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        saved = datasets.load_from_disk(src)
        return saved if isinstance(saved, dict) else {str(saved.split or "train"): saved}
    return cast(Mapping[str, Any], datasets.load_dataset(src, name=config, streaming=True))


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _parse_line(line: bytes, where: str) -> SourceRow:
    try:
        return _row(where, json.loads(line.decode()))
    except UnicodeDecodeError as error:
        fault = f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start}"
    except (ValueError, RecursionError) as error:
        fault = f"not JSON: {error}"
    return SourceRow(where, line.decode(errors="replace").rstrip("\r\n"), fault)


def _row(where: str, value: Any) -> SourceRow:
    return SourceRow(where, value, "" if isinstance(value, dict) else f"not an object but {type(value).__name__}")


@contextmanager
def _open(src: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """Open a file, unzipping it if it is gzipped. Failures to read it inside of the block become InputDataError."""
    try:
        with src.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if zipped:
                with gzip.GzipFile(fileobj=file) as unzipped:
                    yield unzipped
            else:
                yield file
    except FileNotFoundError:
        raise InputDataError(Problem(str(src), "there is no such file", "check the path")) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputDataError(Problem(str(src), f"is a damaged gzip file: {error}", "download the file again")) from None
    except OSError as error:
        raise InputDataError(Problem(str(src), f"cannot be read: {error.strerror}", "give a readable file")) from None
