"""Runs name each other freely: five steps in a row, SFT + DPO alone, runs added, removed, renamed and merged."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML

from posttrain.pipeline.tables.store import check_disjoint, read_table
from posttrain.settings.plain import merge
from tests.workspace import ROOT, Finished, dvc, git, run, stage

ODD_STARTS = """
data:
  samples:
    scored: {policy: preference/kto, data: two_step/prompts, reward_model: reward/of_base, reward: {model: 1.0},
             prompts: 20, heldout_prompts: 10, samples: 2}
sft: {runs: {later: {start: preference/dpo, data: compared/chat, epochs: 0.1}}}
reward:
  runs:
    of_online: {start: online/a, data: compared/pairs, feedback: none, demonstrations: compared/chat, epochs: 0.1}
    of_base: {start: base/tiny, data: compared/pairs, feedback: none, demonstrations: none, epochs: 0.1}
preference: {runs: {kto: {algorithm: kto, start: online/b, data: compared/feedback, epochs: 0.1}}}
online:
  runs:
    a: {algorithm: rloo, start: distill/taught, data: two_step/prompts, corpus: none, reward_model: none,
        rollout: {rounds: 1, prompts: 4}}
    b: {algorithm: grpo, start: online/a, data: two_step/prompts, corpus: none, reward_model: reward/of_online,
        reward: {model: 1.0}, rollout: {rounds: 1, prompts: 4}}
distill:
  runs:
    taught: {algorithm: gkd, start: sft/later, teacher: preference/dpo, data: two_step/prompts,
             demonstrations: compared/chat, reward_model: none, rollout: {rounds: 1, prompts: 4}}
evaluate: {policies: {kto: preference/kto}}
"""


def posttrain(workspace: Path, *arguments: str) -> Finished:
    return run(workspace, sys.executable, "-m", "posttrain", *arguments)


def check(workspace: Path) -> list[str]:
    done = posttrain(workspace, "check")
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def repro(workspace: Path) -> set[str]:
    """Run `dvc repro`; the stages that ran a command, without `code`."""
    done = dvc(workspace, "repro")
    assert done.returncode == 0, done.stdout
    assert dvc(workspace, "status").stdout.strip() == "Data and pipelines are up to date."
    return set(re.findall(r"Running stage '([^']+)'", done.stdout)) - {"code"}


def measured(label: str) -> set[str]:
    """The stages that evaluate a policy."""
    return {f"completions@{label}", f"evaluate@{label}"}


def change(workspace: Path, before: str, after: str) -> None:
    file = workspace / "params.yaml"
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after, 1), encoding="utf-8")


def smoke_params() -> dict[str, Any]:
    params: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / "recipes/smoke.yaml").read_text(encoding="utf-8"))
    return params


def write_params(workspace: Path, params: dict[str, Any]) -> None:
    (workspace / "params.yaml").write_text(json.dumps(params), encoding="utf-8")


def rendered_plots(workspace: Path) -> None:
    done = dvc(workspace, "plots", "show")
    assert done.returncode == 0, done.stdout
    assert "failed to load" not in done.stdout.lower(), done.stdout


@pytest.mark.slow
def test_five_steps_that_build_on_each_other(own_workspace: Path) -> None:
    shutil.copyfile(ROOT / "recipes/iterated.yaml", own_workspace / "params.yaml")
    first, note = check(own_workspace)
    assert first == "params.yaml: 9 runs are right"
    assert note.startswith("note: 7 removed runs left outputs or entries in dvc.lock (reward@main, preference@dpo,")
    models = {"sft@best", "online@first", "reward@second", "online@second"}
    labels = measured("best") | measured("first") | measured("second")
    assert repro(own_workspace) == {"data_samples@best", "data_samples@compared", "report"} | models | labels
    assert {file.name for file in (own_workspace / "data/best").iterdir()} == {"chat.parquet"}
    assert {file.name for file in (own_workspace / "data/compared").iterdir()} == {"pairs.parquet"}
    results = json.loads(posttrain(own_workspace, "show", "results", "--json").stdout)
    assert {row["policy"] for row in results} == {"base", "sft", "best", "first", "second"}
    scores = {row["policy"]: row["score"] for row in results}
    assert scores["sft"] < scores["best"] < scores["first"], scores
    rendered_plots(own_workspace)

    assert "removed preference@dpo: " in posttrain(own_workspace, "clean").stdout
    assert check(own_workspace) == [first]
    assert repro(own_workspace) == {"report"}, "it reads the folders that `clean` has emptied"


@pytest.mark.slow
def test_a_run_of_any_kind_starts_from_a_model_of_any_kind(own_workspace: Path) -> None:
    write_params(own_workspace, merge(smoke_params(), YAML(typ="safe", pure=True).load(ODD_STARTS)))
    assert check(own_workspace)[0] == "params.yaml: 15 runs are right"
    models = {
        "sft@later",
        "distill@taught",
        "online@a",
        "online@b",
        "reward@of_online",
        "reward@of_base",
        "preference@kto",
    }
    assert repro(own_workspace) == {"data_samples@scored", *measured("kto"), "report"} | models
    results = json.loads(posttrain(own_workspace, "show", "results", "--json").stdout)
    assert {row["policy"] for row in results if "error" not in row} == {"base", "sft", "dpo", "grpo", "kto"}


@pytest.mark.slow
def test_the_best_samples_become_demonstrations(smoke_workspace: Path) -> None:
    chat = read_table(smoke_workspace / "data/compared/chat.parquet", "chat")
    prompts = read_table(smoke_workspace / "data/two_step/prompts.parquet", "prompts")
    assert dict(chat["split"].value_counts().rows()) == {"train": 250, "heldout": 100}
    assert chat["problem"].is_unique().all() and chat["score"].is_in([0.0, 0.2, 1.0, 1.2]).all()
    check_disjoint({"chat": chat, "prompts": prompts})
    pairs = read_table(smoke_workspace / "data/compared/pairs.parquet", "pairs").filter(split="heldout")
    chosen = pairs.join(chat.select("problem", "messages", "score"), on="problem")
    answers = chosen.select(
        best=pl.col("messages").list.last().struct.field("content"),
        worse=pl.col("rejected").list.last().struct.field("content"),
    )
    assert chosen.height == pairs.height and (answers["best"] != answers["worse"]).all(), (
        "the annotator errs in train only"
    )


@pytest.mark.slow
def test_only_samples_that_reach_min_score_are_kept(own_workspace: Path) -> None:
    change(own_workspace, "      samples: 6\n", "      samples: 2\n      tables: [chat]\n      min_score: 1.0\n")
    stage = (sys.executable, "-m", "stages.data_samples", "compared")
    done = run(own_workspace, *stage)
    assert done.returncode == 0, done.stdout
    assert {file.name for file in (own_workspace / "data/compared").iterdir()} == {"chat.parquet"}
    chat = read_table(own_workspace / "data/compared/chat.parquet", "chat")
    assert chat["score"].min() == 1.0 or chat["score"].min() == 1.2
    assert 0 < chat.height < 350
    change(own_workspace, "min_score: 1.0", "min_score: 1.3")
    done = run(own_workspace, *stage)
    assert done.returncode == 1
    assert "no train prompt got a complete sample of reward >= min_score = 1.3 (the best reward is 1.2)" in done.stdout
    assert read_table(own_workspace / "data/compared/chat.parquet", "chat").equals(chat)


@pytest.mark.slow
def test_sft_and_dpo_alone(own_workspace: Path) -> None:
    """The sections that nobody needs are absent; all that is left runs from the cache."""
    params = smoke_params()
    del (
        params["reward"],
        params["online"],
        params["evaluate"]["policies"]["base"],
        params["evaluate"]["policies"]["grpo"],
    )
    write_params(own_workspace, params)
    first, unmeasured, left = check(own_workspace)
    assert first == "params.yaml: 5 runs are right"
    assert unmeasured == "note: not evaluated: base/tiny. Add LABEL: MODEL to evaluate.policies"
    assert left.startswith("note: 6 removed runs left")
    assert repro(own_workspace) == {"report"}
    assert posttrain(own_workspace, "clean").returncode == 0
    assert sorted(path.name for path in (own_workspace / "models").glob("*/*")) == ["dpo", "main", "tiny"]
    assert repro(own_workspace) <= {"report"}
    rendered_plots(own_workspace)
    del params["evaluate"]
    write_params(own_workspace, params)
    assert check(own_workspace)[1].startswith("note: not evaluated: base/tiny, sft/main, preference/dpo.")
    assert dvc(own_workspace, "repro", "preference").returncode == 0


@pytest.mark.slow
def test_a_run_from_which_others_start_is_not_removed(own_workspace: Path) -> None:
    change(own_workspace, "sft:\n  runs:\n    main:", "sft:\n  runs:\n    renamed:")
    before = (own_workspace / "dvc.lock").read_bytes()
    for command in ("clean", "check"):
        done = posttrain(own_workspace, command)
        assert done.returncode == 1
        said = "preference.runs.dpo.start = 'sft/main': the run that made it was removed or renamed. Known here"
        assert said in done.stdout, done.stdout
        assert "online.runs.grpo.start = 'sft/main'" in done.stdout
    assert (own_workspace / "models/sft/main/model.safetensors").is_file()
    assert (own_workspace / "dvc.lock").read_bytes() == before


@pytest.mark.slow
def test_dvc_does_not_use_the_outputs_of_a_removed_run(own_workspace: Path) -> None:
    change(own_workspace, "    grpo:\n      algorithm: grpo", "    renamed:\n      algorithm: grpo")
    assert (own_workspace / "models/online/grpo").is_dir()
    done = dvc(own_workspace, "repro")
    said = "error: params.yaml: evaluate.policies.grpo = 'online/grpo': the run that made it was removed or renamed. "
    assert done.returncode and said in done.stdout, done.stdout
    assert "Running stage 'online@renamed'" not in done.stdout
    by_hand = stage(own_workspace, "evaluate", "grpo")
    assert by_hand.returncode == 1 and by_hand.stdout.startswith(said), by_hand.stdout


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "start: base/tiny",
            "start: preference/dpo",
            "error: params.yaml: cycle: sft.runs.main needs preference.runs.dpo",
        ),
        pytest.param(
            "kl: {beta: 0.02}",
            "kl: {beta: http://x}",
            "error: params.yaml: line 71: DVC cannot read it",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_make_run_reports_a_wrong_params_file_without_a_traceback(
    own_workspace: Path, tmp_path: Path, before: str, after: str, said: str
) -> None:
    venv = tmp_path / "venv"  # links, so that make cannot touch the real one
    venv.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (venv / name).symlink_to(Path(sys.prefix) / name)
    change(own_workspace, before, after)
    done = run(own_workspace, "make", "--old-file=env", "run", f"VENV={venv}")
    assert done.returncode != 0
    first = next(line for line in done.stdout.splitlines() if not line.startswith("note: registered plugins are gone"))
    assert first.startswith(said), done.stdout
    assert "Running stage" not in done.stdout and "ERROR" not in done.stdout


@pytest.mark.slow
def test_outputs_of_a_removed_run_are_listed_and_removed(own_workspace: Path) -> None:
    change(own_workspace, "    grpo: online/grpo\n", "")
    text = (own_workspace / "params.yaml").read_text(encoding="utf-8")
    (own_workspace / "params.yaml").write_text(
        re.sub(r"(?ms)^online:.*?^evaluate:", "evaluate:", text), encoding="utf-8"
    )
    never_finished = own_workspace / "checkpoints/online/tried/abc"
    never_finished.mkdir(parents=True)
    note = (
        "note: 4 removed runs left outputs or entries in dvc.lock (online@grpo, completions@grpo, evaluate@grpo, ...). "
    )
    assert check(own_workspace)[1] == note + "`posttrain clean` removes them"
    listed = posttrain(own_workspace, "clean", "--list").stdout
    assert "left of online@grpo: " in listed and (own_workspace / "models/online/grpo").is_dir()
    removed = posttrain(own_workspace, "clean").stdout
    assert removed == listed.replace("left of", "removed")
    assert not (own_workspace / "models/online/grpo").exists() and not never_finished.exists()
    lock = YAML(typ="safe").load((own_workspace / "dvc.lock").read_bytes())["stages"]
    assert not {"online@grpo", *measured("grpo")} & lock.keys() and "preference@dpo" in lock
    assert check(own_workspace) == ["params.yaml: 6 runs are right"]
    git(own_workspace, "checkout", "--", "params.yaml")
    assert repro(own_workspace) <= {"report"}, "the run that came back is restored from the cache"


@pytest.mark.slow
def test_two_branches_that_each_add_a_run_are_merged(own_workspace: Path) -> None:
    git(own_workspace, "add", "--all")
    git(own_workspace, "commit", "--quiet", "--message", "smoke")
    new = "{algorithm: NAME, start: sft/main, data: DATA, corpus: none, reward_model: none, rollout: {rounds: 2}}"
    ipo = "    ipo: {algorithm: ipo, start: sft/main, data: compared/pairs, epochs: 0.2}\n"
    branches = {
        "ipo": [("preference:\n  runs:\n", ipo), ("  policies:\n", "    ipo: preference/ipo\n")],
        "rloo": [
            ("online:\n  runs:\n", f"    rloo: {new.replace('NAME', 'rloo').replace('DATA', 'two_step/prompts')}\n"),
            ("    sft: sft/main\n", "    rloo: online/rloo\n"),
        ],
    }
    for branch, added in branches.items():
        git(own_workspace, "checkout", "--quiet", "-b", branch, "main")
        for place, line in added:
            change(own_workspace, place, place + line)
        family = "preference" if branch == "ipo" else "online"
        assert repro(own_workspace) == {f"{family}@{branch}", *measured(branch), "report"}
        git(own_workspace, "add", "--all")
        git(own_workspace, "commit", "--quiet", "--message", branch)
    merge = run(own_workspace, "git", "merge", "--no-edit", "ipo")
    conflicts = git(own_workspace, "diff", "--name-only", "--diff-filter=U").split()
    assert set(conflicts) <= {"dvc.lock", "report/headline.json", "report/summary.json"}, merge.stdout
    assert (
        "dvc.lock: git left a merge conflict. Run `posttrain repair merge`" in posttrain(own_workspace, "check").stdout
    )
    done = posttrain(own_workspace, "repair", "merge")
    assert done.returncode == 0 and "Both branches changed code, report" in done.stdout, done.stdout
    assert check(own_workspace) == ["params.yaml: 9 runs are right"]
    assert repro(own_workspace) == {"report"}, "both runs come from the cache"
    git(own_workspace, "add", "--all")
    git(own_workspace, "commit", "--quiet", "--no-edit")
    results = json.loads(posttrain(own_workspace, "show", "results", "--json").stdout)
    assert {"ipo", "rloo"} <= {row["policy"] for row in results if "error" not in row}
    assert "has no merge conflict" in posttrain(own_workspace, "repair", "merge").stdout
