"""Low-rank adapters: a language model that is fine-tuned without touching its weights.

Each matrix of every block gets a correction of low rank, the product of two thin matrices, and only those are
trained [Hu2022]. :class:`LoraModel` is a :class:`thousand_fingers.language_model.LanguageModel` like any other
and is trained by the same function; what it adapts stays as it is. Chapter 11 asks whether it remembers less.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from thousand_fingers.language_model import Cache, LanguageModel
from thousand_fingers.validation import integer, real_number, torch_generator


class LoraModel(LanguageModel):
    r"""A frozen model with a trainable correction of low rank on every matrix of its blocks.

    In place of a matrix :math:`W` it computes with :math:`W+\frac{\alpha}{r}BA`, where :math:`A` has r rows
    and :math:`B` r columns. :math:`B` starts at zero: an untrained adapter changes nothing.

    Parameters
    ----------
    base : LanguageModel
        The model to adapt. It is not copied and never changed.
    rank : int, default 16
        r, at least 1.
    scale : float, default 32
        The paper's alpha, greater than 0.
    generator : torch.Generator
        Source of :math:`A`, normal with variance one over its number of columns.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Hu2022], section 4.1

    Examples
    --------
    >>> from thousand_fingers.language_model import Architecture
    >>> sizes = Architecture(vocabulary=300, width=24, layers=2, heads=2, kv_heads=1, hidden=64)
    >>> base = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    >>> adapted = LoraModel(base, rank=4, generator=torch.Generator().manual_seed(1))
    >>> tokens = torch.tensor([[5, 7, 2]])
    >>> torch.equal(adapted(tokens), base(tokens))
    True
    >>> sum(weight.numel() for weight in adapted.parameters())
    3456
    """

    def __init__(
        self, base: LanguageModel, *, rank: int = 16, scale: float = 32.0, generator: torch.Generator
    ) -> None:
        nn.Module.__init__(self)
        if not isinstance(base, LanguageModel):
            raise TypeError(f"base must be a LanguageModel, got {type(base).__name__}")
        rank = integer("rank", rank, at_least=1)
        self._factor = real_number("scale", scale, above=0) / rank
        torch_generator("generator", generator)
        self.architecture = base.architecture
        self._base = (base,)  # in a tuple, so that its weights are not among those that are trained
        self._names = [name for name, weight in base.blocks.named_parameters() if weight.dim() == 2]
        self.inner, self.outer = nn.ParameterList(), nn.ParameterList()
        for name in self._names:
            outputs, inputs = base.blocks.get_parameter(name).shape
            # drawn in float64 whatever the type: float32 draws depend on the machine
            drawn = torch.randn(rank, inputs, generator=generator, dtype=torch.float64) / inputs**0.5
            self.inner.append(drawn.to(base.tokens.dtype))
            self.outer.append(torch.zeros(outputs, rank, dtype=base.tokens.dtype))

    def forward(self, tokens: Tensor, cache: Cache | None = None, *, last_only: bool = False) -> Tensor:
        """Return the logits of every next token, as :meth:`LanguageModel.forward` does."""
        weights = {name: weight.detach() for name, weight in self._base[0].named_parameters()}
        weights |= {f"blocks.{name}": weight for name, weight in self._corrected().items()}
        logits: Tensor = functional_call(self._base[0], weights, (tokens, cache), {"last_only": last_only})
        return logits

    def merged(self) -> LanguageModel:
        """Return a copy of the base with the corrections added to its matrices: nothing left to be seen.

        Returns
        -------
        LanguageModel
            In evaluation mode, without gradients.
        """
        merged = copy.deepcopy(self._base[0])
        with torch.no_grad():
            for name, weight in self._corrected().items():
                merged.blocks.get_parameter(name).copy_(weight)
        return merged.requires_grad_(False).eval()

    def _corrected(self) -> dict[str, Tensor]:
        blocks = self._base[0].blocks
        return {
            name: torch.addmm(blocks.get_parameter(name).detach(), outer, inner, alpha=self._factor)
            for name, inner, outer in zip(self._names, self.inner, self.outer, strict=True)
        }
