"""The job: what a job file may say, its defaults and its bounds. Frozen; derived values are properties.

`pipeline/config.py` reads YAML into this; `schemas/job.schema.json` is generated from it.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(ge=1)]
MOST_TASKS = 10**12  # far beyond any data set, and within what an iterator counts


class Section(BaseModel):
    """A part of the job file. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Model(Section):
    """Which model generates."""

    path: str = Field(description="A folder, a .gguf file, package:NAME/FILE, or a Hugging Face hub id.")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="Type of weights and activations; auto is bfloat16 where the processor multiplies it natively."
    )
    max_context: Positive | None = Field(None, description="Cap on prompt plus completion; the model's own by default.")


class Tasks(Section):
    """What is asked."""

    shards: list[str] = Field(min_length=1, description="Parquet files or globs, relative to the job file.")
    limit: Positive | None = Field(None, le=MOST_TASKS, description="Take only the first N tasks.")


class Generation(Section):
    """How completions are sampled."""

    samples: Positive = Field(1, le=10_000, description="Completions a task.")
    max_new_tokens: Positive = Field(512, description="Cap on the tokens of a completion.")
    temperature: float = Field(0.0, ge=0, le=10, description="0 is greedy.")
    top_k: int = Field(0, ge=0, description="0 is off.")
    top_p: float = Field(1.0, gt=0, le=1, description="Keep the likeliest tokens up to this probability; 1 is off.")
    min_p: float = Field(0.0, ge=0, le=1, description="Drop tokens below this share of the likeliest; 0 is off.")
    repetition_penalty: float = Field(1.0, gt=0, le=10, description="1 is off.")
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="Strings that end a completion; they are not part of it."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="The same seed gives the same completions.")
    system_prompt: str | None = Field(None, description="Added before chat prompts that have no system turn.")
    prompt_template: Literal["chat", "raw"] | str = Field(
        "chat",
        description="chat: the model's own chat template; raw: the prompt as it is; else a Jinja template over "
        "{{ prompt }} and the task's fields, sent as a user turn.",
    )


class Batching(Section):
    """How prompts share a forward pass."""

    mode: Literal["dynamic", "static"] = Field(
        "dynamic", description="dynamic: continuous batching; static: fixed batches of similar length."
    )
    max_sequences: Positive = Field(64, description="Sequences that generate at once.")
    max_batch_tokens: int = Field(512, ge=64, description="Tokens in one forward pass, prefill and decode together.")
    length_buckets: list[Positive] = Field(
        default_factory=lambda: [128, 256, 512, 1024, 2048, 4096, 8192],
        description="Upper bounds, in prompt tokens, of the groups that static batches are made from.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> "Batching":
        if sorted(set(self.length_buckets)) != self.length_buckets:
            raise ValueError("length_buckets must rise, without repeats")
        if self.max_batch_tokens < self.max_sequences:
            raise ValueError("max_batch_tokens must be at least max_sequences: each sequence needs one token a step")
        return self


class KvCache(Section):
    """How keys and values are kept."""

    dtype: Literal["int4", "bf16", "float32"] = Field("int4", description="How a key or value is stored.")
    page_size: Literal[16, 32, 64, 128] = Field(32, description="Tokens a page.")
    memory: str = Field("auto", pattern=r"^(auto|\d+(\.\d+)?\s*([MG]i?B))$", description="auto, or such as 2GiB.")
    prefix_caching: bool = Field(True, description="Share the pages of prompts that begin alike.")


class Parallel(Section):
    """How many devices."""

    data: Positive = Field(1, description="Copies of the model, each with its own share of the tasks.")
    tensor: Positive = Field(1, description="Devices a copy is split over.")


class Validators(Section):
    """How completions are judged."""

    syntax: bool = Field(True, description="Parse the code that a completion holds.")
    tests: bool = Field(True, description="Run the task's tests.")
    wall_s: float = Field(20.0, gt=0, le=3600, description="Seconds by the clock: a backstop; cpu_s is the limit that counts.")
    cpu_s: float = Field(5.0, gt=0, le=3600, description="Seconds of processor time a sample.")
    memory_mb: int = Field(1024, ge=64, description="Memory a sample.")
    workers: Positive | None = Field(None, le=1024, description="Judges at once; the number of cores by default.")
    isolation: Literal["none", "process", "namespaces"] = Field(
        "namespaces", description="The weakest sandbox that is accepted; the strongest available is used."
    )


class Output(Section):
    """Where results go."""

    dir: str | None = Field(None, min_length=1, description="Relative to the working directory; runs/NAME by default.")
    rows_per_part: Positive = Field(256, description="Result rows a Parquet part; a part is committed at once or not at all.")
    max_error_rate: float = Field(0.1, ge=0, le=1, description="More error rows than this share end the job with code 5.")


class Job(Section):
    """A whole job file."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="Letters, digits, dots, dashes and underscores; the first is a letter or a digit.",
    )
    model: Model
    tasks: Tasks
    generation: Generation = Generation()
    batching: Batching = Batching()
    kv_cache: KvCache = KvCache()
    parallel: Parallel = Parallel()
    validators: Validators = Validators()
    output: Output = Output()
