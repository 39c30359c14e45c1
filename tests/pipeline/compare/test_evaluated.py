"""Evaluated policies: their scores, settings and weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posttrain.errors import DataError
from posttrain.files import file_digest
from posttrain.pipeline.compare.evaluated import as_rollouts, check_same_prompts, evaluated_policy, scores
from posttrain.pipeline.compare.paired import prompt_scores
from posttrain.pipeline.outside.evaluators import documents_table
from tests.pipeline.compare.test_paired import rollouts

SETTINGS = {"sft": {"runs": {"a": {"lr": 1}}}, "evaluate": {"policies": {"x": "sft/a"}}}


def test_an_evaluated_policy(tmp_path: Path) -> None:
    manifest = tmp_path / "models/sft/a/manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    (tmp_path / "plots/sft").mkdir(parents=True)
    (tmp_path / "plots/sft/a.csv").write_text("step\n1\n")
    found = evaluated_policy(tmp_path, "n", "x", "sft/a", rollouts(1.0, None), SETTINGS, "sampled")
    assert found.prompts == ("p0", "p1") and found.known_scores.tolist() == [1.0] and np.isnan(found.scores_P[1])
    assert found.run_settings == {"lr": "1"} and found.section == "sft.runs.a" and found.curve == {"step": [1.0]}
    assert found.trained == file_digest(manifest) and found.parsed is True and found.seconds is None
    other = evaluated_policy(tmp_path / "none", "m", "x", "sft/a", rollouts(1.0), SETTINGS, "sampled")
    assert other.trained == "" and other.curve == {}
    assert scores([found, found]).shape == (2, 2)
    check_same_prompts([found, found])
    with pytest.raises(DataError, match=r"m and n were evaluated on different prompts \(1 in common\)"):
        check_same_prompts([found, other])


def test_documents_as_rollouts() -> None:
    row = {"task": "t", "doc": 1, "filter": "f", "prompt": "p", "target": "x", "response": "r", "read": "x"}
    table = documents_table([{**row, "scores": {"acc": 1.0}}, {**row, "filter": "g", "scores": {"acc": 0.0}}])
    found = as_rollouts(table)
    assert set(found["greedy"]) == {False, True}
    assert prompt_scores(found, "sampled").rows() == [("t/1", 0.5)] == prompt_scores(found, "greedy").rows()
    assert set(found["status"]) == {"ok"}
