"""Membership scores of many texts: at once, beside text by text; and logits in pieces, beside all at once.

    python benchmarks/error_zone.py            2,000 texts of 64 tokens
    python benchmarks/error_zone.py --quick    200 of them

The published program of the error-zone score walks through the texts in a Python loop; the loop here is such
a one, written anew, with the published rule for its edge cases. Both have to give equal scores. Reading a
model in pieces has to give what all logits at once give, and its share of their memory is printed. Times are
CPU seconds of one thread, and what counts is their ratio.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from thousand_fingers.error_zone import TokenStatistics, ez_scores, token_statistics
from thousand_fingers.language_model import Architecture, LanguageModel

VOCABULARY, LENGTH, AT_ONCE = 4096, 64, 2**20


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def loop(target: TokenStatistics, reference: TokenStatistics) -> list[float]:
    scores = []
    for row in range(len(target)):
        gain = loss = errors = 0.0
        for j in range(target.log_probabilities.shape[1]):
            value = target.log_probabilities[row, j]
            if math.isnan(value) or target.correct[row, j]:
                continue
            errors += 1
            d = value - reference.log_probabilities[row, j]
            gain, loss = gain + max(d, 0.0), loss + max(-d, 0.0)
        scores.append(1.0 if not errors else 0.5 if gain + loss == 0 else gain / (gain + loss))
    return scores


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    n = 200 if parser.parse_args().quick else 2000
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    both = [
        TokenStatistics(-rng.exponential(size=(n, LENGTH)), rng.random((n, LENGTH)) < 0.4) for _ in range(2)
    ]
    slow, theirs = timed(lambda: loop(*both))
    fast, ours = timed(lambda: ez_scores(*both))
    equal = np.allclose(ours, theirs, atol=1e-12)
    print(f"scores of {n} texts: equal {equal}, loop / at once = {slow / max(fast, 1e-6):.0f}")

    sizes = Architecture(vocabulary=VOCABULARY, width=32, layers=1, heads=2, kv_heads=1, hidden=64)
    model = LanguageModel(sizes, generator=torch.Generator().manual_seed(0))
    table = torch.from_numpy(rng.integers(VOCABULARY, size=(64, LENGTH + 1)))
    whole = len(table) * LENGTH * VOCABULARY
    in_one, wanted = timed(lambda: token_statistics(model, table, logits_at_once=whole))
    in_pieces, found = timed(lambda: token_statistics(model, table, logits_at_once=AT_ONCE))
    alike = np.allclose(found.log_probabilities, wanted.log_probabilities, atol=1e-10)
    print(
        f"reading 64 texts: equal {alike}, logits held {AT_ONCE / whole:.1%}, "
        f"time in pieces / all at once = {in_pieces / in_one:.2f}"
    )
    return 0 if equal and alike else 1


if __name__ == "__main__":
    sys.exit(main())
