"""The language model beside transformers: same logits, same greedy text? how fast to load and to read?

    python benchmarks/language_model.py            32 texts of 64 tokens
    python benchmarks/language_model.py --quick    4 of them

Both read the same GGUF file. transformers' own tokenizer for this file drops a pre-tokenizer, which tells
only where space stands before digits: both models are given the same token ids, and on how many
documentation paragraphs the tokenizers differ is printed.
A peer that is not installed is left out and said so. Times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from thousand_fingers.datasets import smollm2_path
from thousand_fingers.language_model import generate, load_smollm2
from thousand_fingers.texts import load_paragraphs

TOLERANCE = 2e-4


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    texts = 4 if parser.parse_args().quick else 32
    if importlib.util.find_spec("transformers") is None:
        print("transformers is not installed: nothing to compare with")
        return 0
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    path = smollm2_path()
    folder, name = str(path.parent), path.name
    our_load, (ours, tokenizer) = timed(load_smollm2)
    with contextlib.redirect_stderr(io.StringIO()):  # a bar that its own switch does not silence
        their_load, theirs = timed(
            lambda: AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
        )
    their_tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)

    paragraphs = load_paragraphs().texts
    differ = sum(tokenizer.encode(t).ids != their_tokenizer(t)["input_ids"] for t in paragraphs[:1000])
    print(f"tokenizers differ on {differ} of 1000 paragraphs")
    stream = [token for text in paragraphs[:1000] for token in tokenizer.encode(text).ids]
    tokens = torch.tensor(stream[: 64 * texts]).view(texts, 64)
    with torch.no_grad():
        ours(tokens[:1]), theirs(tokens[:1])  # warm up
        our_read, found = timed(lambda: ours(tokens))
        their_read, expected = timed(lambda: theirs(tokens).logits)
    worst = float((found - expected).abs().max())
    same_choice = bool((found.argmax(2) == expected.argmax(2)).all())
    prompt = tokens[:1, :16]
    our_write, new = timed(lambda: generate(ours, prompt.tolist(), max_new_tokens=48)[0])
    their_write, answer = timed(lambda: theirs.generate(prompt, max_new_tokens=48, do_sample=False))
    same_text = new[: len(answer[0]) - 16] == answer[0, 16:].tolist()
    print(
        f"largest difference of a logit {worst:.1e}, same first choices {same_choice}, same text {same_text}"
    )
    for what, us, them in (
        ("load", our_load, their_load),
        (f"read {texts} x 64 tokens", our_read, their_read),
        ("write 48 tokens", our_write, their_write),
    ):
        print(f"{what}: ours {us:.2f} s, transformers {them:.2f} s, ratio {them / us:.2f}")
    return int(not (worst < TOLERANCE and same_choice and same_text))


if __name__ == "__main__":
    sys.exit(main())
