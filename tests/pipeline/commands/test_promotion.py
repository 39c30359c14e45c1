"""`posttrain promote` in a finished pipeline: git tags, refusals, and a model that comes back."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from posttrain.errors import DataError, ParamsError, PipelineError
from posttrain.pipeline.commands.promote.promotion import present, promote
from posttrain.pipeline.lock.digests import Digests
from tests.workspace import dvc, git

pytestmark = pytest.mark.slow


@pytest.fixture
def committed(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(own_workspace)
    git(Path(), "add", "params.yaml", "dvc.lock", "code")
    git(Path(), "commit", "--quiet", "--message", "run")
    return own_workspace


def message(tag: str) -> str:
    command = ["git", "for-each-ref", "--format=%(contents)", f"refs/tags/{tag}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_better_one_becomes_champion_and_no_other(committed: Path) -> None:
    assert promote("dpo", "champion").startswith("promoted/champion/1\n")
    metrics = json.loads((committed / "results/dpo/metrics.json").read_text())
    said = message("promoted/champion/1")
    assert f"score: {metrics['score']:.3f} [{metrics['score_low']:.3f}, {metrics['score_high']:.3f}]" in said
    assert f"digest: {Digests().of('models/preference/dpo')}" in said
    with pytest.raises(PipelineError, match="is promoted/champion/1 already"):
        promote("preference/dpo", "champion")
    with pytest.raises(
        PipelineError, match=r"not better than promoted/champion/1: worse, -0\.\d+ \[-0\.\d+, -0\.\d+\]"
    ):
        promote("sft", "champion")
    with pytest.raises(DataError, match="no answer can be read"):
        promote("base", "champion")
    promote("online/grpo", "champion")
    assert "against: promoted/champion/1, better by +0." in message("promoted/champion/2")
    promote("sft", "champion", "half the\nsize")
    forced = message("promoted/champion/3")
    assert "not better: -0." in forced and "forced: half the size" in forced
    now = present("champion")
    assert now is not None and (now.number, now.policy) == (3, "sft") and present("other") is None


def test_a_champion_of_an_older_commit_is_the_one_that_counts(committed: Path) -> None:
    """Its label names another model now, and its own files are in DVC's cache alone."""
    promote("grpo", "champion")
    params = committed / "params.yaml"
    params.write_text(params.read_text().replace("grpo: online/grpo", "grpo: sft/main"))
    git(Path(), "commit", "--quiet", "--all", "--message", "another")
    now = present("champion")
    assert now is not None and now.policy == "grpo"
    with pytest.raises(PipelineError, match="not better than promoted"):
        promote("dpo", "champion")
    shutil.rmtree(committed / ".dvc/cache")
    with pytest.raises(DataError, match=r"rollouts\.parquet is missing"):
        promote("dpo", "champion")
    promote("dpo", "champion", "the champion is lost")
    assert "against: promoted/champion/1, not compared" in message("promoted/champion/2")


def test_a_score_that_means_something_else_is_not_compared(committed: Path) -> None:
    promote("sft", "champion")
    params = committed / "params.yaml"
    params.write_text(params.read_text().replace("prompts: 120,", "prompts: 120, reward: {correct: 1.0, format: 0.2},"))
    done = dvc(committed, "repro", "evaluate@grpo")
    assert done.returncode == 0, done.stdout
    git(Path(), "commit", "--quiet", "--all", "--message", "another reward")
    said = r"evaluated with reward\.correct 1\.0 \(was default\), reward\.format 0\.2 \(was default\)"
    with pytest.raises(PipelineError, match=said):
        promote("grpo", "champion")
    promote("grpo", "champion", "the form counts now")
    assert "not compared (its score has another meaning than that of promoted/champion/1" in message(
        "promoted/champion/2"
    )


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
    assert "guards: format not tested, as sft is the reference itself" in message("promoted/champion/1")
    with pytest.raises(PipelineError, match=r"format fell from 0\.\d+ in promoted/champion/1 to"):
        promote("base", "champion")
    promote("base", "other", "form does not matter")
    assert "guard: format fell from" in message("promoted/other/1")


def test_what_cannot_be_promoted_is_refused_and_leaves_no_tag(committed: Path) -> None:
    for name, title, force in (("grop", "champion", None), ("grpo", "a b", None), ("grpo", "champion", " ")):
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
    assert subprocess.run(["git", "tag", "--list"], capture_output=True, check=True).stdout == b""


def test_a_tag_that_promote_has_not_made(committed: Path) -> None:
    git(Path(), "tag", "promoted/champion/7")
    with pytest.raises(PipelineError, match="its message names no policy and no digest"):
        promote("grpo", "champion")
