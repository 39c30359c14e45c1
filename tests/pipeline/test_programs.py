"""Learning from tests of programs: GRPO with the reward `code` improves on SFT, over three seeds."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev

import pytest

from tests.workspace import ROOT, dvc, make_workspace

SEEDS = (1, 2, 3)
T_95 = 4.303
"""Student's t for 95 % with two degrees of freedom."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_grpo_learns_to_write_programs_from_their_tests(tmp_path: Path) -> None:
    recipe = (ROOT / "recipes" / "programs.yaml").read_text(encoding="utf-8")
    gains = []
    for seed in SEEDS:
        params = tmp_path / f"{seed}.yaml"
        params.write_text(recipe.replace("\nseed: 0\n", f"\nseed: {seed}\n"), encoding="utf-8")
        workspace = make_workspace(tmp_path / str(seed), params)
        done = dvc(workspace, "repro")
        assert done.returncode == 0, done.stdout[-3000:]
        scores = {
            name: json.loads((workspace / f"results/{name}/metrics.json").read_text(encoding="utf-8"))["score"]
            for name in ("sft", "grpo")
        }
        gains.append(scores["grpo"] - scores["sft"])
        record = json.loads((workspace / "records/online/grpo.json").read_text(encoding="utf-8"))
        assert "seccomp" in record["sandbox"]
    low = mean(gains) - T_95 * stdev(gains) / len(gains) ** 0.5
    print(f"gains in pass@1: {', '.join(f'{one:+.3f}' for one in gains)}; mean {mean(gains):+.3f}, from {low:+.3f}")
    assert low > 0
