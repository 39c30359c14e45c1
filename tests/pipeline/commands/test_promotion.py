"""`posttrain promote` in a finished pipeline: git tags, refusals, and a model that comes back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.errors import DataError, ParamsError, PipelineError
from posttrain.pipeline.commands.promote.promotion import present, promote
from posttrain.pipeline.lock.artifacts import require_artifact
from posttrain.pipeline.lock.digests import Digests
from tests.workspace import dvc, git, run

pytestmark = pytest.mark.slow
MODELS = {"base": "base/tiny", "sft": "sft/main", "dpo": "preference/dpo", "grpo": "online/grpo"}


@pytest.fixture
def committed(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(own_workspace)
    for name, model in MODELS.items():
        with pytest.raises(PipelineError, match="posttrain added this entry"):
            require_artifact(name, f"models/{model}")
    git(Path(), "add", "params.yaml", "dvc.lock", "dvc.yaml", "code")
    git(Path(), "commit", "--quiet", "--message", "run")
    return own_workspace


def message(tag: str) -> str:
    command = ["git", "for-each-ref", "--format=%(contents)", f"refs/tags/{tag}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_better_one_becomes_champion_and_no_other(committed: Path) -> None:
    assert promote("dpo", "champion").startswith("dpo#champion#1\nversion: dpo@v0.0.1\n")
    metrics = json.loads((committed / "results/dpo/metrics.json").read_text())
    said = message("dpo#champion#1")
    assert f"score: {metrics['score']:.3f} [{metrics['score_low']:.3f}, {metrics['score_high']:.3f}]" in said
    assert f"digest: {Digests().of('models/preference/dpo')}" in said
    with pytest.raises(PipelineError, match="is already dpo#champion#1"):
        promote("preference/dpo", "champion")
    with pytest.raises(PipelineError, match=r"not better than dpo#champion#1: worse, -0\.\d+ \[-0\.\d+, -0\.\d+\]"):
        promote("sft", "champion")
    with pytest.raises(DataError, match="no answer can be read"):
        promote("base", "champion")
    promote("online/grpo", "champion")
    assert "against: dpo#champion#1, better by +0." in message("grpo#champion#2")
    promote("sft", "champion", "half the\nsize")
    forced = message("sft#champion#3")
    assert "not better: -0." in forced and "forced: half the size" in forced
    now = present("champion")
    assert now is not None and (now.tag, now.policy) == ("sft#champion#3", "sft") and present("other") is None


def test_a_champion_of_an_older_commit_is_the_one_that_counts(committed: Path) -> None:
    """Its label names another model now, and its own files are in DVC's cache alone."""
    promote("grpo", "champion")
    params = committed / "params.yaml"
    params.write_text(params.read_text().replace("grpo: online/grpo", "grpo: sft/main"))
    git(Path(), "commit", "--quiet", "--all", "--message", "another")
    now = present("champion")
    assert now is not None and now.policy == "grpo"
    with pytest.raises(PipelineError, match="not better than grpo#champion#1"):
        promote("dpo", "champion")
    shutil.rmtree(committed / ".dvc/cache")
    with pytest.raises(DataError, match=r"rollouts\.parquet is missing"):
        promote("dpo", "champion")
    promote("dpo", "champion", "the champion is lost")
    assert "against: grpo#champion#1, not compared" in message("dpo#champion#2")


def test_a_score_that_means_something_else_is_not_compared(committed: Path) -> None:
    promote("sft", "champion")
    params = committed / "params.yaml"
    params.write_text(params.read_text().replace("prompts: 120,", "prompts: 120, reward: {correct: 1.0, format: 0.2},"))
    done = dvc(committed, "repro", "evaluate@grpo")
    assert done.returncode == 0, done.stdout
    git(Path(), "commit", "--quiet", "--all", "--message", "another reward")
    said = r"evaluated with reward\.format 0\.2 \(was default\)\."  # `correct: 1.0` is the default, written out
    with pytest.raises(PipelineError, match=said):
        promote("grpo", "champion")
    promote("grpo", "champion", "the form counts now")
    assert "not compared (its score cannot be compared with the score of sft#champion#1" in message("grpo#champion#2")


def test_a_guarded_metric_that_fell_against_the_reference_stops_the_promotion(committed: Path) -> None:
    """Also the first one of a name, which is compared with no champion."""
    params = committed / "params.yaml"
    params.write_text(params.read_text().replace("prompts: 120,", "prompts: 120, must_not_fall: [format],"))
    done = dvc(committed, "repro", "evaluate@sft", "evaluate@base")
    assert done.returncode == 0, done.stdout
    git(Path(), "commit", "--quiet", "--all", "--message", "a guard")
    with pytest.raises(PipelineError, match=r"format fell from 0\.\d+ in sft to 0\.\d+ in base \(-0\.\d+, 95 %"):
        promote("base", "champion")
    promote("sft", "champion")
    assert "guards: format not tested, as sft is the reference itself" in message("sft#champion#1")
    with pytest.raises(PipelineError, match=r"format fell from 0\.\d+ in sft#champion#1 to"):
        promote("base", "champion")
    promote("base", "other", "form does not matter")
    assert "guard: format fell from" in message("base#other#1")


def test_what_cannot_be_promoted_is_refused_and_leaves_no_tag(committed: Path) -> None:
    for name, title, force in (
        ("grop", "champion", None),
        ("grpo", "a b", None),
        ("grpo", "best_", None),
        ("grpo", "champion", " "),
    ):
        with pytest.raises(ParamsError):
            promote(name, title, force)
    lock = committed / "dvc.lock"
    lock.write_text(lock.read_text() + "\n")
    with pytest.raises(PipelineError, match=r"dvc\.lock not committed"):
        promote("grpo", "champion")
    git(Path(), "checkout", "--quiet", "--", "dvc.lock")
    Path("code/new.json").write_text("{}")
    with pytest.raises(PipelineError, match=r"neither in git nor in DVC's cache: code/new.json. git add code/new.json"):
        promote("grpo", "champion")
    Path("code/new.json").unlink()
    params = committed / "params.yaml"
    params.write_text(params.read_text().replace("epochs: 3.0", "epochs: 2.0"))
    with pytest.raises(DataError, match=r"its results are not current \(out of date: sft@main has to run again"):
        promote("grpo", "champion")
    assert tags() == []


def test_a_tag_that_promote_has_not_made(committed: Path) -> None:
    git(Path(), "tag", "promoted/champion/7")
    with pytest.raises(PipelineError, match="its message does not contain a policy and a digest"):
        promote("grpo", "champion")


def test_a_champion_with_a_tag_of_an_earlier_version_is_the_one_to_beat(committed: Path) -> None:
    promote("dpo", "champion")
    old = message("dpo#champion#1")
    git(Path(), "tag", "-d", "dpo#champion#1", "dpo@v0.0.1")
    git(Path(), "tag", "-a", "-m", old, "promoted/champion/4")
    with pytest.raises(PipelineError, match="not better than promoted/champion/4"):
        promote("sft", "champion")
    assert promote("grpo", "champion").startswith("grpo#champion#5\n")


def test_a_missing_entry_is_added_to_dvc_yaml_and_no_tag_is_made(committed: Path) -> None:
    git(Path(), "reset", "--quiet", "--soft", "HEAD~1")
    git(Path(), "checkout", "--quiet", "HEAD", "dvc.yaml")
    git(Path(), "commit", "--quiet", "--message", "without")
    before = Path("dvc.yaml").read_text()
    assert promote("grpo", "champion", does="show").startswith("would be grpo#champion#1\n")
    with pytest.raises(PipelineError, match=r"dvc.yaml: artifacts.grpo: posttrain added this entry"):
        promote("grpo", "champion")
    assert Path("dvc.yaml").read_text().startswith(before) and tags() == []
    with pytest.raises(PipelineError, match=r"dvc\.yaml not committed"):
        promote("grpo", "champion")
    git(Path(), "commit", "--quiet", "--all", "--message", "with")
    promote("grpo", "champion")
    assert tags() == ["grpo#champion#1", "grpo@v0.0.1"]


def test_another_folder_gets_the_model_by_name_and_stage(committed: Path, tmp_path: Path) -> None:
    """As a colleague does, by git and DVC alone. A second promotion moves the stage."""
    hub, remote = tmp_path / "hub.git", tmp_path / "remote"
    git(tmp_path, "clone", "--quiet", "--bare", str(committed), str(hub))
    git(Path(), "remote", "add", "origin", str(hub))
    assert dvc(committed, "remote", "add", "--default", "shared", str(remote)).returncode == 0
    git(Path(), "commit", "--quiet", "--all", "--message", "a remote")
    promote("dpo", "champion")
    promote("grpo", "champion")
    assert tags() == ["dpo#champion!#2", "dpo#champion#1", "dpo@v0.0.1", "grpo#champion#2", "grpo@v0.0.1"]
    pushed = dvc(committed, "push", "models/online/grpo")
    assert pushed.returncode == 0, pushed.stdout
    git(Path(), "push", "--quiet", "--follow-tags", "origin", "HEAD")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    for which in (["--stage", "champion"], ["--rev", "v0.0.1"]):
        done = dvc(elsewhere, "artifacts", "get", str(hub), "grpo", *which, "--out", which[0].strip("-"))
        assert done.returncode == 0, done.stdout
    for file in (committed / "models/online/grpo").iterdir():
        assert (elsewhere / "stage" / file.name).read_bytes() == file.read_bytes()
        assert (elsewhere / "rev" / file.name).read_bytes() == file.read_bytes()
    table = run(committed, "gto", "show", "--json")
    shown = json.loads(table.stdout)
    assert (shown["grpo"]["stage"]["champion"], shown["dpo"]["stage"]["champion"]) == ("v0.0.1", None), table.stdout


@pytest.mark.parametrize("at", ["refs/tags/grpo@v0.0.1", "refs/tags/grpo#champion#2", "refs/tags/dpo#champion!#2"])
def test_a_killed_promotion_is_completed_by_the_next_one(committed: Path, at: str) -> None:
    """git's own hook kills it when git is about to write a tag, or has written it."""
    promote("dpo", "champion")
    hooks = committed / "hooks"
    hooks.mkdir()
    hook = hooks / "reference-transaction"
    kill = "kill -9 $(ps -o ppid= -p $PPID)"
    hook.write_text(f"#!/bin/sh\n[ $1 = prepared ] && grep -qF '{at}' && {kill} && exit 1\nexit 0\n")
    hook.chmod(0o755)
    git(Path(), "config", "core.hooksPath", "hooks")
    killed = run(committed, sys.executable, "-m", "posttrain", "promote", "grpo", "--as", "champion")
    assert killed.returncode == -9, killed.stdout
    hook.unlink()
    now = present("champion")
    assert now is not None and now.tag == ("grpo#champion#2" if "!" in at else "dpo#champion#1")
    done = run(committed, sys.executable, "-m", "posttrain", "promote", "grpo", "--as", "champion")
    assert ("is already grpo#champion#2" if "!" in at else "grpo#champion#2\n") in done.stdout
    assert tags() == ["dpo#champion!#2", "dpo#champion#1", "dpo@v0.0.1", "grpo#champion#2", "grpo@v0.0.1"]


def tags() -> list[str]:
    return git(Path(), "tag", "--list").split()
