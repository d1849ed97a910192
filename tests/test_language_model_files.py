from __future__ import annotations

import json
import math
import pickle
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quantize
from model_files import (
    SIZES,
    gguf_name,
    hf_name,
    hf_weights,
    tiny_model,
    tiny_tokenizer,
    write_folder,
    write_gguf,
    write_safetensors,
)
from torch import Tensor

from thousand_fingers.language_model_files import (
    FileRefusedError,
    load_language_model,
    parse_json,
    refuse_pickles,
    require_file,
)

TOKENS = torch.tensor([[5, 7, 2, 250, 9, 9, 13], [1, 0, 299, 4, 8, 16, 32]])


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def gguf_file(tmp_path):
    write_gguf(tmp_path / "model.gguf", tiny_model(), tiny_tokenizer())
    return tmp_path / "model.gguf"


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", tiny_model(), tiny_tokenizer())


def refusal(path: Path) -> str:
    with pytest.raises(FileRefusedError) as caught:
        load_language_model(path)
    text = str(caught.value)
    assert str(path.parent) in text  # whatever is wrong, the message says with which file
    return text


def logits_with_halves_rotated(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """The Llama forward pass in the layout of the other program: written out, one head at a time."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + SIZES.norm_epsilon) * weight

    def rotated(x: Tensor) -> Tensor:
        length, width = x.shape
        pairs = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = torch.arange(length)[:, None] / SIZES.rope_base**pairs
        angle = torch.cat([angle, angle], dim=1)
        turned = torch.cat([-x[:, width // 2 :], x[:, : width // 2]], dim=1)
        return x * angle.cos() + turned * angle.sin()

    x, width = weights["model.embed_tokens.weight"][tokens], SIZES.head_width
    for i in range(SIZES.layers):
        layer = {n.split(".", 3)[3]: w for n, w in weights.items() if n.startswith(f"model.layers.{i}.")}
        inner, heads = norm(x, layer["input_layernorm.weight"]), []
        for h in range(SIZES.heads):
            group = h // (SIZES.heads // SIZES.kv_heads)
            q = rotated(inner @ layer["self_attn.q_proj.weight"][h * width : (h + 1) * width].T)
            k = rotated(inner @ layer["self_attn.k_proj.weight"][group * width : (group + 1) * width].T)
            v = inner @ layer["self_attn.v_proj.weight"][group * width : (group + 1) * width].T
            scores = q @ k.T / math.sqrt(width) + torch.full((len(x), len(x)), -math.inf).triu(1)
            heads.append(scores.softmax(-1) @ v)
        x = x + torch.cat(heads, 1) @ layer["self_attn.o_proj.weight"].T
        inner = norm(x, layer["post_attention_layernorm.weight"])
        gate = inner @ layer["mlp.gate_proj.weight"].T
        inner = gate * torch.sigmoid(gate) * (inner @ layer["mlp.up_proj.weight"].T)
        x = x + inner @ layer["mlp.down_proj.weight"].T
    return norm(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T


# --------------------------------------------------------------------------- what is read


def test_a_gguf_file_is_the_model_that_was_written(gguf_file):
    loaded = load_language_model(gguf_file)
    assert (loaded.kind, loaded.context, loaded.files) == ("gguf", 64, (gguf_file,))
    assert loaded.model.architecture.rope_base == 500.0
    torch.testing.assert_close(loaded.model(TOKENS), tiny_model()(TOKENS))
    text = "the patient, 1042 gardens"
    assert loaded.tokenizer.encode(text).ids == tiny_tokenizer().encode(text).ids
    assert not loaded.model.training
    assert not any(weight.requires_grad for weight in loaded.model.parameters())


def test_quantized_gguf_weights_are_the_numbers_that_their_blocks_stand_for(tmp_path):
    from gguf import GGUFWriter, dequantize

    model = tiny_model()
    writes = {}

    class Quantizing(GGUFWriter):
        def add_tensor(self, name, tensor, *arguments, **options):
            if tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
                raw = quantize(tensor, GGMLQuantizationType.Q8_0)
                writes[name] = dequantize(raw, GGMLQuantizationType.Q8_0)
                return super().add_tensor(name, raw, raw_dtype=GGMLQuantizationType.Q8_0)
            return super().add_tensor(name, tensor, *arguments, **options)

    wide = type(SIZES)(vocabulary=270, width=32, layers=1, heads=2, kv_heads=2, hidden=64)
    model = type(model)(wide, generator=torch.Generator().manual_seed(1), dtype=torch.float32).requires_grad_(
        False
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("model_files.GGUFWriter", Quantizing)
        write_gguf(tmp_path / "q8.gguf", model, tiny_tokenizer())
    weights = load_language_model(tmp_path / "q8.gguf").model.state_dict()
    assert len(writes) == 8  # all tables and matrices
    for name, weight in weights.items():
        if gguf_name(name) in writes:
            assert np.array_equal(weight.numpy(), writes[gguf_name(name)])


@pytest.mark.parametrize("kind", ["F64", "F32", "F16", "BF16"])
def test_safetensors_weights_compute_what_the_layout_means(folder, kind):
    arrays = hf_weights(tiny_model())
    if kind == "BF16":  # numbers that fit, so that nothing is rounded
        arrays = {
            n: (np.ascontiguousarray(a).view(np.uint32) & 0xFFFF0000).view(np.float32)
            for n, a in arrays.items()
        }
    if kind == "F16":
        arrays = {n: a.astype(np.float16).astype(np.float32) for n, a in arrays.items()}
    write_safetensors(folder / "model.safetensors", arrays, kind)
    loaded = load_language_model(folder)
    assert loaded.model.tokens.dtype == (torch.float64 if kind == "F64" else torch.float32)
    weights = {name: torch.tensor(array, dtype=torch.float64) for name, array in arrays.items()}
    for row in TOKENS:
        wanted = logits_with_halves_rotated(weights, row)
        found = loaded.model.double()(row[None])[0]
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_shards_are_put_together(folder):
    arrays = hf_weights(tiny_model())
    (folder / "model.safetensors").unlink()
    parts = dict(list(arrays.items())[:7]), dict(list(arrays.items())[7:])
    shards = {}
    for i, part in enumerate(parts):
        write_safetensors(folder / f"model-{i}.safetensors", part)
        shards |= dict.fromkeys(part, f"model-{i}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    whole = write_folder(folder.parent / "whole", tiny_model(), tiny_tokenizer())
    torch.testing.assert_close(
        load_language_model(folder).model(TOKENS), load_language_model(whole).model(TOKENS)
    )
    index.write_text(json.dumps({"weight_map": {"norm": "../elsewhere.safetensors"}}))
    assert "same folder" in refusal(folder)
    index.write_text(json.dumps({"weight_map": {"norm": ["model-0.safetensors"]}}))
    assert "not a safetensors file" in refusal(folder)
    index.write_text(json.dumps({"weight_map": {"norm": "pytorch_model.bin"}}))
    assert "not a safetensors file" in refusal(folder)
    index.write_text(json.dumps({"weight_map": {}}))
    assert "has no weight_map" in refusal(folder)


def test_a_single_safetensors_file_finds_what_lies_beside_it(folder):
    loaded = load_language_model(folder / "model.safetensors")
    torch.testing.assert_close(loaded.model(TOKENS), load_language_model(folder).model(TOKENS))
    assert [path.name for path in loaded.files] == ["model.safetensors", "config.json", "tokenizer.json"]


def test_newer_configurations_keep_positions_apart(tmp_path):
    newer = write_folder(
        tmp_path / "newer",
        tiny_model(),
        tiny_tokenizer(),
        rope_theta=None,
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"},
    )
    assert load_language_model(newer).model.architecture.rope_base == 500.0


def test_an_output_table_that_repeats_the_input_is_no_other_one(folder):
    arrays = hf_weights(tiny_model())
    same = arrays | {"lm_head.weight": arrays["model.embed_tokens.weight"]}
    write_safetensors(folder / "model.safetensors", same)
    load_language_model(folder)
    write_safetensors(folder / "model.safetensors", same | {"lm_head.weight": 2 * same["lm_head.weight"]})
    assert "output table of its own" in refusal(folder)


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "name", ["m.pt", "m.pth", "pytorch_model.bin", "m.pkl", "m.PICKLE", "m.ckpt", "m.joblib"]
)
def test_pickles_are_refused_by_name_before_anything_is_read(tmp_path, name):
    class Bomb:
        def __reduce__(self):
            return (Path(tmp_path / "exploded").touch, ())

    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    assert "pickle" in refusal(tmp_path / name)
    (tmp_path / "innocent.gguf").write_bytes(pickle.dumps(Bomb()))
    assert "a pickle, whatever its name" in refusal(tmp_path / "innocent.gguf")
    assert not (tmp_path / "exploded").exists()


def test_a_folder_of_pickles_is_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "is a torch checkpoint, which is a pickle" in refusal(folder)
    (folder / "pytorch_model.bin").unlink()
    assert "holds no model.safetensors" in refusal(folder)


def test_other_kinds_of_files_are_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "missing.gguf")
    (tmp_path / "empty.gguf").touch()
    assert "is empty" in refusal(tmp_path / "empty.gguf")
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07\x12\x07")
    assert "neither GGUF nor safetensors" in refusal(tmp_path / "model.onnx")
    with pytest.raises(FileRefusedError, match=r"no such file|cannot be read"):
        require_file(Path("a\0b"))
    with pytest.raises(FileRefusedError, match="not an ordinary file"):
        require_file(tmp_path)
    refuse_pickles(tmp_path / "fine.jsonl")


def test_a_gguf_file_cut_anywhere_is_refused(gguf_file):
    whole = gguf_file.read_bytes()
    for size in [4, 7, 12, 24, 40, 100, 500, 3000, len(whole) // 2, len(whole) - 32]:
        gguf_file.write_bytes(whole[:size])
        assert "ends in the middle" in (text := refusal(gguf_file)) or "cut off" in text


def test_a_gguf_header_that_lies_about_lengths_is_refused_at_once(gguf_file):
    whole = gguf_file.read_bytes()
    for place in (8, 16):  # number of tensors, number of values
        lie = whole[:place] + struct.pack("<Q", 2**62) + whole[place + 8 :]
        gguf_file.write_bytes(lie)
        refusal(gguf_file)
    start = whole.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8
    for count in (2**62, 2**40):
        gguf_file.write_bytes(whole[:start] + struct.pack("<Q", count) + whole[start + 8 :])
        refusal(gguf_file)


def test_random_damage_to_a_gguf_file_never_escapes_as_another_error(gguf_file):
    whole = bytearray(gguf_file.read_bytes())
    header = whole.index(b"ffn_down.weight") + 200
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(4, header, size=3):
            damaged[place] = rng.integers(256)
        gguf_file.write_bytes(damaged)
        with suppress(FileRefusedError):
            load_language_model(gguf_file)


def test_random_damage_to_a_safetensors_file_never_escapes_as_another_error(folder):
    path = folder / "model.safetensors"
    whole = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(1)
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(0, header, size=2):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        with suppress(FileRefusedError):
            load_language_model(folder)


def test_a_safetensors_file_cut_anywhere_is_refused(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in [1, 7, 8, 20, 1000, len(whole) - 4]:
        path.write_bytes(whole[:size])
        assert "cut off" in refusal(folder)
    path.write_bytes(struct.pack("<Q", 2**63) + whole[8:])
    assert "cut off" in refusal(folder)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"dtype": "I8", "shape": [300, 24], "data_offsets": [0, 7200]}, "as I8"),
        ({"dtype": "F32", "shape": [300, 24], "data_offsets": [0, 10]}, "does not fit"),
        ({"dtype": "F32", "shape": [-300, -24], "data_offsets": [0, 28800]}, "does not fit"),
        ({"dtype": "F32", "shape": [300.0, 24], "data_offsets": [0, 28800]}, "does not fit"),
        ({"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 28800]}, "does not fit"),
        ({"dtype": "F32", "shape": [300, 24], "data_offsets": [-28800, 0]}, "does not fit"),
        ({"dtype": "F32", "shape": [300, 24]}, "entry of"),
        ([], "entry of"),
        ({"dtype": ["F32"], "shape": [300, 24], "data_offsets": [0, 28800]}, "as ["),
    ],
)
def test_a_safetensors_header_that_lies_is_refused(folder, entry, reason):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["model.embed_tokens.weight"] = entry
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    assert reason in refusal(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "gpt2"}, "architecture 'gpt2'; only 'llama'"),
        ({"model_type": None}, "does not say model_type"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "stretches its positions"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "stretches its positions"),
        ({"rope_scaling": [1]}, "positions that are not understood"),
        ({"attention_bias": True}, "sets attention_bias"),
        ({"mlp_bias": True}, "sets mlp_bias"),
        ({"hidden_act": "gelu"}, "sets hidden_act"),
        ({"partial_rotary_factor": 0.5}, "sets partial_rotary_factor"),
        ({"head_dim": 16}, "sets head_dim"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        (
            {"tie_word_embeddings": False},
            "lacks lm_head.weight, and config.json does not set tie_word_embeddings",
        ),
        (
            {"tie_word_embeddings": None},
            "lacks lm_head.weight, and config.json does not set tie_word_embeddings",
        ),
        ({"num_hidden_layers": 10**9}, "says 1000000000 layers"),
        ({"num_attention_heads": 5}, "impossible sizes"),
        ({"num_attention_heads": "2"}, "impossible sizes"),
        ({"num_attention_heads": 0}, "impossible sizes"),
        ({"num_key_value_heads": 2}, "with shape"),
        ({"rope_theta": -1.0}, "impossible sizes"),
        ({"rms_norm_eps": 0.0}, "impossible sizes"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(tmp_path, change, reason):
    folder = write_folder(tmp_path / "model", tiny_model(), tiny_tokenizer(), **change)
    assert reason in refusal(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"{", "is no JSON"),
        (b"[1]", "one JSON object"),
        (b'{"model_type": "llama", "model_type": "gpt2"}', "stands there twice"),
        (b'{"a": NaN}', "no JSON number"),
        (b"\xff\xfe{}", "is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"rms_norm_eps": 1e999}', "too large"),
        (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "too large"),
    ],
)
def test_a_damaged_configuration_is_refused(folder, content, reason):
    (folder / "config.json").write_bytes(content)
    text = refusal(folder)
    assert reason in text
    assert "config.json" in text


def test_weights_that_are_missing_strange_or_not_finite_are_refused(folder):
    arrays = hf_weights(tiny_model())
    path, some = folder / "model.safetensors", hf_name("blocks.1.down")
    write_safetensors(path, {n: a for n, a in arrays.items() if n != some})
    assert "lacks weights" in refusal(folder)
    write_safetensors(path, arrays | {"model.layers.0.self_attn.q_proj.bias": np.zeros(24)})
    assert "q_proj.bias, which is not supported" in refusal(folder)
    write_safetensors(path, arrays | {some: arrays[some].T})
    assert "with shape (40, 24), not (24, 40)" in refusal(folder)
    write_safetensors(path, arrays | {some: np.full_like(arrays[some], np.nan)})
    assert "not finite" in refusal(folder)
    write_safetensors(path, {"model.norm.weight": arrays["model.norm.weight"]})
    assert "lacks weights: tokens" in refusal(folder)
    (folder / "tokenizer.json").write_text("{}")
    write_safetensors(path, arrays)
    assert "is no tokenizer" in refusal(folder)
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json: there is no such file" in refusal(folder)


def test_a_bias_in_a_gguf_file_is_refused_and_not_taken_for_the_weight(tmp_path, monkeypatch):
    """Had it been taken, a weight that stands behind its bias would have replaced it unseen."""
    from gguf import GGUFWriter

    class Writer(GGUFWriter):
        def add_tensor(self, name, tensor, *arguments, **options):
            if name == "blk.0.attn_q.weight":
                super().add_tensor("blk.0.attn_q.bias", tensor[:, 0].copy())
            super().add_tensor(name, tensor, *arguments, **options)

    monkeypatch.setattr("model_files.GGUFWriter", Writer)
    write_gguf(tmp_path / "biased.gguf", tiny_model(), tiny_tokenizer())
    assert "holds blk.0.attn_q.bias, which is not supported" in refusal(tmp_path / "biased.gguf")


@pytest.mark.parametrize("name", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_gguf_file_that_stretches_positions_without_naming_a_type_is_refused(tmp_path, monkeypatch, name):
    from gguf import GGUFWriter

    class Writer(GGUFWriter):
        def add_context_length(self, length):
            super().add_context_length(length)
            self.add_float32(f"llama.{name}", factor)

    monkeypatch.setattr("model_files.GGUFWriter", Writer)
    for factor in (1.0, 4.0):
        write_gguf(tmp_path / f"{factor}.gguf", tiny_model(), tiny_tokenizer())
    assert load_language_model(tmp_path / "1.0.gguf").context == 64
    assert f"sets {name}" in refusal(tmp_path / "4.0.gguf")


def test_another_gguf_architecture_or_tokenizer_is_refused(tmp_path):
    path = tmp_path / "other.gguf"
    write_gguf(path, tiny_model(), tiny_tokenizer(), architecture="qwen2")
    assert "architecture 'qwen2'; only 'llama'" in refusal(path)
    write_gguf(path, tiny_model(), tiny_tokenizer(), pre="qwen2")
    assert "tokenizer that is not supported (qwen2): put its tokenizer.json beside it" in refusal(path)
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    loaded = load_language_model(path)
    assert loaded.files == (path, tmp_path / "tokenizer.json")


def test_json_is_read_as_the_standard_has_it():
    assert parse_json('{"a": [1, -2.5, true, null, "ü"]}') == {"a": [1, -2.5, True, None, "ü"]}
    for bad in ("NaN", "-Infinity", '{"a": 1, "a": 2}', "1e400", "9" * 30, "{", "", "[" * 10**6):
        with pytest.raises(ValueError, match=r"JSON|twice|large|deep"):
            parse_json(bad)
