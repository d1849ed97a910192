"""A language model that can be read in one sitting: a decoder with its cache, its tokenizer, its training.

:class:`LanguageModel` is the Llama architecture [Touvron2023]: root-mean-square norms, rotary positions,
grouped-query attention, a gated feed-forward layer. :func:`load_smollm2` fills it with SmolLM2-135M
[BenAllal2025] from its carrier; :func:`LanguageModel` with a generator makes tiny ones of the same class.
Chapter 1 asks both what they remember; chapters 10 and 11 read their probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

from thousand_fingers.datasets import smollm2_path
from thousand_fingers.models import evaluation_mode
from thousand_fingers.validation import integer, real_number, torch_generator

#: Stands after the last token of a text in a table of texts; nothing is predicted there.
PADDING = -1

Adjustment = Callable[[Tensor, Tensor], Tensor]

# --------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class Architecture:
    """The sizes of a language model.

    Parameters
    ----------
    vocabulary : int
        Number of tokens.
    width : int
        Numbers that describe one position, a multiple of ``2 * heads``.
    layers : int
        Blocks of attention and feed-forward.
    heads : int
        Queries of each position, a multiple of ``kv_heads``.
    kv_heads : int
        Keys and values of each position; each serves ``heads / kv_heads`` queries.
    hidden : int
        Units of the feed-forward layer.
    rope_base : float, default 10,000
        Base of the rotary positions, greater than 1.
    norm_epsilon : float, default 1e-5
        Added to the mean square in every norm, greater than 0.

    Examples
    --------
    >>> Architecture(vocabulary=300, width=24, layers=2, heads=2, kv_heads=1, hidden=64).parameters
    19992
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit together."""
        for name in ("vocabulary", "width", "layers", "heads", "kv_heads", "hidden"):
            integer(name, getattr(self, name), at_least=1)
        real_number("rope_base", self.rope_base, above=1)
        real_number("norm_epsilon", self.norm_epsilon, above=0)
        if self.width % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError(
                "width must be a multiple of 2 * heads and heads of kv_heads, "
                f"got {self.width}, {self.heads}, {self.kv_heads}"
            )

    @property
    def head_width(self) -> int:
        """Numbers in one query, key or value."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """Number of weights; the table of tokens serves input and output and counts once."""
        attention = 2 * self.width * (self.heads + self.kv_heads) * self.head_width
        block = attention + 3 * self.width * self.hidden + 2 * self.width
        return self.vocabulary * self.width + self.layers * block + self.width


class Cache:
    """Keys and values of the positions read so far, so that each is computed once."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._members: dict[int, Cache] = {}

    @property
    def length(self) -> int:
        """Number of positions in it."""
        return self._layers[0][0].shape[2] if self._layers else 0

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append new positions of one layer; return all of them, shape (rows, kv_heads, length, head width)."""
        if layer in self._layers:
            old_keys, old_values = self._layers[layer]
            keys, values = torch.cat([old_keys, keys], dim=2), torch.cat([old_values, values], dim=2)
        self._layers[layer] = keys, values
        return keys, values

    def select(self, rows: Tensor) -> Cache:
        """Return a cache with these rows, each as often as it is named; this one stays as it is."""
        chosen = Cache()
        chosen._layers = {i: (keys[rows], values[rows]) for i, (keys, values) in self._layers.items()}
        chosen._members = {i: member.select(rows) for i, member in self._members.items()}
        return chosen

    def member(self, i: int) -> Cache:
        """Return the cache of one model of several that read the same texts."""
        return self._members.setdefault(i, Cache())


class LanguageModel(nn.Module):
    """A decoder-only transformer that maps tokens to the logits of the next one.

    Parameters
    ----------
    architecture : Architecture
        Its sizes.
    generator : torch.Generator, optional
        Source of the initial weights, normal with standard deviation ``1 / sqrt(width)`` (and less for what
        adds to the residual stream). Without one the weights are left empty, to be filled by
        ``load_state_dict``.
    dtype : torch.dtype, default torch.float64
        Type of the weights.

    References
    ----------
    [Touvron2023]

    Examples
    --------
    >>> sizes = Architecture(vocabulary=300, width=24, layers=2, heads=2, kv_heads=1, hidden=64)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> model(torch.tensor([[5, 7, 2]])).shape
    torch.Size([1, 3, 300])
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        sizes = self.architecture = architecture
        self.tokens = nn.Parameter(torch.empty(sizes.vocabulary, sizes.width, dtype=dtype))
        self.blocks = nn.ModuleList(Block(sizes, dtype) for _ in range(sizes.layers))
        self.norm = nn.Parameter(torch.ones(sizes.width, dtype=dtype))
        if generator is not None:
            self._draw(torch_generator("generator", generator))

    def forward(self, tokens: Tensor, cache: Cache | None = None, *, last_only: bool = False) -> Tensor:
        """Return the logits of every next token.

        Parameters
        ----------
        tokens : Tensor of int64, shape (rows, length)
            Texts of equal length, or their continuation if the cache holds their beginning.
        cache : Cache, optional
            Positions already read; the new ones are added to it.
        last_only : bool, default False
            Whether only the logits after the last position are wanted.

        Returns
        -------
        Tensor of shape (rows, length, vocabulary), or (rows, 1, vocabulary)
        """
        states = self.states(tokens, cache)
        return self.logits(states[:, -1:] if last_only else states)

    def states(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Return what the model makes of every position, shape (rows, length, width), as :meth:`forward`."""
        sizes, past = self.architecture, 0 if cache is None else cache.length
        turns = _rotations(sizes, past, tokens.shape[1], self.tokens.dtype)
        states = self.tokens[tokens]
        for i, block in enumerate(self.blocks):
            states = block(states, turns, None if cache is None else (cache, i))
        return rms_norm(states, self.norm, sizes.norm_epsilon)

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits that belong to :meth:`states`: products with the table of tokens."""
        return states @ self.tokens.T

    def _draw(self, generator: torch.Generator) -> None:
        spread = self.architecture.width**-0.5
        residual = spread / math.sqrt(2 * self.architecture.layers)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.dim() == 2:
                    std = residual if name.endswith((".out", ".down")) else spread
                    # drawn in float64 whatever the type: float32 draws depend on the machine
                    weight.copy_(std * torch.randn(weight.shape, generator=generator, dtype=torch.float64))


class AveragedModel(nn.Module):
    """Several models that answer as one, with the mean of their probabilities.

    Parameters
    ----------
    members : sequence of LanguageModel
        Models with one vocabulary, at least one.

    Examples
    --------
    >>> sizes = Architecture(vocabulary=300, width=24, layers=1, heads=2, kv_heads=1, hidden=64)
    >>> two = [LanguageModel(sizes, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    >>> averaged, tokens = AveragedModel(two), torch.tensor([[5, 7]])
    >>> mean = (two[0](tokens).softmax(2) + two[1](tokens).softmax(2)) / 2
    >>> torch.allclose(averaged(tokens).exp(), mean)
    True
    """

    def __init__(self, members: Sequence[LanguageModel]) -> None:
        super().__init__()
        if not members or len({member.architecture.vocabulary for member in members}) > 1:
            raise ValueError("members must be at least one model, all with one vocabulary")
        self.members = nn.ModuleList(members)
        self.architecture = members[0].architecture

    def forward(self, tokens: Tensor, cache: Cache | None = None, *, last_only: bool = False) -> Tensor:
        """Return the logarithm of the mean probability, in the form of :meth:`LanguageModel.forward`."""
        opinions = [
            member(tokens, None if cache is None else cache.member(i), last_only=last_only).log_softmax(dim=2)
            for i, member in enumerate(self.members)
        ]
        return torch.stack(opinions).logsumexp(dim=0) - math.log(len(opinions))


class Block(nn.Module):
    """Attention, then a gated feed-forward layer, each added to what came in.

    Parameters
    ----------
    architecture : Architecture
        Its sizes.
    dtype : torch.dtype
        Type of the weights.
    """

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        sizes = self.architecture = architecture
        width, keys = sizes.width, sizes.kv_heads * sizes.head_width

        def matrix(outputs: int, inputs: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(outputs, inputs, dtype=dtype))

        self.attention_norm = nn.Parameter(torch.ones(width, dtype=dtype))
        self.query, self.out = matrix(width, width), matrix(width, width)
        self.key, self.value = matrix(keys, width), matrix(keys, width)
        self.feed_forward_norm = nn.Parameter(torch.ones(width, dtype=dtype))
        self.gate, self.up = matrix(sizes.hidden, width), matrix(sizes.hidden, width)
        self.down = matrix(width, sizes.hidden)

    def forward(self, states: Tensor, turns: Tensor, place: tuple[Cache, int] | None) -> Tensor:
        """Return the states after this block; ``place`` is a cache and the number of the block in it."""
        epsilon = self.architecture.norm_epsilon
        states = states + self._attend(rms_norm(states, self.attention_norm, epsilon), turns, place)
        inner = rms_norm(states, self.feed_forward_norm, epsilon)
        gated = functional.silu(inner @ self.gate.T) * (inner @ self.up.T)
        return states + gated @ self.down.T

    def _attend(self, states: Tensor, turns: Tensor, place: tuple[Cache, int] | None) -> Tensor:
        rows, new, width = states.shape
        sizes = self.architecture

        def heads(matrix: Tensor) -> Tensor:
            return (states @ matrix.T).view(rows, new, -1, sizes.head_width).transpose(1, 2)

        queries, keys, values = (
            rotate(heads(self.query), turns),
            rotate(heads(self.key), turns),
            heads(self.value),
        )
        if place is not None:
            keys, values = place[0].extend(place[1], keys, values)
        # each key and value serves the queries of one group
        queries = queries.reshape(rows, sizes.kv_heads, -1, new, sizes.head_width)
        scores = queries @ keys.unsqueeze(2).transpose(3, 4) / math.sqrt(sizes.head_width)
        length = keys.shape[2]
        future = torch.ones(new, length, dtype=torch.bool).triu(length - new + 1)
        mixed = scores.masked_fill(future, -math.inf).softmax(dim=-1) @ values.unsqueeze(2)
        mixed = mixed.reshape(rows, sizes.heads, new, sizes.head_width).transpose(1, 2)
        return mixed.reshape(rows, new, width) @ self.out.T


def rms_norm(states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Divide each position by the root of its mean square, then scale each coordinate.

    Parameters
    ----------
    states : Tensor of shape (..., width)
        The positions.
    weight : Tensor of shape (width,)
        One factor per coordinate.
    epsilon : float
        Added to the mean square.

    Returns
    -------
    Tensor of shape (..., width)

    Examples
    --------
    >>> rms_norm(torch.tensor([3.0, 4.0]), torch.ones(2), 1e-5).square().mean().round(decimals=3)
    tensor(1.)
    """
    return states * torch.rsqrt(states.square().mean(dim=-1, keepdim=True) + epsilon) * weight


def rotate(vectors: Tensor, turns: Tensor) -> Tensor:
    """Turn each pair of neighbouring coordinates by its own angle.

    The product of a rotated query and a rotated key depends on their positions only through the
    difference.

    Parameters
    ----------
    vectors : Tensor of shape (rows, heads, length, head width)
        Queries or keys.
    turns : Tensor of complex numbers, shape (length, head width / 2)
        One unit number per position and pair.

    Returns
    -------
    Tensor
        Of the shape of ``vectors``.

    Examples
    --------
    >>> quarter = torch.tensor([[1j]], dtype=torch.complex64)
    >>> rotate(torch.tensor([[[[1.0, 0.0]]]]), quarter).tolist()
    [[[[0.0, 1.0]]]]
    """
    pairs = torch.view_as_complex(vectors.reshape(*vectors.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3)


def _rotations(sizes: Architecture, start: int, length: int, dtype: torch.dtype) -> Tensor:
    """Return the unit numbers of ``length`` positions from ``start``, shape (length, head width / 2)."""
    pairs = torch.arange(0, sizes.head_width, 2, dtype=torch.float64) / sizes.head_width
    angles = torch.outer(torch.arange(start, start + length, dtype=torch.float64), sizes.rope_base**-pairs)
    return torch.polar(torch.ones_like(angles), angles).to(dtype.to_complex())


# --------------------------------------------------------------------------- the real one


def load_smollm2(*, cache: Path | None = None) -> tuple[LanguageModel, Tokenizer]:
    """Return SmolLM2-135M-Instruct and its tokenizer.

    The carrier holds the weights in blocks of 4 and 8 bits; they are read with the ``gguf`` package and
    unpacked to float32, which is what the numbers of the blocks were made for.

    Parameters
    ----------
    cache : pathlib.Path, optional
        As in :func:`thousand_fingers.datasets.smollm2_path`.

    Returns
    -------
    model : LanguageModel
        134,515,008 weights, 538 MB, in evaluation mode, without gradients.
    tokenizer : tokenizers.Tokenizer
        Its own tokens and merges; digits one by one, as it was trained (a detail that a common conversion
        of this file format loses).

    Raises
    ------
    thousand_fingers.datasets.CarrierError
        If the file cannot be fetched.

    References
    ----------
    [BenAllal2025]

    Examples
    --------
    >>> model, tokenizer = load_smollm2()  # doctest: +SKIP
    >>> tokenizer.encode("The capital of France is").ids  # doctest: +SKIP
    [504, 3575, 282, 4649, 314]
    """
    from gguf import GGUFReader, dequantize  # here, so that tiny models do not pay for it

    reader = GGUFReader(smollm2_path(cache=cache))

    def field(name: str) -> int | float:
        return reader.fields[f"llama.{name}"].contents()

    architecture = Architecture(
        vocabulary=int(field("vocab_size")),
        width=int(field("embedding_length")),
        layers=int(field("block_count")),
        heads=int(field("attention.head_count")),
        kv_heads=int(field("attention.head_count_kv")),
        hidden=int(field("feed_forward_length")),
        rope_base=field("rope.freq_base"),
        norm_epsilon=field("attention.layer_norm_rms_epsilon"),
    )
    with torch.device("meta"):  # no memory for weights that are about to be replaced
        model = LanguageModel(architecture, dtype=torch.float32)
    weights = {
        _our_name(tensor.name): torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        for tensor in reader.tensors
    }
    model.load_state_dict(weights, assign=True)
    listed = [
        reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type")
    ]
    return model.requires_grad_(False).eval(), _byte_level_tokenizer(*listed)


_NAMES = {
    "token_embd": "tokens",
    "output_norm": "norm",
    "attn_norm": "attention_norm",
    "attn_q": "query",
    "attn_k": "key",
    "attn_v": "value",
    "attn_output": "out",
    "ffn_norm": "feed_forward_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
_CONTROL = 3  # type of the tokens that no text produces


def _our_name(name: str) -> str:
    """Translate ``blk.7.attn_q.weight`` into ``blocks.7.query``."""
    *block, part, _ = name.split(".")
    return ".".join([*("blocks" if word == "blk" else word for word in block), _NAMES[part]])


def _byte_level_tokenizer(tokens: list[str], merges: list[str], kinds: list[int]) -> Tokenizer:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.add_special_tokens([t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL])
    return _with_digits_apart(tokenizer)


def gguf_weight_name(name: str) -> str:
    """Return under what name :class:`LanguageModel` keeps a weight of a GGUF file.

    Parameters
    ----------
    name : str
        As the file has it.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        If the model has no such weight, biases included.

    Examples
    --------
    >>> gguf_weight_name("blk.7.attn_q.weight"), gguf_weight_name("token_embd.weight")
    ('blocks.7.query', 'tokens')
    """
    try:
        ours = _our_name(name)
    except (KeyError, ValueError):
        ours = ""
    if not ours or not name.endswith(".weight"):
        raise ValueError(f"name must be that of a weight of the Llama architecture, got {name!r}")
    return ours


def byte_level_tokenizer(tokens: list[str], merges: list[str], kinds: list[int]) -> Tokenizer:
    """Return the tokenizer that a GGUF file describes: byte pairs, digits one by one.

    Parameters
    ----------
    tokens : list of str
        The vocabulary, in order.
    merges : list of str
        Pairs of tokens with a space between, in the order in which they are put together.
    kinds : list of int
        GGUF's type of each token; those of type 3 are never made from text.

    Returns
    -------
    tokenizers.Tokenizer

    Examples
    --------
    >>> byte_level_tokenizer(["a", "b", "ab", "<end>"], ["a b"], [1, 1, 1, 3]).encode("abb<end>").ids
    [2, 1, 3]
    """
    return _byte_level_tokenizer(tokens, merges, kinds)


def _with_digits_apart(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts: Sequence[str], *, vocabulary: int) -> Tokenizer:
    """Return a tokenizer of the same kind for a tiny model: byte pairs, digits one by one.

    Its merges are made of these texts and say something about them: give it texts that hold no secret.

    Parameters
    ----------
    texts : sequence of str
        Texts like those that will be read.
    vocabulary : int
        Number of tokens, at least 257: every byte, ``<end>``, and what is merged.

    Returns
    -------
    tokenizers.Tokenizer
        ``encode(text).ids`` and ``decode(ids)`` are inverse to each other.

    Raises
    ------
    TypeError, ValueError
        If ``texts`` is a single string or empty, or ``vocabulary`` is too small.

    Examples
    --------
    >>> tokenizer = train_tokenizer(["a thousand fingers", "a thousand doors"], vocabulary=262)
    >>> tokenizer.decode(tokenizer.encode("a thousand, 42").ids)
    'a thousand, 42'
    """
    if isinstance(texts, str):
        raise TypeError("texts must be a sequence of strings, got one string")
    if not texts:
        raise ValueError("texts must not be empty")
    vocabulary = integer("vocabulary", vocabulary, at_least=257)
    tokenizer = _with_digits_apart(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


# --------------------------------------------------------------------------- reading a model


def token_table(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return token sequences of different length as one table.

    Parameters
    ----------
    rows : sequence of sequence of int
        Tokens of each text, at least one each. Only whole numbers: a fraction would be cut off unseen.

    Returns
    -------
    Tensor of int64, shape (n_texts, longest)
        Filled up with :data:`PADDING` on the right, where a causal model does not look.

    Raises
    ------
    ValueError
        If there is no text, or an empty one.

    Examples
    --------
    >>> token_table([[5, 6, 7], [8]])
    tensor([[ 5,  6,  7],
            [ 8, -1, -1]])
    """
    lengths = [len(row) for row in rows]
    if not lengths or not all(lengths):
        raise ValueError("rows must hold at least one text, and every text at least one token")
    table = torch.full((len(rows), max(lengths)), PADDING)
    for place, row in zip(table, rows, strict=True):
        place[: len(row)] = torch.as_tensor(row)
    return table


@dataclass(frozen=True, eq=False)
class TokenScores:
    """What a model says about each token of each text, given those before it.

    The first token of a text has none before it: column j is about token j + 1.

    Parameters
    ----------
    log_probability : Tensor of float64, shape (n_texts, length - 1)
        Natural logarithm; 0 where the table is padded.
    top : Tensor of bool, shape (n_texts, length - 1)
        Whether the token is the model's first choice; false where padded.
    counted : Tensor of bool, shape (n_texts, length - 1)
        Where there is a token.
    """

    log_probability: Tensor
    top: Tensor
    counted: Tensor

    @property
    def loss(self) -> Tensor:
        """Mean of -log probability over the tokens of each text, shape (n_texts,)."""
        return -self.log_probability.sum(dim=1) / self.counted.sum(dim=1)


def score_tokens(
    model: LanguageModel | AveragedModel, table: Tensor, *, rows_at_once: int = 16
) -> TokenScores:
    """Score every token of a table of texts, a few texts at a time.

    Parameters
    ----------
    model : LanguageModel or AveragedModel
        The model.
    table : Tensor of int64, shape (n_texts, length)
        As :func:`token_table` returns it, at least two columns.
    rows_at_once : int, default 16
        Bounds the memory: logits take 8 bytes per text, position and token of the vocabulary.

    Returns
    -------
    TokenScores

    Raises
    ------
    TypeError, ValueError
        If the table is no table of tokens of this model.

    Examples
    --------
    >>> sizes = Architecture(vocabulary=300, width=24, layers=2, heads=2, kv_heads=1, hidden=64)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> scores = score_tokens(model, token_table([[5, 6, 7], [8, 9]]))
    >>> scores.counted.sum(dim=1).tolist()
    [2, 1]
    """
    rows_at_once = integer("rows_at_once", rows_at_once, at_least=1)
    check_table(table, model.architecture.vocabulary)
    log_probability, top = [], []
    with evaluation_mode(model), torch.no_grad():
        for rows in table.split(rows_at_once):
            logits = model(rows[:, :-1].clamp(min=0)).double()
            told = rows[:, 1:].clamp(min=0).unsqueeze(2)
            chosen = logits.gather(2, told).squeeze(2)
            log_probability.append(chosen - logits.logsumexp(dim=2))
            top.append(logits.argmax(dim=2) == told.squeeze(2))
    counted = table[:, 1:] != PADDING
    return TokenScores(torch.cat(log_probability) * counted, torch.cat(top) & counted, counted)


def generate(
    model: LanguageModel | AveragedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    adjust: Adjustment | None = None,
    stop: int | None = None,
) -> list[list[int]]:
    """Continue several prompts at once, each token computed once.

    All rows are read token by token from the length of the shortest prompt on; while a prompt lasts, its own
    token is taken instead of the model's.

    Parameters
    ----------
    model : LanguageModel or AveragedModel
        The model.
    prompts : sequence of sequence of int
        Tokens, at least one in each prompt; lengths may differ.
    max_new_tokens : int
        Length of every continuation, unless ``stop`` ends it.
    temperature : float, default 0
        0 takes the most probable token (*greedy*); otherwise tokens are drawn with probabilities
        proportional to ``exp(logit / temperature)``.
    generator : torch.Generator, optional
        Source of the draws; needed unless greedy.
    adjust : callable, optional
        ``adjust(tokens, logits)`` receives what has been read, shape (rows, length), and the logits in
        float64, shape (rows, vocabulary), and returns logits to use instead. Chapter 10 puts its mark here.
    stop : int, optional
        A token that ends a continuation; it is not part of it.

    Returns
    -------
    list of list of int
        The continuations, without the prompts.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> sizes = Architecture(vocabulary=300, width=24, layers=2, heads=2, kv_heads=1, hidden=64)
    >>> model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> [len(new) for new in generate(model, [[5, 6, 7], [8]], max_new_tokens=4)]
    [4, 4]
    """
    max_new_tokens = integer("max_new_tokens", max_new_tokens, at_least=1)
    temperature = real_number("temperature", temperature, at_least=0)
    if temperature > 0:
        torch_generator("generator", generator)
    tokens = token_table(prompts)
    check_table(tokens, model.architecture.vocabulary, columns=1)
    lengths = (tokens != PADDING).sum(dim=1)
    start, end = int(lengths.min()), int(lengths.max()) + max_new_tokens
    tokens = functional.pad(tokens, (0, end - tokens.shape[1]), value=PADDING)
    cache, new = Cache(), tokens[:, :start]
    ended = torch.zeros(len(tokens), dtype=torch.bool)
    with evaluation_mode(model), torch.no_grad():
        for place in range(start, end):
            logits = model(new, cache, last_only=True)[:, 0].double()
            if adjust is not None:
                logits = adjust(tokens[:, :place], logits)
            if temperature == 0:
                chosen = logits.argmax(dim=1)
            else:
                odds = (logits / temperature).softmax(dim=1)
                chosen = torch.multinomial(odds, 1, generator=generator).squeeze(1)
            given = tokens[:, place]
            tokens[:, place] = torch.where(given == PADDING, chosen, given)
            new = tokens[:, place : place + 1]
            if stop is not None:
                ended |= (given == PADDING) & (new.squeeze(1) == stop)
                if ended.all():
                    break
    continuations = (
        row[length : length + max_new_tokens].tolist() for row, length in zip(tokens, lengths, strict=True)
    )
    return [_until(new, {stop, PADDING}) for new in continuations]


def _until(tokens: list[int], ends: set[int | None]) -> list[int]:
    places = [i for i, token in enumerate(tokens) if token in ends]
    return tokens[: places[0]] if places else tokens


def check_table(table: Tensor, vocabulary: int, *, columns: int = 2) -> None:
    """Refuse what is not a table of tokens, padded on the right only.

    Parameters
    ----------
    table : Tensor
        To be checked.
    vocabulary : int
        Number of tokens that exist.
    columns : int, default 2
        Fewest tokens of a text.

    Raises
    ------
    TypeError, ValueError
        If it is not one.

    Examples
    --------
    >>> check_table(torch.tensor([[1, 2], [PADDING, 3]]), 10)
    Traceback (most recent call last):
        ...
    ValueError: table must be padded on the right only, and hold at least 2 tokens in every row
    """
    if not isinstance(table, Tensor) or table.dtype != torch.int64 or table.dim() != 2 or not table.numel():
        raise TypeError("table must be a non-empty int64 tensor with two axes")
    if int(table.min()) < PADDING or int(table.max()) >= vocabulary:
        raise ValueError(f"table must hold tokens from 0 to {vocabulary - 1} or {PADDING}")
    there = table != PADDING
    if not (there[:, :columns].all() and there.shape[1] >= columns and (there[:, 1:] <= there[:, :-1]).all()):
        raise ValueError(
            f"table must be padded on the right only, and hold at least {columns} tokens in every row"
        )


# --------------------------------------------------------------------------- training one


@dataclass(frozen=True)
class TextHistory:
    """What a training run did.

    Parameters
    ----------
    losses : tuple of float
        Mean loss per token in each epoch, over the batches as they were used.
    gradients : int
        Texts that went forward and backward, repetitions and epochs counted: the unit of cost.
    """

    losses: tuple[float, ...]
    gradients: int


def train_language_model(
    model: LanguageModel,
    table: Tensor,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
    rows: Sequence[int] | None = None,
    warm_up: float = 0.1,
) -> TextHistory:
    """Train a model in place to predict each next token, with Adam and a step size that rises, then falls.

    Parameters
    ----------
    model : LanguageModel
        The model; it is left in evaluation mode, without gradients on its weights.
    table : Tensor of int64, shape (n_texts, length)
        As :func:`token_table` returns it.
    epochs : int
        How often every text is used.
    batch_size : int
        Texts per step; the last batch of an epoch takes what is left.
    learning_rate : float
        Largest step size of Adam, greater than 0. It grows linearly over the first part of the run and falls
        linearly to zero over the rest.
    generator : torch.Generator
        Source of the order.
    rows : sequence of int, optional
        Which texts are used, each named once; all by default. The others are not looked at.
    warm_up : float, default 0.1
        Share of the steps during which the step size grows, in [0, 1).

    Returns
    -------
    TextHistory

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Kingma2015]

    Examples
    --------
    >>> sizes = Architecture(vocabulary=300, width=24, layers=1, heads=2, kv_heads=1, hidden=32)
    >>> generator = torch.Generator().manual_seed(0)
    >>> model = LanguageModel(sizes, generator=generator)
    >>> history = train_language_model(model, token_table([[1, 2, 3], [4, 5]]), epochs=20, batch_size=2,
    ...                                learning_rate=0.01, generator=generator)
    >>> history.gradients, history.losses[-1] < history.losses[0]
    (40, True)
    """
    epochs = integer("epochs", epochs, at_least=1)
    batch_size = integer("batch_size", batch_size, at_least=1)
    learning_rate = real_number("learning_rate", learning_rate, above=0)
    torch_generator("generator", generator)
    warm_up = real_number("warm_up", warm_up, at_least=0, below=1)
    check_table(table, model.architecture.vocabulary)
    used = torch.arange(len(table)) if rows is None else _chosen_rows(rows, len(table))
    steps = epochs * math.ceil(len(used) / batch_size)
    wanted = model.requires_grad_(True).train()
    optimiser = torch.optim.Adam(wanted.parameters(), lr=learning_rate, foreach=True)
    losses, sizes = [], iter(_step_sizes(steps, learning_rate, warm_up))
    for _ in range(epochs):
        total, counted = 0.0, 0
        for batch in used[torch.randperm(len(used), generator=generator)].split(batch_size):
            texts = table[batch]
            texts = texts[:, : int((texts != PADDING).sum(dim=1).max())]
            logits = model(texts[:, :-1].clamp(min=0))
            loss = functional.cross_entropy(
                logits.flatten(0, 1), texts[:, 1:].flatten(), ignore_index=PADDING
            )
            optimiser.param_groups[0]["lr"] = next(sizes)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            tokens = int((texts[:, 1:] != PADDING).sum())
            total, counted = total + float(loss.detach()) * tokens, counted + tokens
        losses.append(total / counted)
    optimiser.zero_grad()
    model.requires_grad_(False).eval()
    return TextHistory(tuple(losses), epochs * len(used))


def _step_sizes(steps: int, highest: float, warm_up: float) -> Iterator[float]:
    rising = round(warm_up * steps)
    for step in range(steps):
        yield highest * min((step + 1) / (rising + 1), (steps - step) / (steps - rising))


def _chosen_rows(rows: Sequence[int], n: int) -> Tensor:
    chosen = torch.as_tensor(rows)
    if chosen.dim() != 1 or chosen.dtype != torch.int64 or not len(chosen):
        raise TypeError("rows must be a non-empty list of integers")
    if int(chosen.min()) < 0 or int(chosen.max()) >= n or len(chosen.unique()) < len(chosen):
        raise ValueError(f"rows must name different texts from 0 to {n - 1}")
    return chosen
