"""A sweep's experiments of earlier commits count if they mean the same, and else a note says why and what to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from posttrain.pipeline.compare.belonging import Belonging
from posttrain.pipeline.compare.earlier import changed_files, reference, remade, since, sorted_out, why_again
from posttrain.pipeline.compare.experiments import Experiment, experiments, named, settings_of
from posttrain.pipeline.lock.code_digest import outlined

PARAMS = "online: {runs: {grpo: {lr: 1, kl: 0, seed: 0}, other: {lr: 1}}}\n"
SAME = Belonging({"online: custom/a.py": "1"}, (), ("online.runs.grpo",), {"my/data": "x"})


def git(*words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def committed(**files: str) -> str:
    for name, text in files.items():
        Path(name.replace("__", "/").replace("_yaml", ".yaml").replace("_md", ".md")).write_text(text)
    git("add", "-A")
    git("commit", "-qm", "x", "--allow-empty")
    return git("rev-parse", "HEAD")


def ran(lr: str, seed: str) -> None:
    """An experiment at HEAD."""
    head, text = git("rev-parse", "HEAD"), Path("params.yaml").read_text()
    made = committed(params_yaml=text.replace("{lr: 1, kl", f"{{lr: {lr}, kl").replace("seed: 0", f"seed: {seed}"))
    git("update-ref", f"refs/exps/{head[:2]}/{head[2:]}/s-lr{lr}-seed{seed}", made)
    git("reset", "-q", "--hard", head)


@pytest.fixture(autouse=True)
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A sweep with seed 1 at a first commit."""
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "main")
    Path("custom").mkdir()
    Path("sweeps").mkdir()
    first = committed(params_yaml=PARAMS, custom__a="f", sweeps__s_yaml="seeds: [1]\n")
    for lr in "12":
        ran(lr, "1")
    return first


def found(**known: Belonging | str) -> tuple[list[str], list[str]]:
    whole = named("s", experiments())
    given = {one.name: known.get("late" if one.baseline == reference(whole) else "early", SAME) for one in whole}
    return sorted_out("s", whole, given)


def test_another_seed_after_a_commit_that_changes_nothing_adds_to_the_sweep(swept: str) -> None:
    committed(README_md="read", sweeps__s_yaml="seeds: [1, 2]\n")
    for lr in "12":
        ran(lr, "2")
    names, (note,) = found()
    assert sorted(names) == ["s-lr1-seed1", "s-lr1-seed2", "s-lr2-seed1", "s-lr2-seed2"]
    expected = f"s: 2 of 4 experiments ran at another commit ({swept[:7]}). Their code, data and settings are the same"
    assert note == expected


def test_experiments_of_one_commit_need_no_note() -> None:
    assert found() == (["s-lr1-seed1", "s-lr2-seed1"], [])


@pytest.mark.parametrize(
    ("early", "why"),
    [
        (Belonging({"online: custom/a.py": "2"}, (), ("online.runs.grpo",), {"my/data": "x"}), "custom/a.py changed"),
        (Belonging(SAME.code, (), SAME.params, {"my/data": "y"}), "my/data changed"),
        ("results/grpo/rollouts.parquet is missing", "results/grpo/rollouts.parquet is missing"),
    ],
)
def test_other_code_other_data_and_no_results_are_left_out_with_a_note(
    swept: str, early: Belonging | str, why: str
) -> None:
    committed()
    ran("1", "2")
    names, (note,) = found(early=early)
    assert names == ["s-lr1-seed2"]
    again = "To run them again: `posttrain sweep s --seeds 1`"
    assert note == f"s: left out 2 experiments of commit {swept[:7]}, because {why}. {again}"


def test_other_settings_of_the_compared_runs_are_left_out_and_those_of_another_run_are_not() -> None:
    committed(params_yaml=PARAMS.replace("other: {lr: 1}", "other: {lr: 3}"))
    ran("1", "2")
    assert len(found()[0]) == 3
    committed(params_yaml=PARAMS.replace("kl: 0", "kl: 1"))
    ran("1", "3")
    names, notes = found()
    assert names == ["s-lr1-seed3"] and len(notes) == 2
    assert all("because online.runs.grpo.kl changed from 0 to 1. To run " in note for note in notes)


def test_without_records_the_files_of_the_commits_decide(swept: str) -> None:
    unknown = Belonging(unverified=("online@grpo",))
    committed(README_md="read")
    ran("1", "2")
    assert len(found(early=unknown, late=unknown)[0]) == 3
    committed(custom__a="g")
    ran("1", "3")
    names, notes = found(early=unknown, late=unknown)
    assert names == ["s-lr1-seed3"] and "custom/a changed" in notes[0]
    assert changed_files(swept, "HEAD") == ["custom/a"], "README.md and sweeps/ change no training"


def test_the_same_experiment_at_two_commits_counts_once_and_head_decides(swept: str) -> None:
    head = committed()
    ran("2", "1")
    whole = named("s", experiments())
    assert {one.name: one.baseline for one in whole} == {"s-lr1-seed1": swept, "s-lr2-seed1": head}
    assert reference(whole) == head
    assert reference([Experiment("a", "c", "x", 1), Experiment("b", "c", "y", 2)]) == "y", "else the latest"


LOCKED = """schema: '2.0'
stages:
  base:
    cmd: make
    deps: [{path: code/base.json, md5: CODE}]
    outs: [{path: models/base/tiny, md5: BYTES}, {path: records/base.json, md5: BYTES}]
"""


def test_a_start_model_with_other_bytes_from_the_same_inputs_is_a_change() -> None:
    old = committed(**{"dvc.lock": LOCKED})
    ran("1", "2")
    same = committed(README_md="read")
    assert remade(old, same) == []
    other = committed(**{"dvc.lock": LOCKED.replace("BYTES", "other")})
    assert remade(old, other) == ["models/base/tiny"] and remade(old, same) == []
    again = committed(**{"dvc.lock": LOCKED.replace("BYTES", "other").replace("CODE", "more")})
    assert remade(old, again) == [], "other code, which the records have"
    git("reset", "-q", "--hard", other)
    one = next(one for one in experiments() if one.name == "s-lr1-seed2")
    assert why_again(one, settings_of(one), git("rev-parse", "HEAD")) == "models/base/tiny changed"
    ran("1", "3")
    assert any("because models/base/tiny changed" in note for note in found()[1])


def test_why_an_experiment_must_run_again() -> None:
    one = next(one for one in experiments() if one.name == "s-lr2-seed1")
    wanted = settings_of(one)
    committed(README_md="read")
    assert why_again(one, wanted, git("rev-parse", "HEAD")) == ""
    other = {**wanted, "online.runs.grpo.kl": "1"}
    assert why_again(one, other, git("rev-parse", "HEAD")) == "online.runs.grpo.kl changed from 0 to 1"
    assert why_again(one, other, one.baseline) == "online.runs.grpo.kl changed from 0 to 1"
    assert why_again(one, wanted, one.baseline) == ""
    committed(custom__a="g")
    assert why_again(one, wanted, git("rev-parse", "HEAD")) == "custom/a changed"


def test_a_workspace_that_differs_from_what_a_sweep_ran_with_is_noted() -> None:
    """A commit or an edit that changes a reward, a setting or data: the answers are about the old trainings."""
    Path("custom/a.py").write_text("a = 1\n")
    committed()
    ran("1", "5")
    digest = outlined(Path("custom/a.py"), "").digest
    facts = Belonging({"online: custom/a.py": digest}, (), ("online.runs.grpo",), {})
    whole = named("s", experiments())
    known = {one.name: facts for one in whole}
    assert since("s", whole, known) == []
    Path("custom/a.py").write_text("a = 1  # a comment\n")
    assert since("s", whole, known) == [], "a comment is no other code"
    Path("custom/a.py").write_text("a = 2\n")
    (note,) = since("s", whole, known)
    assert note.startswith("s ran before these changes: custom/a.py changed. The answers are about what it ran with.")
    committed(params_yaml=PARAMS.replace("kl: 0", "kl: 1"))
    (note,) = since("s", whole, known)
    assert "online.runs.grpo.kl changed from 0 to 1; custom/a.py changed" in note
    Path("custom/a.py").write_text("a = 1\n")
    committed(params_yaml=PARAMS.replace("seed: 0", "seed: 3"))
    assert since("s", whole, known) == [], "what the sweep varies has no value of its own"
    committed(params_yaml=PARAMS.replace("other: {lr: 1}", "other: {lr: 2}"))
    assert since("s", whole, known) == [], "a setting that the runs do not read"
