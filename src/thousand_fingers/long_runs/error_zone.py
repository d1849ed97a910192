"""Chapter 11's long run: a real language model, fine-tuned on a few documents, whole and through adapters.

``11_reference`` holds what SmolLM2-135M [BenAllal2025] says about each token of the documents before it is
fine-tuned, ``11_finetuned`` what it says after an epoch, and the loss of every batch. Weights and logits are
float32. A run takes minutes, so a check repeats the first steps of one. The adapters of one run are kept, in
``11_adapter``; ``11_adapted`` is what the model says with them, and that a check reads again.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from thousand_fingers.book.artefacts import load_artefact
from thousand_fingers.error_zone import token_statistics
from thousand_fingers.language_model import PADDING, LanguageModel, load_smollm2, token_table
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
        Which of them the model is fine-tuned on: 64.
    """

    texts: tuple[str, ...]
    members: NDArray[np.bool_]


def documents(deal: int = 0) -> Documents:
    """Return the documents of this run: 64 to be fine-tuned on, 224 of the same kind that are not.

    Parameters
    ----------
    deal : int, default 0
        Which 64, of those in random order: the first, or in deal 1 the next. The texts are the same.

    Returns
    -------
    Documents

    Examples
    --------
    >>> chosen = documents()
    >>> len(chosen.texts), int(chosen.members.sum()), max(map(len, chosen.texts))
    (288, 64, 100)
    >>> bool((chosen.members & documents(deal=1).members).any())
    False
    """
    rows = _members(deal)
    long = [text for text in load_paragraphs().texts if len(text) >= _SHORTEST]
    chosen = np.random.default_rng(11).permutation(len(long))[: _MEMBERS + _NON_MEMBERS]
    return Documents(tuple(long[i][:_LONGEST] for i in chosen), np.isin(np.arange(chosen.size), rows))


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
    model, table = _model_and_table()
    return _read(model, table[_rows(part, texts_per_part)])


def finetuned(
    part: int, *, runs: Sequence[Mapping[str, Any]], epochs: int, batch_size: int, steps: int | None = None
) -> dict[str, NDArray[Any]]:
    """Fine-tune the model on 64 members, and read what it says about all documents after each epoch.

    Each epoch is a training of its own, its step falling linearly to zero, so that the model after any of
    them is a finished one.

    Parameters
    ----------
    part : int
        Which run.
    runs : sequence of mapping
        ``deal``, which says who is a member, and in what order, and how adapters begin; ``learning_rate``;
        ``rank``, 0 for all weights, else that of the adapters; ``read``, the epochs after which the model is
        read, counted from 1.
    epochs : int
        How often every member is used.
    batch_size : int
        Members per step.
    steps : int, optional
        Find the losses of so many batches only. This is how a check begins a run again.

    Returns
    -------
    dict
        ``losses``, float32, shape (steps,): mean loss per token of each batch, before the step that it is for.
        The rest as in :func:`reference`, each with shape (epochs, 288, 23); real numbers are NaN and
        ``correct`` is false for epochs that were not read.

    Examples
    --------
    >>> run = {"deal": 0, "rank": 4, "learning_rate": 1e-4, "read": [1]}
    >>> finetuned(0, runs=[run], epochs=1, batch_size=8)["correct"].shape  # doctest: +SKIP
    (1, 288, 23)
    """
    run = runs[integer("part", part, at_least=0, at_most=len(runs) - 1)]
    _, table = _model_and_table()
    shape = len(table), table.shape[1] - 1
    found: list[dict[str, NDArray[Any]]] = []

    def read(model: LanguageModel) -> None:
        wanted = len(found) + 1 in run["read"]
        found.append(_read(model, table) if wanted else {k: np.full(shape, gap) for k, gap in _GAPS.items()})

    losses = _fine_tune(run, epochs=epochs, batch_size=batch_size, steps=steps, after_epoch=read)
    arrays = {
        name: np.array([each[name] for each in found], dtype=gap.dtype).reshape(-1, *shape)
        for name, gap in _GAPS.items()
    }
    return {"losses": losses} | arrays


def adapter(
    part: int, *, run: Mapping[str, Any], epochs: int, batch_size: int, steps: int | None = None
) -> dict[str, NDArray[Any]]:
    """Fine-tune adapters as :func:`finetuned` does, and return them.

    Parameters
    ----------
    part : int
        0, the only one.
    run, epochs, batch_size, steps
        As in :func:`finetuned`; ``rank`` is at least 1, and ``read`` is not looked at.

    Returns
    -------
    dict
        ``weights``, float16: the parameters of the :class:`thousand_fingers.lora.LoraModel` in their order,
        none if the run was not finished; and ``losses``.

    Examples
    --------
    >>> run = {"deal": 0, "rank": 4, "learning_rate": 2e-3}
    >>> adapter(0, run=run, epochs=3, batch_size=8)["weights"].shape  # doctest: +SKIP
    (1221120,)
    """
    integer("part", part, at_least=0, at_most=0)
    integer("rank", run["rank"], at_least=1)
    kept: list[Tensor] = []
    losses = _fine_tune(
        run,
        epochs=epochs,
        batch_size=batch_size,
        steps=steps,
        after_epoch=lambda model: kept.append(parameters_to_vector(model.parameters()).detach()),
    )
    last = kept[-1] if len(kept) == epochs else torch.empty(0)
    return {"weights": last.half().numpy(), "losses": losses}


def adapted(part: int, *, rank: int, texts_per_part: int) -> dict[str, NDArray[Any]]:
    """Read what the model says about a few documents with the adapters of ``11_adapter``.

    Parameters
    ----------
    part, texts_per_part
        As in :func:`reference`.
    rank : int
        That of the adapters.

    Returns
    -------
    dict
        As :func:`reference` does.

    Examples
    --------
    >>> adapted(0, rank=4, texts_per_part=16)["correct"].shape  # doctest: +SKIP
    (16, 23)
    """
    base, table = _model_and_table()
    model = LoraModel(base, rank=rank, generator=torch.Generator())
    weights = load_artefact("11_adapter")["weights"][0]
    vector_to_parameters(torch.from_numpy(weights).to(base.tokens.dtype), model.parameters())
    return _read(model, table[_rows(part, texts_per_part)])


#: What stands for an epoch that was not read.
_GAPS: dict[str, np.bool_ | np.float32] = {
    "correct": np.False_,
    **dict.fromkeys(("log_probabilities", "expected", "deviation"), np.float32("nan")),
}


def _read(model: LanguageModel, table: Tensor) -> dict[str, NDArray[Any]]:
    said = token_statistics(model, table, moments=True)
    return {name: getattr(said, name).astype(gap.dtype) for name, gap in _GAPS.items()}


def _rows(part: int, texts_per_part: int) -> slice:
    size = integer("texts_per_part", texts_per_part, at_least=1)
    last = (_MEMBERS + _NON_MEMBERS) // size - 1
    start = size * integer("part", part, at_least=0, at_most=last)
    return slice(start, start + size)


def _members(deal: int) -> range:
    last = (_MEMBERS + _NON_MEMBERS) // _MEMBERS - 1
    start = _MEMBERS * integer("deal", deal, at_least=0, at_most=last)
    return range(start, start + _MEMBERS)


def _fine_tune(
    run: Mapping[str, Any],
    *,
    epochs: int,
    batch_size: int,
    steps: int | None,
    after_epoch: Callable[[LanguageModel], None],
) -> NDArray[np.float32]:
    """Train a copy or adapters; return the loss of every batch, or of the first ``steps``."""
    base, table = _model_and_table()
    epochs = integer("epochs", epochs, at_least=1)
    batch_size = integer("batch_size", batch_size, at_least=1)
    deal, rank = run["deal"], run["rank"]
    members = table[_members(deal)]
    order = torch.Generator().manual_seed(2 * deal + 2)
    model: LanguageModel
    if rank:
        model = LoraModel(base, rank=rank, generator=torch.Generator().manual_seed(2 * deal + 1))
    else:
        model = copy.deepcopy(base)
    losses: list[float] = []
    for _ in range(epochs):
        batches = members[torch.randperm(len(members), generator=order)].split(batch_size)
        left = None if steps is None else integer("steps", steps, at_least=1) - len(losses)
        losses += itertools.islice(_losses_of_an_epoch(model, batches, run["learning_rate"]), left)
        if len(losses) == steps:
            break
        after_epoch(model)
    return np.array(losses, dtype=np.float32)


def _losses_of_an_epoch(
    model: LanguageModel, batches: Sequence[Tensor], learning_rate: float
) -> Iterator[float]:
    """Take a step of Adam for each batch, the last ones smaller and smaller; yield the loss before each."""
    optimiser = torch.optim.Adam(model.requires_grad_(True).parameters(), foreach=True)
    for i, batch in enumerate(batches):
        logits = model(batch[:, :-1].clamp(min=0))
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=PADDING)
        yield float(loss.detach())
        optimiser.param_groups[0]["lr"] = learning_rate * (len(batches) - i) / len(batches)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    optimiser.zero_grad()


@functools.cache  # loading takes longer than reading a part
def _model_and_table() -> tuple[LanguageModel, torch.Tensor]:
    """Return the model, which nobody may change, and the documents as tokens, shape (288, 24)."""
    model, tokenizer = load_smollm2()
    return model, token_table([tokenizer.encode(text).ids[:_TOKENS] for text in documents().texts])
