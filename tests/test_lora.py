"""Adapters against the matrices they stand for, and the promise that the base is never changed."""

from __future__ import annotations

import pytest
import torch

from thousand_fingers.language_model import (
    Architecture,
    LanguageModel,
    generate,
    token_table,
    train_language_model,
)
from thousand_fingers.lora import LoraModel

SIZES = Architecture(vocabulary=300, width=24, layers=2, heads=2, kv_heads=1, hidden=64)
TABLE = token_table([[5, 6, 7, 8], [9, 10, 11]])


def base_model() -> LanguageModel:
    return LanguageModel(SIZES, generator=torch.Generator().manual_seed(0))


def adapted_model(base: LanguageModel, **options: float) -> LoraModel:
    options = {"rank": 4, "scale": 8.0} | options
    return LoraModel(base, generator=torch.Generator().manual_seed(1), **options)


def train(model: LanguageModel, epochs: int = 5) -> None:
    generator = torch.Generator().manual_seed(2)
    train_language_model(model, TABLE, epochs=epochs, batch_size=2, learning_rate=0.01, generator=generator)


def test_an_untrained_adapter_changes_nothing():
    base = base_model()
    assert torch.equal(adapted_model(base)(TABLE[:, :3]), base(TABLE[:, :3]))


def test_training_moves_the_adapter_and_leaves_every_weight_of_the_base_as_it_was():
    base = base_model()
    before = {name: weight.clone() for name, weight in base.state_dict().items()}
    adapted = adapted_model(base)
    train(adapted)
    assert all(weight.abs().max() > 0 for weight in adapted.outer)
    for name, weight in base.state_dict().items():
        assert torch.equal(weight, before[name])
    assert all(weight.grad is None for weight in base.parameters())
    assert not torch.allclose(adapted(TABLE[:, :3]), base(TABLE[:, :3]))


def test_only_the_thin_matrices_are_parameters_one_pair_for_each_of_the_seven_matrices_of_a_block():
    base, adapted = base_model(), adapted_model(base_model())
    matrices = [weight for block in base.blocks for weight in block.parameters() if weight.dim() == 2]
    assert len(matrices) == 7 * SIZES.layers == len(adapted.inner) == len(adapted.outer)
    wanted = sum(4 * sum(matrix.shape) for matrix in matrices)
    assert sum(weight.numel() for weight in adapted.parameters()) == wanted


def test_the_real_model_gets_the_number_of_weights_that_the_peer_library_reports():
    sizes = Architecture(
        vocabulary=49_152, width=576, layers=30, heads=9, kv_heads=3, hidden=1536, rope_base=1e5
    )
    with torch.device("meta"):  # shapes only
        base = LanguageModel(sizes, dtype=torch.float32)
    adapted = LoraModel(base, rank=16, generator=torch.Generator().manual_seed(0))
    assert sum(weight.numel() for weight in adapted.parameters()) == 4_884_480


def test_the_correction_is_scale_over_rank_times_the_product_and_has_no_higher_rank():
    base = base_model()
    adapted = adapted_model(base, rank=3, scale=6.0)
    train(adapted)
    merged = adapted.merged()
    for i, name in enumerate(n for n, w in base.blocks.named_parameters() if w.dim() == 2):
        difference = merged.blocks.get_parameter(name) - base.blocks.get_parameter(name).detach()
        torch.testing.assert_close(difference, 2.0 * (adapted.outer[i] @ adapted.inner[i]).detach())
        assert int(torch.linalg.matrix_rank(difference, atol=1e-9)) <= 3
    for name in ("tokens", "norm"):
        assert torch.equal(merged.get_parameter(name), base.get_parameter(name))


def test_the_merged_copy_answers_alike_and_shares_nothing_with_the_base():
    base = base_model()
    adapted = adapted_model(base)
    train(adapted)
    merged = adapted.merged()
    torch.testing.assert_close(merged(TABLE[:, :3]), adapted(TABLE[:, :3]))
    assert generate(merged, [[5, 6]], max_new_tokens=4) == generate(adapted, [[5, 6]], max_new_tokens=4)
    with torch.no_grad():
        merged.tokens.zero_()
    assert base.tokens.abs().max() > 0
    assert type(merged) is LanguageModel


def test_its_gradient_is_that_of_the_matrix_passed_through_the_thin_ones():
    base = base_model()
    adapted = adapted_model(base)
    train(adapted, epochs=1)
    merged = adapted.merged().requires_grad_(True)
    adapted.requires_grad_(True)
    for model in (merged, adapted):
        model(TABLE[:, :3])[:, :, 7].sum().backward()
    name = "0.gate"
    place = [n for n, w in base.blocks.named_parameters() if w.dim() == 2].index(name)
    whole = merged.blocks.get_parameter(name).grad
    torch.testing.assert_close(adapted.inner[place].grad, 2.0 * adapted.outer[place].detach().T @ whole)
    torch.testing.assert_close(adapted.outer[place].grad, 2.0 * whole @ adapted.inner[place].detach().T)


@pytest.mark.parametrize("options", [{"rank": 0}, {"rank": 1.5}, {"scale": 0.0}, {"scale": float("nan")}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises((TypeError, ValueError)):
        adapted_model(base_model(), **options)


def test_what_is_no_model_or_no_generator_is_refused():
    with pytest.raises(TypeError, match="base"):
        LoraModel(torch.nn.Linear(2, 2), generator=torch.Generator())
    with pytest.raises(TypeError, match="generator"):
        LoraModel(base_model(), generator=0)
