"""Chapter 11's long run: a real language model, fine-tuned on a few documents, whole and through adapters.

``11_reference`` holds what SmolLM2-135M [BenAllal2025] says about each token of the documents before it is
fine-tuned, ``11_finetuned`` what it says after each epoch. Weights and logits are float32. The fine-tuned
models are not kept, and a run takes minutes, so it is the reference that a check computes again.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thousand_fingers.error_zone import TokenStatistics, token_statistics
from thousand_fingers.language_model import (
    LanguageModel,
    load_smollm2,
    token_table,
    train_language_model,
)
from thousand_fingers.lora import LoraModel
from thousand_fingers.texts import load_paragraphs
from thousand_fingers.validation import integer

_MEMBERS, _NON_MEMBERS = 64, 224
_SHORTEST, _LONGEST = 90, 100  # characters
_TOKENS = 24


@dataclass(frozen=True, eq=False)
class Documents:
    """Texts of one kind, dealt at random.

    Parameters
    ----------
    texts : tuple of str
        288 opening paragraphs of documentation, cut after 100 characters.
    members : ndarray of bool, shape (288,)
        Which of them the model is fine-tuned on: the first 64.
    """

    texts: tuple[str, ...]
    members: NDArray[np.bool_]


def documents() -> Documents:
    """Return the documents of this run: 64 to be fine-tuned on, 224 of the same kind that are not.

    Returns
    -------
    Documents

    Examples
    --------
    >>> chosen = documents()
    >>> len(chosen.texts), int(chosen.members.sum()), max(map(len, chosen.texts))
    (288, 64, 100)
    """
    long = [text for text in load_paragraphs().texts if len(text) >= _SHORTEST]
    chosen = np.random.default_rng(11).permutation(len(long))[: _MEMBERS + _NON_MEMBERS]
    return Documents(tuple(long[i][:_LONGEST] for i in chosen), np.arange(chosen.size) < _MEMBERS)


def reference(part: int, *, texts_per_part: int) -> dict[str, NDArray[Any]]:
    """Read what the model says about a few documents before it is fine-tuned.

    Parameters
    ----------
    part : int
        Part p is about documents ``p * texts_per_part`` and the following ones.
    texts_per_part : int
        A divisor of 288.

    Returns
    -------
    dict
        The arrays of :class:`thousand_fingers.error_zone.TokenStatistics` but for the tokens, each with
        shape (texts_per_part, 23), real numbers as float32.

    Examples
    --------
    >>> reference(0, texts_per_part=16)["correct"].shape  # doctest: +SKIP
    (16, 23)
    """
    texts_per_part = integer("texts_per_part", texts_per_part, at_least=1)
    last = (_MEMBERS + _NON_MEMBERS) // texts_per_part - 1
    start = texts_per_part * integer("part", part, at_least=0, at_most=last)
    model, table = _model_and_table()
    return _arrays(token_statistics(model, table[start : start + texts_per_part], moments=True))


def finetuned(
    part: int, *, runs: Sequence[Mapping[str, Any]], epochs: int, batch_size: int
) -> dict[str, NDArray[Any]]:
    """Fine-tune the model on the 64 members, and read what it says about all documents after each epoch.

    Each epoch is a training of its own, its step falling linearly to zero, so that the model after any of
    them is a finished one.

    Parameters
    ----------
    part : int
        Which run.
    runs : sequence of mapping
        ``learning_rate``; ``rank``, 0 for all weights, else that of the adapters; ``read``, the epochs
        after which the model is read, counted from 1.
    epochs, batch_size : int
        As in :func:`thousand_fingers.language_model.train_language_model`.

    Returns
    -------
    dict
        As :func:`reference`, each with shape (epochs, 288, 23); real numbers are NaN and ``correct`` is
        false for epochs that were not read.

    Examples
    --------
    >>> run = {"rank": 16, "learning_rate": 1e-4, "read": [1]}
    >>> finetuned(0, runs=[run], epochs=1, batch_size=8)["correct"].shape  # doctest: +SKIP
    (1, 288, 23)
    """
    run = runs[integer("part", part, at_least=0, at_most=len(runs) - 1)]
    epochs = integer("epochs", epochs, at_least=1)
    base, table = _model_and_table()
    model: LanguageModel
    if run["rank"]:
        model = LoraModel(base, rank=run["rank"], generator=torch.Generator().manual_seed(1))
    else:
        model = copy.deepcopy(base)
    order = torch.Generator().manual_seed(2)
    read: list[dict[str, NDArray[Any]]] = []
    for epoch in range(1, epochs + 1):
        train_language_model(
            model,
            table,
            rows=range(_MEMBERS),
            epochs=1,
            batch_size=batch_size,
            learning_rate=run["learning_rate"],
            generator=order,
            warm_up=0.0,
        )
        if epoch in run["read"]:
            read.append(_arrays(token_statistics(model, table, moments=True)))
        else:
            nothing = np.full((len(table), table.shape[1] - 1), np.nan, dtype=np.float32)
            read.append(dict.fromkeys(_REAL, nothing) | {"correct": np.zeros(nothing.shape, dtype=bool)})
    return {name: np.stack([arrays[name] for arrays in read]) for name in read[0]}


_REAL = ("log_probabilities", "expected", "deviation")


def _arrays(said: TokenStatistics) -> dict[str, NDArray[Any]]:
    return {"correct": said.correct} | {name: getattr(said, name).astype(np.float32) for name in _REAL}


@functools.cache  # loading takes longer than reading a part
def _model_and_table() -> tuple[LanguageModel, torch.Tensor]:
    """Return the model, which nobody may change, and the documents as tokens, shape (288, 24)."""
    model, tokenizer = load_smollm2()
    return model, token_table([tokenizer.encode(text).ids[:_TOKENS] for text in documents().texts])
