import json
import subprocess
import sys
from pathlib import Path

import pytest
from codegen_batch.pipeline.config import LoadedJob, job_schema, load_job
from codegen_batch.schemas.errors import JobFileError
from codegen_batch.schemas.job import Job

ROOT = Path(__file__).parents[1]
MINIMAL = """\
name: demo
model:
  path: some/model
tasks:
  shards: [tasks/*.parquet]
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "job.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def problems(path: Path, *overrides: str) -> list[tuple[str, str]]:
    """Every problem as (where without the folder, message and hint)."""
    with pytest.raises(JobFileError) as raised:
        load_job(path, overrides)
    assert raised.value.exit_code == 3
    return [(p.where.replace(f"{path.parent}/", ""), f"{p.message} ({p.hint})") for p in raised.value.problems]


def load(folder: Path, text: str, *overrides: str) -> LoadedJob:
    return load_job(write(folder, text), overrides)


def test_a_minimal_job_gets_the_defaults(tmp_path: Path) -> None:
    loaded = load(tmp_path, MINIMAL)
    assert loaded.job == Job.model_validate(
        {"name": "demo", "model": {"path": "some/model"}, "tasks": {"shards": ["tasks/*.parquet"]}}
    )
    assert (loaded.path, loaded.base) == (tmp_path / "job.yaml", tmp_path)
    assert loaded.output_dir == Path("runs/demo")


@pytest.mark.parametrize(
    ("yaml", "where", "message"),
    [
        pytest.param(
            "generation:\n  sampels: 3\n", "job.yaml:7 generation.sampels", "did you mean `generation.samples`?", id="typo"
        ),
        pytest.param("seed: 3\n", "job.yaml:6 seed", "no such key (did you mean `generation.seed`?)", id="other-section"),
        pytest.param("zzz: 3\n", "job.yaml:6 zzz", "no such key (known: name, model, tasks, generation,", id="nothing-like-it"),
        pytest.param("generation: {samples: 0}\n", "job.yaml:6 generation.samples", "must be at least 1, not 0", id="bound"),
        pytest.param(
            "generation: {samples: yes}\n", "job.yaml:6 generation.samples", "must be a whole number, not true", id="bool"
        ),
        pytest.param(
            "generation: {samples: '3'}\n", "job.yaml:6 generation.samples", "must be a whole number, not '3'", id="quoted"
        ),
        pytest.param("generation: {temperature: .nan}\n", "job.yaml:6 generation.temperature", "at most 10.0, not nan", id="nan"),
        pytest.param("generation: {temperature: .inf}\n", "job.yaml:6 generation.temperature", "at most 10.0, not inf", id="inf"),
        pytest.param("generation: {seed: 0x%s}\n" % ("f" * 9000), "job.yaml:6 generation.seed", "not a huge number", id="huge"),
        pytest.param(
            "generation:\n  stop:\n  - a\n  - no\n",
            "job.yaml:9 generation.stop.1",
            "must be text, not false (put it in",
            id="item",
        ),
        pytest.param(
            "generation: {stop: abc}\n", "job.yaml:6 generation.stop", "must be a list, not 'abc' (write [abc])", id="list"
        ),
        pytest.param(
            "generation: {prompt_template: 3}\n", "job.yaml:6 generation.prompt_template", "must be text, not 3", id="union"
        ),
        pytest.param(
            "batching: {mode: dynamc}\n", "job.yaml:6 batching.mode", "must be 'dynamic' or 'static', not 'dynamc'", id="enum"
        ),
        pytest.param(
            "batching: {length_buckets: [2, 1]}\n", "job.yaml:6 batching", "length_buckets must rise", id="between-keys"
        ),
        pytest.param(
            "kv_cache: {page_size: 48}\n", "job.yaml:6 kv_cache.page_size", "must be 16, 32, 64 or 128, not 48", id="number-enum"
        ),
        pytest.param(
            "kv_cache: {memory: lots}\n", "job.yaml:6 kv_cache.memory", "not 'lots' (auto, or such as 2GiB.)", id="pattern"
        ),
        pytest.param(
            "validators:\n", "job.yaml:6 validators", "must be a section of `key: value` lines, not empty", id="empty-section"
        ),
        pytest.param("output: [1]\n", "job.yaml:6 output", "must be a section", id="list-for-section"),
        pytest.param("3: x\n", "job.yaml:6 3", "no such key", id="number-key"),
        pytest.param("tasks: {shards: [a]}\n", "job.yaml:6 tasks", "the key is given twice, first on line 4", id="twice"),
        pytest.param(
            "kv_cache:\n  dtype: int4\n  dtype: bf16\n", "job.yaml:8 kv_cache.dtype", "twice, first on line 7", id="twice-inside"
        ),
        pytest.param("output: &o {dir: [*o]}\n", "job.yaml:6 output.dir", "must be text", id="alias-of-itself"),
    ],
)
def test_a_bad_key_is_shown_with_its_line(tmp_path: Path, yaml: str, where: str, message: str) -> None:
    [(got_where, got_message)] = problems(write(tmp_path, MINIMAL + yaml))
    assert got_where == where
    assert message in got_message


@pytest.mark.parametrize(
    ("yaml", "where", "message"),
    [
        pytest.param("", "job.yaml", "is empty", id="empty"),
        pytest.param("# only a comment\n\n", "job.yaml", "is empty", id="comment"),
        pytest.param("\n- a\n", "job.yaml:2", "a job file is made of `key: value` lines", id="list"),
        pytest.param("hello", "job.yaml:1", "a job file is made of", id="text"),
        pytest.param("!!set {a, b}", "job.yaml:1", "a job file is made of", id="set"),
        pytest.param("name: x\nmodel: {path: [}\n", "job.yaml:2:16", "not valid YAML: ", id="syntax"),
        pytest.param("name: x\n\tmodel: y\n", "job.yaml:2:1", "not valid YAML: ", id="tab"),
        pytest.param("name: x\n---\nname: y\n", "job.yaml:2:1", "not valid YAML: ", id="two-documents"),
        pytest.param("name: x\nmodel: !!python/object:os.system {}\n", "job.yaml:2:8", "not valid YAML: ", id="python-object"),
        pytest.param("name: x\nmodel: *nowhere\n", "job.yaml:2:8", "not valid YAML: ", id="no-anchor"),
        pytest.param("name: x\nmodel: a\x00b\n", "job.yaml:2", "the character '\\x00' is not allowed", id="control-character"),
        pytest.param("name: x\nmodel: " + "[" * 5000, "job.yaml", "nested too deeply", id="deep"),
        pytest.param(b"name: x\nmodel: \xff\xfe\n", "job.yaml:2", "not UTF-8: byte 0xff", id="not-utf-8"),
        pytest.param("name: x\nmodel: " + "9" * 5000, "job.yaml", "not valid YAML: ", id="integer-too-long"),
    ],
)
def test_what_is_no_job_file_is_shown_with_line_and_column(tmp_path: Path, yaml: str | bytes, where: str, message: str) -> None:
    [(got_where, got_message)] = problems(write(tmp_path, yaml))
    assert got_where == where
    assert message in got_message


def test_every_problem_is_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "nme: demo\nmodel: {dtype: int3}\ngeneration:\n  samples: 0\n  seed: 1\n  seed: 2\n")
    found = problems(path, "output.drr=x", "kv_cache.page_size=7", "broken")
    assert [where for where, _ in found] == [
        "--set output.drr",
        "--set broken",
        "--set kv_cache.page_size",
        "job.yaml:1 name",
        "job.yaml:1 tasks",
        "job.yaml:1 nme",
        "job.yaml:2 model.path",
        "job.yaml:2 model.dtype",
        "job.yaml:4 generation.samples",
        "job.yaml:6 generation.seed",
    ]
    assert found[3][1] == "is missing (add such as `name: humaneval-greedy`)"
    assert found[5][1] == "no such key (did you mean `name`?)"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.yaml", "no such file"),
        ("jop.yaml", "did you mean {}/job.yaml?"),
        ("", "is a folder, not a job file"),
        ("job.yaml/x", "cannot be read"),
    ],
    ids=["missing", "near-miss", "folder", "below-a-file"],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, message: str) -> None:
    write(tmp_path, MINIMAL)
    with pytest.raises(JobFileError) as raised:
        load_job(tmp_path / name)
    assert message.format(tmp_path) in str(raised.value)


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        pytest.param("generation.samples=5", "generation", "samples", 5, id="number"),
        pytest.param("generation.temperature=1e-1", "generation", "temperature", 0.1, id="exponent"),
        pytest.param("generation.stop=['\\ndef ', a=b]", "generation", "stop", ["\\ndef ", "a=b"], id="list"),
        pytest.param("output.dir=2024-01-01", "output", "dir", "2024-01-01", id="date-is-text"),
        pytest.param("output.dir=", "output", "dir", None, id="nothing"),
        pytest.param("kv_cache={dtype: bf16, page_size: 16}", "kv_cache", "page_size", 16, id="whole-section"),
        pytest.param("model.path=other", "model", "path", "other", id="replaces"),
    ],
)
def test_an_override_wins_over_the_file(tmp_path: Path, override: str, section: str, key: str, value: object) -> None:
    loaded = load(tmp_path, MINIMAL + "generation: {samples: 2, seed: 9}\n", override)
    assert getattr(getattr(loaded.job, section), key) == value
    assert loaded.job.generation.seed == 9


def test_the_last_override_of_a_key_wins(tmp_path: Path) -> None:
    text = MINIMAL + "generation: {seed: 1}\n"
    assert load(tmp_path, text, "generation.seed=2", "generation.seed=3").job.generation.seed == 3


def test_an_override_changes_one_section_even_if_the_file_shares_it_by_an_alias(tmp_path: Path) -> None:
    loaded = load(tmp_path, MINIMAL + "validators: &shared {}\noutput: *shared\n", "output.dir=out")
    assert loaded.job.output.dir == "out"


@pytest.mark.parametrize(
    ("override", "where", "message"),
    [
        pytest.param("generation.sample=5", "--set generation.sample", "did you mean `generation.samples`?", id="typo"),
        pytest.param("samples=5", "--set samples", "did you mean `generation.samples`?", id="no-section"),
        pytest.param("kvcache.dtype=int4", "--set kvcache.dtype", "did you mean `kv_cache.dtype`?", id="section-typo"),
        pytest.param("generation.samples", "--set generation.samples", "has no `=`", id="no-value"),
        pytest.param("generation.samples=x", "--set generation.samples", "must be a whole number, not 'x'", id="type"),
        pytest.param("generation.stop=[a", "--set generation.stop:1:3", "not valid YAML", id="yaml"),
        pytest.param("generation={samples: 0}", "--set generation.samples", "must be at least 1", id="inside-a-section"),
        pytest.param(
            "batching.max_batch_tokens=64", "--set batching.max_batch_tokens", "must be at least max_sequences", id="pair"
        ),
    ],
)
def test_a_bad_override_is_named(tmp_path: Path, override: str, where: str, message: str) -> None:
    path = write(tmp_path, MINIMAL + "batching: {max_sequences: 65}\n")
    [(got_where, got_message)] = problems(path, override)
    assert got_where == where
    assert message in got_message


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("package:some_model/m.gguf", "package:some_model/m.gguf"),
        ("Owner/Name-1.5B", "Owner/Name-1.5B"),
        ("models/here", "{base}/models/here"),
        ("./models/absent", "{base}/models/absent"),
        ("a/b/c", "{base}/a/b/c"),
        ("m.gguf", "{base}/m.gguf"),
        ("/absolute/model", "/absolute/model"),
    ],
    ids=["package", "hub-id", "existing-folder", "dot", "deep", "gguf", "absolute"],
)
def test_a_model_path_is_relative_to_the_job_file(tmp_path: Path, given: str, expected: str) -> None:
    (tmp_path / "models/here").mkdir(parents=True)
    loaded = load(tmp_path, MINIMAL, f"model.path={given}")
    assert loaded.model_path == expected.format(base=tmp_path)


def test_shard_patterns_are_relative_to_the_job_file_even_if_its_folder_looks_like_a_glob(tmp_path: Path) -> None:
    folder = tmp_path / "[odd]"
    folder.mkdir()
    loaded = load(folder, MINIMAL, "tasks.shards=[a*.parquet, /abs/b.parquet]", "output.dir=out")
    assert loaded.shard_patterns == (f"{tmp_path}/[[]odd]/a*.parquet", "/abs/b.parquet")
    assert loaded.output_dir == Path("out")


def test_the_schema_file_is_what_the_job_says() -> None:
    assert json.loads((ROOT / "schemas/job.schema.json").read_text()) == job_schema(), (
        "run `python -m codegen_batch.pipeline.config > schemas/job.schema.json`"
    )


def test_the_module_prints_the_schema_file() -> None:
    printed = subprocess.run([sys.executable, "-m", "codegen_batch.pipeline.config"], capture_output=True, text=True, check=True)
    assert printed.stdout == (ROOT / "schemas/job.schema.json").read_text()


SCHEMA_KEYS = {
    f"{section}.{key}": field
    for section, body in {"Job": job_schema(), **job_schema()["$defs"]}.items()
    for key, field in body["properties"].items()
}


@pytest.mark.parametrize("key", SCHEMA_KEYS)
def test_an_editor_can_explain_every_key(key: str) -> None:
    field = SCHEMA_KEYS[key]
    section = job_schema()["$defs"].get(field.get("$ref", "").removeprefix("#/$defs/"), {})
    assert field.get("description") or section.get("description")


def test_importing_config_is_cheap() -> None:
    code = "import sys, codegen_batch.pipeline.config; sys.exit(any(m in sys.modules for m in ('pydantic', 'yaml', 'pyarrow')))"
    subprocess.run([sys.executable, "-c", code], check=True)
