"""What is tested with the second device needs it from the start; without it the one file that starts such a process.

A real GPU takes its place: then all files run there but those that need what only the second device counts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

STARTS = "test_second_device.py"
with_device = "tests.second_device.device" in sys.modules
COUNTED = (
    "test_counts.py",
    "test_faults.py",
    "test_flash.py",
    "test_layers.py",
    "test_offload.py",
    "test_waits.py",
    "test_ranks.py",
)
"""Its operators, its waits and its threads as ranks."""
with_gpu = not with_device and torch.cuda.is_available()
collect_ignore = [
    one.name
    for one in Path(__file__).parent.glob("test_*.py")
    if (one.name in (STARTS, *COUNTED) if with_gpu else (one.name == STARTS) == with_device)
]
