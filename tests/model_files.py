"""Tiny models and their files, as other programs write them, for the tests that read such files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from tokenizers import Tokenizer

from thousand_fingers.language_model import Architecture, LanguageModel, train_tokenizer

SIZES = Architecture(
    vocabulary=300, width=24, layers=2, heads=2, kv_heads=1, hidden=40, rope_base=500.0, norm_epsilon=1e-4
)
_GGUF_NAMES = {
    "attention_norm": "attn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "out": "attn_output",
    "feed_forward_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_HF_NAMES = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def tiny_tokenizer() -> Tokenizer:
    return train_tokenizer(["the doctor saw the patient", "the patient saw the garden, 42"], vocabulary=270)


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32) -> LanguageModel:
    model = LanguageModel(SIZES, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return model.requires_grad_(False).eval()


def write_gguf(
    path: Path,
    model: LanguageModel,
    tokenizer: Tokenizer,
    *,
    architecture: str = "llama",
    pre: str = "smollm",
) -> None:
    sizes = model.architecture
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(sizes.width)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.hidden)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_rope_freq_base(sizes.rope_base)
    writer.add_layer_norm_rms_eps(sizes.norm_epsilon)
    known = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(known["vocab"], key=known["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_merges([" ".join(pair) for pair in known["merges"]])
    writer.add_token_types([3 if token == "<end>" else 1 for token in tokens])
    for name, weight in model.state_dict().items():
        writer.add_tensor(gguf_name(name), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    if name in ("tokens", "norm"):
        return {"tokens": "token_embd.weight", "norm": "output_norm.weight"}[name]
    _, block, part = name.split(".")
    return f"blk.{block}.{_GGUF_NAMES[part]}.weight"


def hf_name(name: str) -> str:
    if name in ("tokens", "norm"):
        return {"tokens": "model.embed_tokens.weight", "norm": "model.norm.weight"}[name]
    _, block, part = name.split(".")
    return f"model.layers.{block}.{_HF_NAMES[part]}.weight"


def hf_weights(model: LanguageModel) -> dict[str, np.ndarray]:
    """The model's numbers under the names, but not in the order of rows, of the other program."""
    return {hf_name(name): weight.numpy() for name, weight in model.state_dict().items()}


def write_safetensors(path: Path, arrays: dict[str, np.ndarray], kind: str = "F32") -> None:
    """Write the format as its specification says: length, table of contents, raw numbers."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, place = [], 0
    for name, array in arrays.items():
        if kind == "BF16":
            blob = (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            blob = array.astype({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[kind]).tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [place, place + len(blob)],
        }
        blobs.append(blob)
        place += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_folder(folder: Path, model: LanguageModel, tokenizer: Tokenizer, **config: Any) -> Path:
    """Write what ``save_pretrained`` writes; ``config`` overrides its entries, None removes one."""
    folder.mkdir(exist_ok=True)
    sizes = model.architecture
    stated = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": sizes.width,
        "intermediate_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "max_position_embeddings": 64,
        "rms_norm_eps": sizes.norm_epsilon,
        "rope_theta": sizes.rope_base,
        "rope_scaling": None,
        "attention_bias": False,
        "tie_word_embeddings": True,
    } | config
    (folder / "config.json").write_text(json.dumps({k: v for k, v in stated.items() if v is not None}))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_safetensors(folder / "model.safetensors", hf_weights(model))
    return folder
