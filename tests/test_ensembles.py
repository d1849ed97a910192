"""An ensemble is exactly its members, each trained alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thousand_fingers.ensembles import train_ensemble
from thousand_fingers.models import mlp
from thousand_fingers.training import train

POOL = torch.rand(60, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ROWS = np.stack([np.random.default_rng(m).choice(60, 43, replace=False) for m in range(3)])
LABELS = np.stack([np.random.default_rng(10 + m).integers(0, 3, 43) for m in range(3)])
SETTINGS = {"epochs": 4, "batch_size": 10, "learning_rate": 0.01}


def generators(members: int = 3) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(100 + m) for m in range(members)]


@pytest.mark.parametrize("sizes", [[12, 3], [12, 8, 3], [12, 8, 5, 3]])
def test_members_end_with_the_weights_they_would_have_got_alone(sizes: list[int]) -> None:
    ensemble = train_ensemble(POOL, ROWS, LABELS, sizes=sizes, generators=generators(), **SETTINGS)
    for m, generator in enumerate(generators()):
        alone = mlp(sizes, generator=generator)
        train(alone, POOL[ROWS[m]], torch.from_numpy(LABELS[m]), generator=generator, **SETTINGS)
        member = ensemble.member(m)
        for ours, theirs in zip(member.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
        with torch.no_grad():
            torch.testing.assert_close(ensemble.logits(POOL)[m], alone(POOL), rtol=0, atol=1e-9)
            torch.testing.assert_close(ensemble.features(POOL)[m], alone[:-1](POOL), rtol=0, atol=1e-9)
        assert (ensemble.predict(POOL)[m] == alone(POOL).argmax(1)).all()


def test_each_member_may_have_inputs_of_its_own() -> None:
    ensemble = train_ensemble(POOL, ROWS, LABELS, sizes=[12, 8, 3], generators=generators(), **SETTINGS)
    own = POOL.flatten(1)[torch.from_numpy(ROWS)]
    common = ensemble.logits(POOL)
    for m in range(3):
        torch.testing.assert_close(ensemble.logits(own)[m], common[m][ROWS[m]])


def test_the_global_generator_and_the_inputs_are_left_alone() -> None:
    state, pool = torch.get_rng_state(), POOL.clone()
    ensemble = train_ensemble(POOL, ROWS, LABELS, sizes=[12, 8, 3], generators=generators(), **SETTINGS)
    assert len(ensemble) == 3
    assert not ensemble.logits(POOL).requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(POOL, pool)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rows": ROWS[:2]}, ValueError, "rows must have shape"),
        ({"rows": ROWS + 60}, ValueError, "rows must be"),
        ({"labels": LABELS[:, :-1]}, ValueError, "labels must have shape"),
        ({"labels": LABELS + 3}, ValueError, "labels must be"),
        ({"sizes": [11, 3]}, ValueError, "sizes must begin with the 12 entries"),
        ({"epochs": 0}, ValueError, "epochs must be >= 1"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be"),
        ({"generators": []}, ValueError, "at least one generator"),
        ({"generators": [0, 1, 2]}, TypeError, "generators must be a torch.Generator"),
        ({"pool": POOL.long()}, TypeError, "pool must be"),
    ],
)
def test_wrong_arguments_are_refused(change: dict, error: type[Exception], message: str) -> None:
    arguments = {"pool": POOL, "rows": ROWS, "labels": LABELS, "sizes": [12, 3], "generators": generators()}
    arguments |= SETTINGS | change
    with pytest.raises(error, match=message):
        train_ensemble(arguments.pop("pool"), arguments.pop("rows"), arguments.pop("labels"), **arguments)
