"""The tags of promotions in a small repository: names, numbers, versions, and who has a stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands.promote.registry import artifact_of, assign, holder, next_tag, require_stage
from tests.workspace import git


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    git(Path(), "init", "--quiet", "--initial-branch=main")
    git(Path(), "config", "user.name", "one")
    git(Path(), "config", "user.email", "one@localhost")
    commit()


def commit() -> None:
    git(Path(), "commit", "--quiet", "--allow-empty", "--message", "one")


def tags() -> list[str]:
    return git(Path(), "tag", "--list").split()


def now(stage: str) -> str | None:
    found = holder(stage)
    return None if found is None else found.tag


def test_versions_count_commits_and_stages_count_promotions() -> None:
    assert assign("grpo", "champion", ["a"]) == ("grpo#champion#1", "grpo@v0.0.1")
    assert assign("grpo", "fast", ["a"]) == ("grpo#fast#1", "grpo@v0.0.1")
    commit()
    assert assign("grpo", "champion", ["b"]) == ("grpo#champion#2", "grpo@v0.0.2")
    assert assign("dpo", "champion", ["c"]) == ("dpo#champion#3", "dpo@v0.0.1")
    assert (now("champion"), now("fast")) == ("dpo#champion#3", "grpo#fast#1")
    assert "grpo#champion!#3" in tags()


def test_a_stage_that_was_ended_has_no_holder() -> None:
    assign("grpo", "champion", ["a"])
    git(Path(), "tag", "-a", "-m", "no more", "grpo#champion!#2")
    assert now("champion") is None and next_tag("grpo", "champion") == "grpo#champion#3"


def test_tags_without_a_message_and_of_another_project_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    git(Path(), "tag", "grpo#champion#8")
    git(Path(), "tag", "v1.0")
    Path("sub").mkdir()
    monkeypatch.chdir("sub")
    assert artifact_of("grpo") == "sub:grpo"
    assert assign("sub:grpo", "champion", ["a"]) == ("sub=grpo#champion#1", "sub=grpo@v0.0.1")
    monkeypatch.chdir("..")
    assert now("champion") is None


def test_names_that_gto_does_not_read_are_refused() -> None:
    assert artifact_of("lr_1e-4") == "lr_1e-4"
    for name in ("grpo_", "grpo-"):
        with pytest.raises(ParamsError, match="does not allow the name"):
            artifact_of(name)
        with pytest.raises(ParamsError, match="not a valid name"):
            require_stage(name)
