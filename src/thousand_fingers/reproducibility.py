"""One switch for torch that a chapter throws in its first cell, in plain sight.

Sums over several threads, and kernels that race, change the last digits of a
training run; float32 then carries them into the first ones. The book trains its
small networks in float64, on one thread, with deterministic kernels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def use_deterministic_torch() -> None:
    """Set float64, one thread and deterministic algorithms for this process.

    Call it once, before the first tensor is made. It changes global settings
    of torch and is meant for notebooks and scripts; the library's functions
    never call it.
    """
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


@contextlib.contextmanager
def deterministic_torch() -> Iterator[None]:
    """Set what :func:`use_deterministic_torch` sets, and put everything back afterwards.

    Examples
    --------
    >>> before = torch.get_default_dtype()
    >>> with deterministic_torch():
    ...     torch.zeros(1).dtype
    torch.float64
    >>> torch.get_default_dtype() == before
    True
    """
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    use_deterministic_torch()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
