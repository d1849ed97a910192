"""Chapter 10's detector beside transformers and beside the shuffle itself: same lists, same verdicts? how fast?

    python benchmarks/watermark_text.py            a thousand tokens of documentation, ten runs
    python benchmarks/watermark_text.py --quick    two runs

"Recomputed" is the detector as it was published: the whole vocabulary is shuffled again for every pair of
neighbours. "Cached" shuffles once for each different previous token. Ours follows the tokens through the
shuffle without making it; the hash is another scheme, with other lists. First all of them must count the same
green tokens (the hash: as many as one token at a time). transformers is left out, and said so, where it is not
installed. Times are CPU seconds of one thread; look at the ratios.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from thousand_fingers.language_model import load_smollm2
from thousand_fingers.texts import load_paragraphs
from thousand_fingers.watermark.text import Detection, Mark, detect, green_list, is_green

VOCABULARY, LENGTH = 49_152, 1_000
FASTER, HASH_FASTER = 5, 100


def pairs(tokens: list[int]) -> list[tuple[int, int]]:
    """Return the different pairs of neighbours, in order."""
    return list(dict.fromkeys(itertools.pairwise(tokens)))


def recomputed(tokens: list[int], mark: Mark) -> int:
    return sum(token in green_list(mark, previous) for previous, token in pairs(tokens))


def cached(tokens: list[int], mark: Mark) -> int:
    masks: dict[int, np.ndarray] = {}
    hits = 0
    for previous, token in pairs(tokens):
        if previous not in masks:
            masks[previous] = np.zeros(mark.vocabulary, dtype=bool)
            masks[previous][green_list(mark, previous)] = True
        hits += int(masks[previous][token])
    return hits


def timed(work: Callable[[], object], runs: int) -> float:
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def beside_transformers(tokens: list[int], mark: Mark, ours: Detection) -> tuple[bool, Callable[[], object]]:
    """Compare lists and verdict; return whether all agree, and their detector, ready to run."""
    from transformers import PretrainedConfig, WatermarkDetector, WatermarkingConfig, WatermarkLogitsProcessor

    settings = {"greenlist_ratio": mark.green_fraction, "hashing_key": mark.key, "seeding_scheme": "lefthash"}
    processor = WatermarkLogitsProcessor(mark.vocabulary, "cpu", bias=mark.logit_bias, **settings)
    lists = all(
        processor._get_greenlist_ids(torch.tensor([previous])).tolist() == green_list(mark, previous).tolist()
        for previous in tokens[:50]
    )
    model = PretrainedConfig(vocab_size=mark.vocabulary, bos_token_id=1)
    config = WatermarkingConfig(bias=mark.logit_bias, context_width=1, **settings)
    detector = WatermarkDetector(model, "cpu", config, ignore_repeated_ngrams=True)
    ids = torch.tensor([tokens])
    verdict = detector(ids, z_threshold=4.0, return_dict=True)
    counted = int(verdict.num_green_tokens[0]), int(verdict.num_tokens_scored[0])
    same = counted == (ours.hits, ours.scored) and abs(float(verdict.z_score[0]) - ours.z) < 1e-6
    same &= bool(verdict.prediction[0]) == ours.is_marked()
    print(f"transformers: lists equal {lists}, green and counted {counted}, same verdict {same}")
    return lists and same, lambda: detector(ids, z_threshold=4.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    runs = 2 if parser.parse_args().quick else 10
    torch.set_num_threads(1)
    _, tokenizer = load_smollm2()
    paragraphs = load_paragraphs().texts
    tokens = [token for text in paragraphs[:200] for token in tokenizer.encode(text).ids][:LENGTH]
    mark, hashed = Mark(VOCABULARY), Mark(VOCABULARY, scheme="hash")
    ours, theirs = detect(tokens, mark), recomputed(tokens, mark)
    print(f"{LENGTH} tokens, {ours.scored} different pairs, {len(set(tokens[:-1]))} different tokens before")
    equal = ours.hits == theirs == cached(tokens, mark)
    singly = sum(int(is_green(hashed, [previous], [token])[0]) for previous, token in pairs(tokens))
    equal &= detect(tokens, hashed).hits == singly == recomputed(tokens, hashed)
    print(f"same number of green tokens: {equal} ({ours.hits})")
    peers: dict[str, Callable[[], object]] = {
        "recomputed for every pair": lambda: recomputed(tokens, mark),
        "cached by previous token": lambda: cached(tokens, mark),
    }
    if importlib.util.find_spec("transformers") is None:
        print("transformers is not installed: left out")
    else:
        same, peers["transformers' detector"] = beside_transformers(tokens, mark, ours)
        equal &= same
    exact = timed(lambda: detect(tokens, mark), runs)
    hashing = timed(lambda: detect(tokens, hashed), 10 * runs)
    print(f"exact detector {1e3 * exact:.1f} ms, hash {1e3 * hashing:.2f} ms")
    ratios = {}
    for name, work in peers.items():
        seconds = timed(work, max(runs // 4, 1))
        ratios[name] = seconds / exact, seconds / hashing
        print(
            f"{name}: {1e3 * seconds:.0f} ms; exact {ratios[name][0]:.1f}x faster, hash {ratios[name][1]:.0f}x"
        )
    exact_ratio, hash_ratio = ratios["recomputed for every pair"]
    fast = exact_ratio >= FASTER and hash_ratio >= HASH_FASTER
    print(f"at least {FASTER}x and {HASH_FASTER}x faster than recomputing: {fast}")
    return int(not (equal and fast))


if __name__ == "__main__":
    sys.exit(main())
