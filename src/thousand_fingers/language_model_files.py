"""Language models from the reader's own files: Llama weights as GGUF or safetensors, never unpickled.

:func:`load_language_model` turns a file into a :class:`thousand_fingers.language_model.LanguageModel`
[Touvron2023] and its tokenizer. Both formats are a table of contents and raw numbers; every length in them is
compared with the size of the file before it is believed. Formats that hold programs (pickles, and what torch
saves by default) are refused by name, and so is every architecture that would be computed wrongly. Chapter 11
audits such models.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from thousand_fingers.language_model import (
    Architecture,
    LanguageModel,
    byte_level_tokenizer,
    gguf_weight_name,
)

Bytes = NDArray[np.uint8]

#: What files that hold programs are called; reading one would run it.
PICKLES: Mapping[str, str] = {
    ".bin": "a torch checkpoint, which is a pickle",
    ".ckpt": "a checkpoint, which is a pickle",
    ".joblib": "a joblib file, which is a pickle",
    ".pickle": "a pickle",
    ".pkl": "a pickle",
    ".pt": "a torch file, which is a pickle",
    ".pth": "a torch file, which is a pickle",
}
_HEADER_LIMIT = 100_000_000  # bytes, as the safetensors format sets it
_JSON_LIMIT = 64_000_000
_ADVICE = "save the model with `save_pretrained(…, safe_serialization=True)` or convert it to GGUF"


class FileRefusedError(RuntimeError):
    """A file cannot be used. The message names it, says what is wrong, and where it can what to do."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A language model from a file.

    Parameters
    ----------
    model : LanguageModel
        In evaluation mode, without gradients; float64 if the file's token table is, otherwise float32.
    tokenizer : tokenizers.Tokenizer
        Its tokenizer.
    context : int or None
        Longest text it was made for, in tokens, if the file says so.
    kind : {"gguf", "safetensors"}
        What was read.
    files : tuple of pathlib.Path
        All files that were read.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    context: int | None
    kind: str
    files: tuple[Path, ...]


def load_language_model(path: Path) -> LoadedModel:
    """Read a model of the Llama architecture and its tokenizer.

    Parameters
    ----------
    path : pathlib.Path
        A ``.gguf`` file; a ``.safetensors`` file; or a folder as ``save_pretrained`` writes it, with
        ``config.json``, ``tokenizer.json`` and ``model.safetensors`` (or its index and shards). The tokenizer
        of a GGUF file is its own if it cuts digits one by one (``smollm``), otherwise the ``tokenizer.json``
        beside it.

    Returns
    -------
    LoadedModel

    Raises
    ------
    FileRefusedError
        If the file is missing, damaged, a pickle, or a model that
        :class:`~thousand_fingers.language_model.LanguageModel` would compute wrongly: another architecture,
        stretched positions, biases, experts, an output table of its own.

    Examples
    --------
    >>> load_language_model(Path("model.pt"))
    Traceback (most recent call last):
        ...
    thousand_fingers.language_model_files.FileRefusedError: model.pt: is a torch file, which is a pickle: \
reading it would run whatever it holds; save the model with `save_pretrained(…, safe_serialization=True)` \
or convert it to GGUF
    """
    refuse_pickles(path)
    if path.is_dir():
        return _load_folder(path)
    require_file(path)
    if _beginning(path) == b"GGUF":
        return _load_gguf(path)
    if path.suffix == ".safetensors":
        return _load_safetensors(path.parent, [path])
    raise FileRefusedError(path, "is neither GGUF nor safetensors")


def refuse_pickles(path: Path) -> None:
    """Refuse what would have to be unpickled, by its name and by how it begins.

    Parameters
    ----------
    path : pathlib.Path
        The file; it need not exist.

    Raises
    ------
    FileRefusedError
        If it is a pickle, or an archive with one in it.

    Examples
    --------
    >>> refuse_pickles(Path("scores.jsonl"))
    """
    what = PICKLES.get(path.suffix.lower())
    if what is None:
        try:
            start = _beginning(path) if path.is_file() else b""
        except OSError as error:
            raise FileRefusedError(path, f"cannot be read: {error.strerror}") from None
        if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
            what = "a pickle, whatever its name"
    if what is not None:
        raise FileRefusedError(path, f"is {what}: reading it would run whatever it holds; {_ADVICE}")


def require_file(path: Path) -> None:
    """Refuse what is not a readable file with something in it.

    Parameters
    ----------
    path : pathlib.Path
        The file.

    Raises
    ------
    FileRefusedError
        If it is missing, a folder, a pipe, unreadable, or empty.

    Examples
    --------
    >>> require_file(Path("no_such_file.jsonl"))
    Traceback (most recent call last):
        ...
    thousand_fingers.language_model_files.FileRefusedError: no_such_file.jsonl: there is no such file
    """
    try:
        if not path.exists():
            raise FileRefusedError(path, "there is no such file")
        if not path.is_file():
            raise FileRefusedError(path, "is not an ordinary file")
        if not _beginning(path):
            raise FileRefusedError(path, "is empty")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise FileRefusedError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _beginning(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(4)


def parse_json(text: str) -> Any:
    """Read JSON as the standard has it: no NaN, no infinity, no name twice.

    Parameters
    ----------
    text : str
        One value.

    Returns
    -------
    object

    Raises
    ------
    ValueError
        If it is not JSON, too deep, or holds a number no computer word can hold.

    Examples
    --------
    >>> parse_json('{"log_probabilities": [NaN]}')
    Traceback (most recent call last):
        ...
    ValueError: NaN is no JSON number
    """

    def constant(word: str) -> float:
        raise ValueError(f"{word} is no JSON number")

    def real(digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            raise ValueError(f"the number {digits[:20]} is too large")
        return number

    def whole(digits: str) -> int:
        if len(digits) > 20:
            raise ValueError(f"the number {digits[:20]}… is too large")
        return int(digits)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            names = [name for name, _ in items]
            raise ValueError(f"the name {next(n for n in names if names.count(n) > 1)!r} stands there twice")
        return found

    try:
        return json.loads(
            text, parse_constant=constant, parse_float=real, parse_int=whole, object_pairs_hook=pairs
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


# --------------------------------------------------------------------------- GGUF


class _Cursor:
    """Reads numbers and strings one after another and never beyond the end."""

    def __init__(self, path: Path, data: Bytes) -> None:
        self.path, self.data, self.place = path, data, 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.place:
            raise FileRefusedError(self.path, "ends in the middle of its table of contents")
        self.place += size
        return self.data[self.place - size : self.place].tobytes()

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        try:
            return self.take(self.number("Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise FileRefusedError(self.path, "holds a name that is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise FileRefusedError(self.path, f"holds a value of the unknown type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner not in _SCALARS and inner != _STRING:
            raise FileRefusedError(self.path, f"holds an array of type {inner}")
        if inner == _STRING:
            return [self.string() for _ in range(count)]
        return np.frombuffer(
            self.take(count * struct.calcsize("<" + _SCALARS[inner])), "<" + _SCALARS[inner]
        ).tolist()


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def _load_gguf(path: Path) -> LoadedModel:
    about, tensors = _read_gguf(path)

    def field(name: str, default: Any = None) -> Any:
        found = about.get(name, default)
        if found is None:
            raise FileRefusedError(path, f"does not say {name}")
        return found

    architecture = field("general.architecture")
    if architecture != "llama":
        raise FileRefusedError(
            path, f"is a model of the architecture {architecture!r}; only 'llama' is supported"
        )
    for name in ("expert_count", "rope.scaling.type"):
        if about.get(f"llama.{name}", 0) not in (0, "none"):
            raise FileRefusedError(path, f"sets {name}, which is not supported")
    for name in ("rope.scaling.factor", "rope.scale_linear"):  # a factor without a type stretches too
        if about.get(f"llama.{name}", 0) not in (0, 1) and "llama.rope.scaling.type" not in about:
            raise FileRefusedError(path, f"sets {name}, which is not supported")
    weights = {}
    for name, weight in tensors.items():
        try:
            weights[gguf_weight_name(name)] = weight
        except ValueError:
            if name != "output.weight":
                raise FileRefusedError(path, f"holds {name}, which is not supported") from None
    _require_tied(path, tensors.get("output.weight"), weights)
    heads = field("llama.attention.head_count")
    sizes = _architecture(
        path,
        weights,
        layers=field("llama.block_count"),
        heads=heads,
        kv_heads=field("llama.attention.head_count_kv", heads),
        rope_base=field("llama.rope.freq_base", 10_000.0),
        norm_epsilon=field("llama.attention.layer_norm_rms_epsilon"),
    )
    for name in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
        if about.get(f"llama.{name}", sizes.head_width) != sizes.head_width:
            raise FileRefusedError(
                path, f"sets {name} apart from the width of a head, which is not supported"
            )
    beside = path.parent / "tokenizer.json"
    own = (about.get("tokenizer.ggml.model"), about.get("tokenizer.ggml.pre")) == ("gpt2", "smollm")
    if own:
        listed = [field(f"tokenizer.ggml.{name}") for name in ("tokens", "merges", "token_type")]
        try:
            tokenizer = byte_level_tokenizer(*listed)
        except Exception as error:  # the tokenizers library raises bare Exception
            raise FileRefusedError(path, f"holds a damaged tokenizer: {error}") from None
    elif beside.exists():
        tokenizer = _read_tokenizer(beside)
    else:
        kind = about.get("tokenizer.ggml.pre") or about.get("tokenizer.ggml.model") or "none"
        raise FileRefusedError(
            path, f"has a tokenizer that is not supported ({kind}): put its tokenizer.json beside it"
        )
    context = about.get("llama.context_length")
    files = (path,) if own else (path, beside)
    return _filled(path, sizes, weights, tokenizer, context, "gguf", files)


def _read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize  # here: other formats do without

    data = np.memmap(path, np.uint8, mode="r")
    cursor = _Cursor(path, data)
    cursor.take(4)
    version, n_tensors, n_values = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
    if version not in (2, 3):
        raise FileRefusedError(path, f"is GGUF of version {version}; versions 2 and 3 are supported")
    about: dict[str, Any] = {}
    for _ in range(n_values):
        name = cursor.string()
        about[name] = cursor.value(cursor.number("I"))
    entries = []
    for _ in range(n_tensors):
        name, n_axes = cursor.string(), cursor.number("I")
        if n_axes not in (1, 2):
            raise FileRefusedError(path, f"holds {name} with {n_axes} axes, which is not supported")
        axes = [cursor.number("Q") for _ in range(n_axes)]
        entries.append((name, tuple(reversed(axes)), cursor.number("I"), cursor.number("Q")))
    step = about.get("general.alignment", 32)
    if not isinstance(step, int) or step < 1:
        raise FileRefusedError(path, f"has the impossible alignment {step}")
    start = math.ceil(cursor.place / step) * step
    tensors: dict[str, Tensor] = {}
    left = len(data)  # no byte is read twice
    for name, shape, kind, offset in entries:
        try:
            quantization = GGMLQuantizationType(kind)
            block, size = GGML_QUANT_SIZES[quantization]
        except (ValueError, KeyError):
            raise FileRefusedError(path, f"stores {name} in the unknown form {kind}") from None
        rows, columns = math.prod(shape[:-1]), shape[-1]
        length = rows * (columns // block * size)
        left -= length
        if not length or left < 0 or columns % block or start + offset + length > len(data):
            raise FileRefusedError(path, f"is cut off or damaged: {name} does not fit into it")
        if name in tensors:
            raise FileRefusedError(path, f"holds {name} twice")
        raw = np.array(data[start + offset : start + offset + length]).reshape(rows, -1)
        if quantization is GGMLQuantizationType.F64:
            values = raw.view("<f8")
        else:
            try:
                values = dequantize(raw, quantization)
            except NotImplementedError:
                raise FileRefusedError(
                    path, f"stores {name} as {quantization.name}, which is not supported"
                ) from None
        tensors[name] = torch.tensor(values.reshape(shape))
    return about, tensors


# --------------------------------------------------------------------------- safetensors

_THEIR_NAMES = {
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "out",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_forward_norm",
}
_PLAIN = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "partial_rotary_factor": 1.0}
_ITEM_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def _load_folder(folder: Path) -> LoadedModel:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return _load_safetensors(folder, [single])
    if index.exists():
        shards = _read_object(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise FileRefusedError(index, "has no weight_map")
        names = list(shards.values())
        if not all(isinstance(n, str) and n.endswith(".safetensors") and Path(n).name == n for n in names):
            raise FileRefusedError(index, "names a shard that is not a safetensors file in the same folder")
        return _load_safetensors(folder, [folder / name for name in dict.fromkeys(names)], index)
    for path in sorted(folder.iterdir()):
        refuse_pickles(path)
    raise FileRefusedError(folder, "holds no model.safetensors")


def _load_safetensors(folder: Path, shards: list[Path], *others: Path) -> LoadedModel:
    config_path, tokenizer_path = folder / "config.json", folder / "tokenizer.json"
    config = _read_object(config_path)

    def field(name: str, default: Any = None) -> Any:
        found = config.get(name, default)
        if found is None:
            raise FileRefusedError(config_path, f"does not say {name}")
        return found

    kind = field("model_type")
    if kind != "llama":
        raise FileRefusedError(
            config_path, f"is a model of the architecture {kind!r}; only 'llama' is supported"
        )
    positions = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or positions
    if not isinstance(positions, dict) or not isinstance(scaling, dict):
        raise FileRefusedError(config_path, "has positions that are not understood")
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise FileRefusedError(config_path, "stretches its positions (rope_scaling), which is not supported")
    for name, plain in _PLAIN.items():
        if config.get(name, plain) not in (plain, None):
            raise FileRefusedError(config_path, f"sets {name} to {config[name]!r}, which is not supported")
    if config.get("quantization_config"):
        raise FileRefusedError(config_path, "has quantized weights, which is not supported")
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        tensors |= _read_safetensors(shard)
    weights = {}
    for name, weight in tensors.items():
        if name != "lm_head.weight" and not name.endswith("rotary_emb.inv_freq"):
            weights[_translated(shards[0], name)] = weight
    _require_tied(shards[0], tensors.get("lm_head.weight"), weights)
    if "lm_head.weight" not in tensors and config.get("tie_word_embeddings") is not True:
        raise FileRefusedError(
            shards[0],
            f"lacks lm_head.weight, and {config_path.name} does not set tie_word_embeddings to true",
        )
    heads = field("num_attention_heads")
    sizes = _architecture(
        shards[0],
        weights,
        layers=field("num_hidden_layers"),
        heads=heads,
        kv_heads=field("num_key_value_heads", heads),
        rope_base=config.get("rope_theta") or positions.get("rope_theta", 10_000.0),
        norm_epsilon=field("rms_norm_eps", 1e-6),
    )
    if (config.get("head_dim") or sizes.head_width) != sizes.head_width:
        raise FileRefusedError(config_path, "sets head_dim apart from width / heads, which is not supported")
    for name, weight in weights.items():
        if name.endswith((".query", ".key")):
            weights[name] = _neighbouring_pairs(weight, sizes.head_width)
    files = (*shards, *others, config_path, tokenizer_path)
    context = config.get("max_position_embeddings")
    return _filled(shards[0], sizes, weights, _read_tokenizer(tokenizer_path), context, "safetensors", files)


def _translated(path: Path, name: str) -> str:
    """Translate ``model.layers.7.self_attn.q_proj.weight`` into ``blocks.7.query``."""
    if name in ("model.embed_tokens.weight", "model.norm.weight"):
        return "tokens" if "embed" in name else "norm"
    start, _, rest = name.removeprefix("model.layers.").partition(".")
    part = _THEIR_NAMES.get(rest.removesuffix(".weight"))
    if not (name.startswith("model.layers.") and name.endswith(".weight") and part):
        raise FileRefusedError(path, f"holds {name}, which is not supported")
    return f"blocks.{start}.{part}"


def _neighbouring_pairs(weight: Tensor, head_width: int) -> Tensor:
    """Reorder the rows of queries or keys: theirs rotates (i, i + half) of each head, ours (2 i, 2 i + 1)."""
    rows, columns = weight.shape
    return weight.view(-1, 2, head_width // 2, columns).transpose(1, 2).reshape(rows, columns)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    require_file(path)
    data = np.memmap(path, np.uint8, mode="r")
    length = int.from_bytes(data[:8].tobytes(), "little") if len(data) >= 8 else 0
    if not 2 <= length <= min(_HEADER_LIMIT, len(data) - 8):
        raise FileRefusedError(path, "is no safetensors file, or is cut off")
    try:
        header = parse_json(data[8 : 8 + length].tobytes().decode("utf-8"))
    except ValueError as error:
        raise FileRefusedError(path, f"has a damaged header: {error}") from None
    if not isinstance(header, dict):
        raise FileRefusedError(path, "has a damaged header: it is no table")
    tensors = {}
    left = len(data)  # no byte is read twice
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            kind, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            whole = all(type(n) is int and n > 0 for n in shape) and type(start) is type(end) is int
        except (TypeError, KeyError, ValueError):
            raise FileRefusedError(path, f"has a damaged header: the entry of {name}") from None
        if not isinstance(kind, str) or kind not in _ITEM_SIZES:
            raise FileRefusedError(path, f"stores {name} as {kind}; {', '.join(_ITEM_SIZES)} are supported")
        fits = whole and 0 <= start <= end <= len(data) - 8 - length
        left -= end - start if fits else 0
        if not fits or left < 0 or end - start != math.prod(shape) * _ITEM_SIZES[kind]:
            raise FileRefusedError(path, f"is cut off or damaged: {name} does not fit into it")
        raw = np.array(data[8 + length + start : 8 + length + end])
        if kind == "BF16":  # the upper half of a float32
            values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = raw.view(f"<f{_ITEM_SIZES[kind]}")
        tensors[name] = torch.from_numpy(values.astype(np.float64 if kind == "F64" else np.float32))
        tensors[name] = tensors[name].reshape(shape)
    return tensors


def _read_object(path: Path) -> dict[str, Any]:
    require_file(path)
    if path.stat().st_size > _JSON_LIMIT:
        raise FileRefusedError(path, "is too large to be what its name says")
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise FileRefusedError(path, why) from None
    if not isinstance(found, dict):
        raise FileRefusedError(path, "must hold one JSON object")
    return found


# --------------------------------------------------------------------------- both


def _read_tokenizer(path: Path) -> Tokenizer:
    require_file(path)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise FileRefusedError(path, f"is no tokenizer: {error}") from None


def _require_tied(path: Path, output: Tensor | None, weights: Mapping[str, Tensor]) -> None:
    table = weights.get("tokens")
    if output is not None and (table is None or not torch.equal(output, table)):
        raise FileRefusedError(path, "has an output table of its own, which is not supported")


def _architecture(path: Path, weights: Mapping[str, Tensor], **stated: Any) -> Architecture:
    """Take the sizes from the weights where they show, and from what is stated where they do not."""
    for name in ("tokens", "norm", "blocks.0.gate"):
        if name not in weights:
            raise FileRefusedError(path, f"lacks weights: {name}")
    if weights["tokens"].dim() != 2 or weights["blocks.0.gate"].dim() != 2:
        raise FileRefusedError(path, "holds weights of the wrong shape")
    if stated["layers"] != len({name.split(".")[1] for name in weights if name.startswith("blocks.")}):
        raise FileRefusedError(path, f"says {stated['layers']} layers and holds another number of them")
    vocabulary, width = weights["tokens"].shape
    try:
        return Architecture(
            vocabulary=vocabulary, width=width, hidden=len(weights["blocks.0.gate"]), **stated
        )
    except (TypeError, ValueError) as error:
        raise FileRefusedError(path, f"has impossible sizes: {error}") from None


def _filled(
    path: Path,
    sizes: Architecture,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    context: Any,
    kind: str,
    files: Iterable[Path],
) -> LoadedModel:
    dtype = torch.float64 if weights["tokens"].dtype == torch.float64 else torch.float32
    with torch.device("meta"):  # no memory for weights that are about to be replaced
        model = LanguageModel(sizes, dtype=dtype)
    wanted = {name: weight.shape for name, weight in model.state_dict().items()}
    if missing := sorted(wanted.keys() ^ weights.keys()):
        raise FileRefusedError(path, f"lacks weights, or holds too many: {missing[0]}")
    for name, weight in weights.items():
        if weight.shape != wanted[name]:
            raise FileRefusedError(
                path, f"holds {name} with shape {tuple(weight.shape)}, not {tuple(wanted[name])}"
            )
        if not weight.isfinite().all():
            raise FileRefusedError(path, f"holds numbers that are not finite, in {name}")
    model.load_state_dict({name: weight.to(dtype) for name, weight in weights.items()}, assign=True)
    if tokenizer.get_vocab_size() > sizes.vocabulary:
        raise FileRefusedError(
            path, f"knows {sizes.vocabulary} tokens, its tokenizer {tokenizer.get_vocab_size()}"
        )
    longest = context if isinstance(context, int) and context > 0 else None
    model.requires_grad_(False).eval()
    return LoadedModel(model, tokenizer, longest, kind, tuple(files))
