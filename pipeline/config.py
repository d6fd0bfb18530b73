"""The job file: YAML and `--set` overrides in, a checked and frozen job out, with every problem named at once.

`python -m codegen_batch.pipeline.config > schemas/job.schema.json` renews the JSON Schema that editors use.
"""

import difflib
import functools
import glob
import os
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.errors import JobFileError, Problem
from .job_yaml import Document, parse_value, read_document

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from ..schemas.job import Job

EXAMPLES = {
    "name": "name: humaneval-greedy",
    "model": "model: {path: models/my-model}",
    "model.path": "path: models/my-model",
    "tasks": "tasks: {shards: [tasks/*.parquet]}",
    "tasks.shards": "shards: [tasks/*.parquet]",
}
_RULES = {  # pydantic's error types in plain words; braces are filled from the error's context
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "model_type": "must be a section of `key: value` lines",
    "literal_error": "must be {expected}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} item(s)",
    "string_pattern_mismatch": "has the wrong form",
    "string_too_long": "must have at most {max_length} characters",
}
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class LoadedJob:
    """A checked job and where it came from. Paths in it are not touched until asked for."""

    job: "Job"
    path: Path
    base: Path  # the job file's folder: shards and model paths are relative to it

    @property
    def output_dir(self) -> Path:
        """Where results go, relative to the working directory."""
        return Path(self.job.output.dir or f"runs/{self.job.name}")

    @property
    def shard_patterns(self) -> tuple[str, ...]:
        """The shard globs, valid from any working directory."""
        return tuple(os.path.join(glob.escape(str(self.base)), os.path.expanduser(p)) for p in self.job.tasks.shards)

    @property
    def model_path(self) -> str:
        """The model's location; a relative path is taken from the job file's folder.

        `package:NAME/FILE` stays as it is, and so does what could be a hub id (NAME or OWNER/NAME) and is no existing path.
        """
        given = self.job.model.path
        if given.startswith("package:"):
            return given
        resolved = Path(os.path.normpath(self.base / os.path.expanduser(given)))
        is_path = resolved.exists() or given.startswith(".") or given.endswith(".gguf") or not _HUB_ID.fullmatch(given)
        return os.path.join(".", resolved) if is_path else given  # what begins with a dot is never looked up on the hub


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> LoadedJob:
    """Reads and checks a job file.

    Args:
        path: a YAML file; see schemas/job.py for what it may say.
        overrides: `key.path=value`, the value in YAML; each replaces what the file says.

    Raises:
        JobFileError: with every problem of the file and of the overrides.
    """
    from pydantic import ValidationError

    from ..schemas.job import Job

    path = Path(path)
    document = read_document(path)
    found = list(document.duplicate_keys())  # problems with their lines; overrides come first, on line 0
    data, overridden = document.data, set()
    for text in overrides:
        try:
            key, value = _parse_override(text)
        except JobFileError as error:
            found += [(0, problem) for problem in error.problems]
        else:
            _apply(data, key, value)
            overridden.add(key)
    try:
        job = Job.model_validate(data, strict=True)
    except ValidationError as error:
        found += _explain(error.errors(include_url=False), document, overridden)
    if found:
        raise JobFileError(*(problem for _, problem in sorted(found, key=lambda pair: pair[0])))
    return LoadedJob(job, path, path.parent)


def job_schema() -> dict[str, Any]:
    """The JSON Schema of a job file, for editors."""
    from ..schemas.job import Job

    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Job.model_json_schema()}
    schema["title"] = "codegen-batch job"
    return schema


# Overrides


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        raise JobFileError(Problem(f"--set {text}", "has no `=`", "write such as --set generation.samples=5"))
    if key not in _fields():
        raise JobFileError(Problem(f"--set {key}", "no such key", _nearest(key)))
    return key, parse_value(value, f"--set {key}")


def _apply(data: dict[Any, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = data.get(section, {})
        if not isinstance(inner, dict):
            return  # what the file says there is reported as its own problem
        data[section] = data = dict(inner)  # a copy: aliases in YAML share one object
    data[last] = value


# Explaining


@functools.cache
def _fields() -> Mapping[str, "FieldInfo"]:
    """Every key that a job file may hold, by its dotted path."""
    from ..schemas.job import Job, Section

    found: dict[str, FieldInfo] = {}
    for name, field in Job.model_fields.items():
        found[name] = field
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found |= {f"{name}.{inner}": info for inner, info in field.annotation.model_fields.items()}
    return found


def _nearest(key: str) -> str:
    """A hint for an unknown key: the most similar one of its section, else of any section, else what there is."""
    section, _, name = key.rpartition(".")
    siblings = {k.rpartition(".")[2]: k for k in _fields() if k.rpartition(".")[0] == section}
    everywhere = {k.rpartition(".")[2]: k for k in _fields()}
    for wanted, names in ((name, siblings), (key, {k: k for k in _fields()}), (name, everywhere)):
        if near := difflib.get_close_matches(wanted, names, n=1):
            return f"did you mean `{names[near[0]]}`?"
    return "known: " + ", ".join(siblings or everywhere)


def _explain(
    errors: Sequence[Mapping[str, Any]], document: Document, overridden: Collection[str]
) -> Iterator[tuple[int, Problem]]:
    """Pydantic's errors as problems, each with its line, or 0 where an override is to blame."""
    # A job is two levels deep: below are list items, and the names that pydantic gives to the branches of a union.
    # The branches share a path; the last branch is the widest, so its message is the one to show.
    by_path = {tuple(str(p) for i, p in enumerate(e["loc"]) if i < 2 or isinstance(p, int)): e for e in errors}
    for path, error in by_path.items():
        message, hint = _plain(".".join(path), error)
        key, line = ".".join(path), document.line(path)
        blamed = [key for k in overridden if key == k or key.startswith(f"{k}.")]
        if error["type"] == "value_error":  # about several keys of a section
            blamed += sorted(k for k in overridden if k.startswith(f"{key}."))
        if blamed:
            yield 0, Problem(f"--set {blamed[0]}", message, hint)
        else:
            yield line, Problem(f"{document.file}:{line} {key}", message, hint)


def _plain(key: str, error: Mapping[str, Any]) -> tuple[str, str]:
    """What is wrong and what to do about it, in plain words."""
    kind, value = error["type"], error["input"]
    if kind == "missing":
        return "is missing", f"add such as `{EXAMPLES[key]}`"
    if kind in ("extra_forbidden", "invalid_key"):
        return "no such key", _nearest(key)
    if kind == "value_error":
        return str(error["ctx"]["error"]), ""
    rule = _RULES.get(kind)
    message = f"{rule.format(**error.get('ctx', {}))}, not {_shown(value)}" if rule else f"{error['msg']}, not {_shown(value)}"
    field = _fields().get(key)
    if kind == "string_type" and not isinstance(value, dict | list | None):
        return message, f'put it in quotes: "{_shown(value)}"'
    if kind == "list_type" and isinstance(value, str):
        return message, f"write [{value}]"
    return message, (field.description or "") if field else ""


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "empty", True: "true", False: "false"}[value]
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a huge number"


if __name__ == "__main__":
    import json

    print(json.dumps(job_schema(), indent=2))
