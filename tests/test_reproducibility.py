"""The switch for torch, tried in a process of its own: it changes global settings."""

import subprocess
import sys

PROGRAM = """
from thousand_fingers.reproducibility import use_deterministic_torch
use_deterministic_torch()
import torch
assert torch.are_deterministic_algorithms_enabled()
print(torch.zeros(1).dtype, torch.get_num_threads())
"""


def test_float64_one_thread_and_deterministic_kernels():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["torch.float64", "1"]
