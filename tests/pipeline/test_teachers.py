"""Two teachers of one run, and a teacher next to a reward, through `dvc repro`: what held-out prompts say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.pipeline.test_adapters import edit
from tests.workspace import dvc

ROLLOUT = {"rounds": 25, "prompts": 8, "group_size": 8, "minibatches": 2}
RUN = {"start": "sft/main", "data": "two_step/prompts", "demonstrations": "none", "reward_model": "none"}
RUNS: dict[str, dict[str, Any]] = {
    "two": {
        **RUN, "algorithm": "reverse_kl", "teacher": "reward/both", "weights": {"grpo": 0.7, "dpo": 0.3},
        "rollout": ROLLOUT, "optimizer": {"lr": 1e-3, "schedule": "linear"},
    },
    "rewarded": {
        **RUN, "algorithm": "grpo", "teacher": "preference/dpo", "teacher_coef": 0.5, "divergence": "reverse_kl",
        "kl": "none", "reward": {"correct": 1.0, "format": 0.2},
        "rollout": ROLLOUT, "optimizer": {"lr": 4e-4, "schedule": "linear"},
    },
}  # fmt: skip


def two_teachers(params: Any) -> None:
    """Make a set of the two best models of the smoke pipeline, and runs that learn from them."""
    params["reward"]["sets"] = {"both": {"first": "online/grpo", "second": "preference/dpo"}}
    params["distill"] = {"runs": RUNS}
    params["evaluate"]["policies"] |= {name: f"distill/{name}" for name in RUNS}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_student_of_two_teachers_and_one_with_a_reward_learn(own_workspace: Path) -> None:
    edit(own_workspace, two_teachers)
    done = dvc(own_workspace, "repro", *(f"evaluate@{name}" for name in RUNS))
    assert done.returncode == 0, done.stdout
    score = {
        name: json.loads((own_workspace / f"results/{name}/metrics.json").read_text())["score"]
        for name in ("sft", *RUNS)
    }
    for name in RUNS:
        divergence = pl.read_csv(own_workspace / f"plots/distill/{name}.csv")["teacher_kl"]
        assert score[name] > score["sft"] + 0.05, score
        assert float(divergence.tail(5).mean()) < 0.8 * float(divergence.head(5).mean()), (name, divergence)  # type: ignore[arg-type]
    metrics = json.loads((own_workspace / "metrics/distill/rewarded.json").read_text())
    assert {"reward", "teacher_kl"} <= metrics.keys()
