"""What the names of a comparison mean, in a repository whose results are in git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from posttrain.errors import DataError, PipelineError, PosttrainError
from posttrain.pipeline.commands.line import parse, run
from posttrain.pipeline.compare.selection import selected


def git(*words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def experiment(name: str, old: str = "", new: str = "") -> None:
    """An experiment at HEAD, with another text in params.yaml."""
    head, params = git("rev-parse", "HEAD"), Path("params.yaml")
    params.write_text(params.read_text().replace(old, new, 1) if old else params.read_text())
    git("commit", "-qam", name, "--allow-empty")
    git("update-ref", f"refs/exps/{head[:2]}/{head[2:]}/{name}", git("rev-parse", "HEAD"))
    git("reset", "-q", "--hard", head)


@pytest.fixture(autouse=True)
def repository(finished: Path) -> None:
    git("init", "-q", "-b", "main")
    (finished / ".dvc").mkdir(exist_ok=True)
    (finished / ".dvc/config").write_text("[core]\n    analytics = false\n")
    (finished / "dvc.yaml").write_text("stages: {}\n")
    git("add", "-Af")
    git("commit", "-qm", "x")


def last_line(*words: str) -> str:
    return run(parse(["compare", *words, "--policy", "grpo"])).splitlines()[-1]


def test_the_only_name_is_compared_with_head_and_head_with_the_workspace() -> None:
    experiment("more", "algorithm: grpo", "algorithm: dr_grpo")
    for name, other in {"more": "HEAD", "workspace": "HEAD", "HEAD": "workspace"}.items():
        found = selected([name], "grpo", "sampled")
        assert sorted(one.name for one in found.policies) == sorted([name, other])
        assert found.notes == [f"{name} is compared with {other}, because it is the only name"]
    assert selected(["more", "HEAD"], "grpo", "sampled").notes == []
    assert selected(["grpo"], None, "sampled").notes == [], "a policy alone is shown alone"


def test_equal_results_are_said_to_be_the_same() -> None:
    experiment("kept")
    experiment("fewer")
    assert last_line("kept", "fewer") == "kept and fewer are the same result: their settings and scores are equal."
    assert last_line("kept") == "kept and HEAD are the same result: their settings and scores are equal."
    assert "kept and HEAD are the same" in run(parse(["compare", "kept"])), "without --policy too"


def test_a_head_without_results_is_noted() -> None:
    experiment("kept")
    git("rm", "-rq", "results/grpo")
    git("commit", "-qm", "y")
    found = selected(["kept"], "grpo", "sampled")
    assert [one.name for one in found.policies] == ["kept"]
    assert found.notes[0].startswith("kept is not compared with HEAD: results/grpo/rollouts.parquet is missing")


def test_one_experiment_next_to_two_policies_needs_a_policy() -> None:
    experiment("kept")
    with pytest.raises(PipelineError, match=r"the experiment has several policies.*Choose one with --policy"):
        selected(["sft", "grpo", "kept"], None, "sampled")


def test_unknown_policies_and_tasks_are_answered_with_the_known_ones_and_no_temporary_folder() -> None:
    experiment("kept")
    for names in (["kept", "HEAD"], ["sft", "grpo"], ["workspace"]):
        with pytest.raises(
            PosttrainError, match=r"evaluate has no policy 'grop'\. Did you mean 'grpo'\? Its policies: "
        ):
            selected(names, "grop", "sampled")
    with pytest.raises(DataError, match=r"^compare --task: kept: no prompt has the task 'nope'\. Its tasks: two_step$"):
        selected(["kept", "HEAD"], "grpo", "sampled", ["nope"])
    Path("results/grpo/rollouts.parquet").write_bytes(b"not a table")
    git("commit", "-qam", "z")
    with pytest.raises(PosttrainError) as raised:
        selected(["HEAD", "kept"], "grpo", "sampled")
    assert "/tmp" not in str(raised.value) and "results/grpo/rollouts.parquet" in str(raised.value)
