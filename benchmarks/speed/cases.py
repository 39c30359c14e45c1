"""How much of each workload is measured: `WORKLOAD/MODEL` next to TRL and the bound, `WORKLOAD/CHANGE` for scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.speed.case import SHAPES, Case

T, S = SHAPES["T"], SHAPES["S"]
WORKLOADS = ("sft", "reward", "dpo", "grpo", "rloo")

ONLINE_T = Case(T, batch=32, longest=64, updates=16, warm=2)
ONLINE_S = Case(S, batch=16, longest=64, updates=2, warm=0, longest_answer=128)

COMPARED: dict[str, Case] = {
    "sft/T": Case(T, batch=8, longest=512, updates=8, warm=2),
    "sft/S": Case(S, batch=8, longest=512, updates=3),
    "reward/T": Case(T, batch=8, longest=320, updates=8, warm=2),
    "reward/S": Case(S, batch=8, longest=320, updates=1),
    "dpo/T": Case(T, batch=8, longest=320, updates=6, warm=2),
    "dpo/S": Case(S, batch=8, longest=320, updates=1),
    "grpo/T": ONLINE_T,
    "grpo/S": ONLINE_S,
    "rloo/T": ONLINE_T,
    "rloo/S": ONLINE_S,
    "sft/control": Case(SHAPES["control"], batch=8, longest=256, updates=1, padding=1.0, prompt_share=0.0),
}
"""The control has nothing to save: no padding, a small vocabulary, every token scored."""

TINY: dict[str, Case] = {
    f"{name}/tiny": Case(SHAPES["tiny"], batch=4, longest=24, updates=2, warm=0, group=2, longest_answer=6)
    for name in WORKLOADS
} | {"sft/tiny-qwen3": Case(SHAPES["tiny-qwen3"], batch=4, longest=24, updates=2, warm=0)}

_Q = Case(SHAPES["Q"], batch=16, longest=2048, updates=10, warm=3, warm_longest=2048, device="cuda")
_8B = replace(_Q, shape=SHAPES["8B"], updates=2, warm=1)

GPU: dict[str, Case] = {
    "sft/Q": _Q,
    "dpo/Q": replace(_Q, longest=1024, warm_longest=1024),
    "grpo/Q": replace(_Q, batch=64, longest=256, warm_longest=256, updates=2, warm=2, longest_answer=512),
    "grpo/Q-rounds": replace(_Q, batch=64, longest=256, warm_longest=256, updates=8, warm=2, longest_answer=512),
    "sft/Q-32k": replace(_Q, batch=1, longest=32_768, warm_longest=32_768, updates=2, warm=1, padding=1.0),
    "sft/8B": _8B,
    "dpo/8B": replace(_8B, batch=8, longest=1024, warm_longest=1024),
}
"""Steps of about 16,000 tokens, four rounds of GRPO instead of one; one row of 32,768 tokens."""


def _changed(base: Case, **changes: Any) -> Case:
    shape = {name: value for name, value in changes.items() if hasattr(base.shape, name)}
    return replace(base.with_shape(**shape), **{k: v for k, v in changes.items() if k not in shape})


_SFT = Case(T, batch=8, longest=256, updates=4, warm=1)
_GRPO = Case(T, batch=32, longest=64, updates=4, warm=2)

SCALING: dict[str, dict[str, Case]] = {
    "longest row (SFT, T, a batch of 4)": {
        f"sft/longest-{n}": _changed(_SFT, batch=4, longest=n) for n in (256, 512, 1024, 2048)
    },
    "vocabulary (SFT, S)": {
        f"sft/vocabulary-{n}": _changed(COMPARED["sft/S"], updates=1, longest=256, vocabulary=n)
        for n in (8_000, 32_000, 152_000)
    },
    "rows of a batch (SFT, T)": {f"sft/batch-{n}": _changed(_SFT, batch=n) for n in (4, 8, 16, 32)},
    "samples of a prompt (GRPO, T, 4 prompts)": {
        f"grpo/group-{n}": _changed(_GRPO, group=n, batch=4 * n) for n in (4, 8, 16, 32)
    },
}


def case_of(name: str) -> Case:
    """Return a case by its name."""
    scaled = {key: case for cases in SCALING.values() for key, case in cases.items()}
    return {**COMPARED, **TINY, **GPU, **scaled}[name]
