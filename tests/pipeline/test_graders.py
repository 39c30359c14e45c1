"""A grader changes, the run does not: scores are made again, and nothing is sampled or trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.compare.comparison import compare
from posttrain.pipeline.compare.selection import select
from posttrain.pipeline.compare.text import as_text
from posttrain.pipeline.lock.accept import accept
from posttrain.pipeline.lock.code_manifest import Library
from posttrain.pipeline.lock.graph import Pipeline
from posttrain.pipeline.lock.inputs import _Running
from posttrain.pipeline.lock.reasons import Reasons
from posttrain.pipeline.params.yaml_files import read_yaml
from tests.workspace import ROOT, dvc, git

LABELS = ("base", "sft", "dpo", "grpo")
SCORES = {f"evaluate@{label}" for label in LABELS}
COMPLETIONS = {f"completions@{label}" for label in LABELS}
OTHER = {
    "another reward": ("settings: {", "settings: {reward: {format: 1.0}, ", SCORES),
    "an option of a reward": ("settings: {", "settings: {reward: {correct: {after: Answer}}, ", SCORES),
    "more failures allowed": ("settings: {", "settings: {max_failed: 0.5, ", SCORES),
    "fewer samples": ("samples: 8", "samples: 4", SCORES | COMPLETIONS),
    "a longer completion": ("settings: {", "settings: {sampling: {max_tokens: 30}, ", SCORES | COMPLETIONS),
    "another reference": ("reference: sft/main", "reference: none", SCORES | COMPLETIONS),
}


@pytest.fixture
def workspace(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(own_workspace)
    git(own_workspace, "add", "--all")
    git(own_workspace, "commit", "--quiet", "--message", "run")
    return own_workspace


def edit(before: str, after: str) -> None:
    """Edit the section `evaluate` of params.yaml."""
    head, found, rest = Path("params.yaml").read_text(encoding="utf-8").partition("evaluate:\n")
    assert before in rest
    Path("params.yaml").write_text(head + found + rest.replace(before, after, 1), encoding="utf-8")


@pytest.mark.parametrize("change", OTHER)
def test_what_a_change_of_an_evaluation_runs_again(workspace: Path, change: str) -> None:
    before, after, stale = OTHER[change]
    edit(before, after)
    reasons = Reasons()
    assert {name for name in reasons.pipeline.stages if reasons.changes(name)} - {"report"} == stale
    assert all("evaluate.settings" in " ".join(reasons.of(name)) for name in SCORES)


def test_a_change_of_settings_of_completions_is_no_change_of_code_that_could_be_accepted(workspace: Path) -> None:
    edit("samples: 8", "samples: 4")
    done = dvc(workspace, "repro", "--quiet", "--single-item", "code")
    assert done.returncode == 0, done.stdout
    with pytest.raises(PipelineError, match="something other than its code changed: samples 8 -> 4"):
        accept(["completions@sft"], "the same")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [("samples: 8", "samples: 4", "samples 8 -> 4"), ("none, p", "none, reward: {format: 1.0}, p", "")],
)
def test_settings_that_change_while_completions_are_sampled(
    workspace: Path, before: str, after: str, said: str
) -> None:
    """They stand in code/, so that DVC itself would not notice."""
    running = _Running(Pipeline().declared("completions@sft"))
    running.confirm()
    edit(before, after)
    if not said:
        running.confirm()
        return
    with pytest.raises(PipelineError, match=f"{said} while completions@sft was running"):
        running.confirm()


def test_another_reward_scores_the_same_completions(workspace: Path) -> None:
    old = {file: file.read_bytes() for file in Path("completions").rglob("*.*")}
    edit("settings: {", "settings: {reward: {correct: 1.0, format: 0.5}, ")
    done = dvc(workspace, "repro", "--no-run-cache", "evaluate@grpo")
    assert done.returncode == 0, done.stdout
    assert "Running stage 'evaluate@grpo'" in done.stdout and "Running stage 'completions" not in done.stdout
    assert {file: file.read_bytes() for file in Path("completions").rglob("*.*")} == old
    kl = {key: json.loads(Path("completions/grpo/measured.json").read_text())[key] for key in ("kl_k1", "kl_k3")}
    metrics = json.loads(Path("results/grpo/metrics.json").read_text())
    assert {key: metrics[key] for key in kl} == pytest.approx(kl, rel=1e-4), "measured with the weights, once"

    found = compare(select(["HEAD", "workspace"], "grpo", "sampled", (), None))
    (moved,) = found.moved
    assert moved.shared == 120 * 9 and moved.rows and all(row.left != row.right for row in moved.rows)
    said = as_text(found, "sampled")
    assert "the same completions, scored differently" in said
    assert f"of {moved.shared:,} completions that workspace and HEAD share have another score" in said
    assert said.endswith(
        "All have the same completions, so a difference comes from the scoring, not from the settings."
    )


def test_text_that_is_not_stored_is_sampled_when_it_is_scored(workspace: Path) -> None:
    edit("settings: {", "settings: {completions: none, ")
    done = dvc(workspace, "repro", "evaluate@sft")
    assert done.returncode == 0, done.stdout
    assert [file.name for file in Path("completions/sft").iterdir()] == ["measured.json"]
    metrics = json.loads(Path("results/sft/metrics.json").read_text())
    git(workspace, "stash", "--quiet")
    kept = git(workspace, "show", "HEAD:report/headline.json")
    assert metrics["score"] == json.loads(kept)["sft"], "the same completions as those that were stored"


@pytest.mark.parametrize("stage", ["data_tasks@two_step", "base_scratch@tiny", "sft@main", *sorted(COMPLETIONS)])
def test_what_no_grader_makes_does_not_depend_on_its_code(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = Library().code(stage, read_yaml("params.yaml"))["files"]
    graders = ("posttrain/answers/", "posttrain/rewards/correct", "posttrain/rewards/answer_kinds/")
    assert not [file for file in files if file.startswith(graders)]
