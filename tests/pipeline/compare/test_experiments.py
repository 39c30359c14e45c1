"""Experiments in git, and the files of one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.compare import experiments as module
from posttrain.pipeline.compare.experiments import (
    Experiment,
    commit,
    experiments,
    fetch,
    named,
    settings_of,
    unfinished,
)

LR = "online: {runs: {grpo: {lr: LR}}}\nevaluate: {policies: {grpo: online/grpo}}\n"


def git(*words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def committed(lr: str) -> str:
    Path("params.yaml").write_text(LR.replace("LR", lr))
    git("add", "-A")
    git("commit", "-qm", lr, "--allow-empty")
    return git("rev-parse", "HEAD")


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A repository with one commit, and two experiments of a sweep on it."""
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "main")
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    analytics = false\n")
    Path("results/grpo").mkdir(parents=True)
    Path("results/grpo/rollouts.parquet").write_text("rows")
    head = committed("1")
    for lr in ("2", "3"):
        git("update-ref", f"refs/exps/{head[:2]}/{head[2:]}/lr-{lr}", committed(lr))
        git("reset", "-q", "--hard", head)
    return head


def test_experiments_are_listed_by_name(repository: str) -> None:
    found = experiments()
    assert sorted(one.name for one in found) == ["lr-2", "lr-3"]
    assert {one.baseline for one in found} == {repository} and all(one.date > 0 for one in found)
    assert [one.name for one in named("lr-2", found)] == ["lr-2"]
    assert sorted(one.name for one in named("lr", found)) == ["lr-2", "lr-3"]
    assert named("other", found) == [] and named("lr-4", found) == []
    old = Experiment("lr-5", "c", "another commit", 1)
    assert sorted(one.name for one in named("lr", [*found, old])) == ["lr-2", "lr-3", "lr-5"], "of all commits"
    again, last = Experiment("lr-2", "c", "third", 1), Experiment("lr-5", "c", "third", 9)
    assert named("lr", [*found, old, again, last]) == [*found, last], "HEAD's, else the latest, counts"


def test_experiments_that_failed_are_known_by_their_logs(tmp_path: Path) -> None:
    (tmp_path / ".sweeps").mkdir()
    for name in ("lr-2.log", "lr-9.log", "lr-9.json", "other-1.log", "lr.lock"):
        (tmp_path / ".sweeps" / name).touch()
    assert unfinished("lr", experiments()) == ["lr-9"] and unfinished("none", experiments()) == []


def test_a_commit_is_an_experiment_on_itself(repository: str) -> None:
    (found,) = commit("main")
    assert (found.name, found.commit, found.baseline) == ("main", repository, repository) and found.date > 0
    assert commit("no-such-branch") == []
    assert found.weights == "git checkout main && dvc checkout" and found.checkout == "`git checkout main`"
    trial = Experiment("lr-2", "c", "b", 1)
    assert trial.weights == "dvc exp apply lr-2" and trial.checkout == "`dvc exp apply lr-2`"


def test_the_settings_of_an_experiment() -> None:
    (one,) = named("lr-3", experiments())
    assert settings_of(one) == {"online.runs.grpo.lr": "3", "evaluate.policies.grpo": "online/grpo"}
    assert module.read_settings(one)["online"] == {"runs": {"grpo": {"lr": 3}}}


def test_the_files_of_an_experiment_are_written(tmp_path: Path) -> None:
    (one,) = named("lr-3", experiments())
    into = tmp_path / "into"
    assert fetch(one, "grpo", into) == into
    assert (into / "params.yaml").read_text() == LR.replace("LR", "3")
    assert (into / "results/grpo/rollouts.parquet").read_text() == "rows"
    with pytest.raises(DataError, match=r"evaluate has no policy 'grop'\. Did you mean 'grpo'\? Its policies: grpo"):
        fetch(one, "grop", into)
    git("rm", "-rq", "results")
    git("commit", "-qm", "gone")
    with pytest.raises(DataError, match=r"results/grpo/rollouts\.parquet is missing"):
        fetch(commit("HEAD")[0], "grpo", into)
