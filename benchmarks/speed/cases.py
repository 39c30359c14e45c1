"""How much of each workload is measured on each model."""

from __future__ import annotations

from benchmarks.speed.case import SHAPES, Case

T, S = SHAPES["T"], SHAPES["S"]

CASES: dict[str, dict[str, Case]] = {
    "sft": {
        "T": Case(T, batch=8, longest=512, updates=8, warm=2),
        "S": Case(S, batch=8, longest=512, updates=1),
    },
    "reward": {
        "T": Case(T, batch=8, longest=320, updates=8, warm=2),
        "S": Case(S, batch=8, longest=320, updates=1),
    },
    "dpo": {
        "T": Case(T, batch=8, longest=320, updates=6, warm=2),
        "S": Case(S, batch=8, longest=320, updates=1),
    },
    "grpo": {
        "T": Case(T, batch=32, longest=64, updates=8, warm=2),
        "S": Case(S, batch=16, longest=64, updates=2, warm=0, longest_answer=128),
    },
    "rloo": {
        "T": Case(T, batch=32, longest=64, updates=8, warm=2),
        "S": Case(S, batch=16, longest=64, updates=2, warm=0, longest_answer=128),
    },
}
