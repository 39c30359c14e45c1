"""Rollouts of TRL and prime-rl through a real `dvc repro`: explained, shown and learned from."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.library.models.imported_models import policy_folder
from tests.pipeline.test_adapters import edit
from tests.pipeline.test_external import ran
from tests.pipeline.test_own_data import write_rows
from tests.workspace import make_workspace, run, stage

THEIRS = """
data:
  files:
    mine: {path: my/data, prompts: prompts.jsonl}
base:
  folders:
    start: {path: my/model}
external:
  rollouts:
    trl: {command: "cp -r my/trl/. {out}", script: my/trl, format: trl, rewards: {brief: 0.5, right: 1.0}, start: none,
          data: none}
    prime: {command: [cp, -r, my/prime_rl, "{out}"], script: my/prime_rl, format: prime_rl, start: base/start,
            data: none}
offline:
  runs:
    again: {algorithm: grpo, start: base/start, data: external/prime, correction: truncate, groups: 1}
evaluate:
  settings: {data: mine/prompts, reference: base/start, reward_model: none, prompts: 6, samples: 2,
             sampling: {max_tokens: 8}}
  policies: {start: base/start}
"""


@pytest.mark.slow
def test_rollouts_of_others_are_explained_shown_and_learned_from(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(THEIRS, encoding="utf-8")
    made = make_workspace(tmp_path / "clone", tmp_path / "params.yaml")
    write_rows(made / "my/data")
    policy_folder(made / "my/model")
    for name in ("trl", "prime_rl"):
        shutil.copytree(Path(__file__).parent / "others" / name, made / "my" / name)
    checked = run(made, sys.executable, "-m", "posttrain", "check")
    assert checked.returncode == 0, checked.stdout
    assert "offline@again" in ran(made, "external_rollouts@trl", "report")
    metrics = json.loads((made / "metrics/external/trl.json").read_text(encoding="utf-8"))
    rows = pl.read_parquet(made / "rollouts/external/trl/*.parquet")
    assert metrics["reward"] == pytest.approx(rows.group_by("step").agg(pl.col("reward").mean())["reward"].mean())
    assert "external/trl" in (made / "report/report.html").read_text(encoding="utf-8")
    assert "reward,external/trl,1," in (made / "report/curves.csv").read_text(encoding="utf-8")
    explained = run(made, sys.executable, "-m", "posttrain", "why", "external/trl.reward").stdout
    assert "my/trl" in explained and "training rollouts" in explained and "computed again" in explained, explained
    row = run(made, sys.executable, "-m", "posttrain", "why", str(rows["id"][0])).stdout
    assert "scores: brief 0.0625 ok, right 0 ok" in row and "cp -r my/trl/. {out}" in row, row
    assert ran(made, "external_rollouts@trl") == []
    curve = pl.read_csv(made / "plots/offline/again.csv")
    assert curve.height == 2 and curve["grad_norm"].max() > 0, "of the tokens that prime-rl stored"
    edit(made, lambda params: params["offline"]["runs"]["again"].update(data="external/trl"))
    refused = stage(made, "offline", "again")
    assert refused.returncode == 1 and "these were stored with rollouts: without tokens" in refused.stdout
