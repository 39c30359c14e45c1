"""An entry of dvc.lock that names what no run has done: every reader says so, and `repair` has it run again."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError, PipelineError, PosttrainError
from posttrain.pipeline.commands.promote.promotion import promote
from posttrain.pipeline.commands.replay.rerun import replay
from posttrain.pipeline.compare.comparison import compare
from posttrain.pipeline.compare.selection import select
from posttrain.pipeline.lineage.explain import why
from posttrain.pipeline.lock.digests import Digests, read_lock
from posttrain.pipeline.lock.fsync import cache_folder, cached, object_path
from posttrain.pipeline.lock.lock_file import write_entries
from posttrain.pipeline.lock.status import status
from posttrain.pipeline.lock.verify import repair, verify
from posttrain.pipeline.report.results import results_table
from posttrain.pipeline.report.stale_results import staleness
from tests.workspace import dvc, git

RUN = "online@grpo"
SAID = "dvc.lock does not say what ran"
Entry = dict[str, Any]


@pytest.fixture
def workspace(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(own_workspace)
    git(own_workspace, "add", "--all")
    git(own_workspace, "commit", "--quiet", "--message", "run")
    return own_workspace


def shown() -> str:
    return results_table(staleness().reasons)


def edit_entry(stage: str, change: Callable[[Entry], None]) -> None:
    """Change one entry of dvc.lock, as a hand or git would."""
    entries = json.loads(json.dumps(read_lock(Path())))
    change(entries[stage])
    write_entries(entries)


def commit(message: str) -> None:
    git(Path(), "add", "--all")
    git(Path(), "commit", "--quiet", "--message", message)


def set_beta(value: float) -> None:
    params = Path("params.yaml")
    params.write_text(re.sub(r"kl: \{beta: [\d.]+\}", f"kl: {{beta: {value}}}", params.read_text()))


def other_setting(entry: Entry) -> None:
    entry["params"]["params.yaml"]["online.runs.grpo"]["kl"]["beta"] = 0.5


def other_input(entry: Entry) -> None:
    entry["deps"][1]["md5"] = "0" * 32


def other_output(entry: Entry) -> None:
    next(out for out in entry["outs"] if out["path"] == "metrics/online/grpo.json")["md5"] = "0" * 32


def other_record(entry: Entry) -> None:
    theirs = read_lock(Path())["preference@dpo"]["outs"]
    record = next(out for out in theirs if out["path"].startswith("records/"))
    next(out for out in entry["outs"] if out["path"].startswith("records/"))["md5"] = record["md5"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (other_setting, "params.yaml: online.runs.grpo.kl.beta 0.5 (the run had 0.02)"),
        (other_input, "(the run read another version)"),
        (other_output, "metrics/online/grpo.json (the run wrote another version)"),
        (other_record, "records/online/grpo.json is the record of preference@dpo, not of online@grpo"),
    ],
)
def test_every_reader_names_an_entry_that_no_run_made(
    workspace: Path, change: Callable[[Entry], None], named: str
) -> None:
    del workspace
    if change is other_setting:  # as after `git merge -X`, params.yaml agrees with dvc.lock
        set_beta(0.5)
    edit_entry(RUN, change)
    assert f"{RUN}: " in status() and SAID in status() and named in status()
    assert re.search(rf"grpo +out of date: {RUN} .*{SAID}", shown())
    assert "NOT WHAT RAN" in why("grpo.score", "words")
    commit("mixed")
    with pytest.raises(DataError, match=SAID):
        promote("grpo", "best")
    with pytest.raises(DataError, match=SAID):
        select(["HEAD"], "grpo", "sampled")
    with pytest.raises(PipelineError, match=re.escape(named)):
        verify(Path())
    assert RUN not in read_lock(Path()), "so that DVC runs it again"
    assert "nothing" not in status() and SAID not in status()


def test_a_copied_model_that_dvc_commit_recorded_is_not_believed(workspace: Path) -> None:
    whole = Digests().of("models/online/grpo")
    shutil.rmtree("models/online/grpo")
    shutil.copytree("models/sft/main", "models/online/grpo")
    assert dvc(workspace, "commit", "--force", RUN).returncode == 0
    assert f"{SAID}: models/online/grpo (the run wrote another version)" in status()
    assert f"{RUN}: {SAID}" in repair(Path())
    again = dvc(workspace, "repro", RUN)
    assert "is cached" in again.stdout and "Running stage" not in again.stdout, again.stdout
    assert Digests().of("models/online/grpo") == whole
    assert status() == "nothing is stale"


def test_a_merge_that_git_settles_makes_no_run(workspace: Path) -> None:
    """One side changes a setting and its results, the other one another setting: git takes lines of both."""
    git(workspace, "checkout", "--quiet", "-b", "other")
    set_beta(0.5)
    edit_entry(RUN, other_setting)
    commit("other")
    git(workspace, "checkout", "--quiet", "main")
    edit_entry(RUN, other_output)
    commit("ours")
    git(workspace, "merge", "--quiet", "-X", "theirs", "--no-edit", "other")
    told = status()
    assert "kl.beta 0.5 (the run had 0.02)" in told and "metrics/online/grpo.json" in told


def test_objects_that_the_cache_lacks_are_named_and_filled_from_the_workspace(workspace: Path) -> None:
    shutil.rmtree(".dvc/cache/files")
    told = status()
    assert f"{RUN}: DVC's cache lacks" in told and "run `posttrain repair`" in told
    with pytest.raises(PipelineError, match="DVC's cache lacked"):
        verify(Path())
    assert verify(Path()).endswith("are as they were recorded")
    assert status() == "nothing is stale"
    done = dvc(workspace, "repro")
    assert "Running stage" not in done.stdout and "is cached" not in done.stdout, done.stdout


def test_a_missing_output_is_named_by_status_and_verify(workspace: Path) -> None:
    del workspace
    Path("results/grpo/metrics.json").unlink()
    assert "its output results/grpo/metrics.json is missing" in status()
    with pytest.raises(PipelineError, match=r"results/grpo/metrics.json of evaluate@grpo is missing"):
        verify(Path())


def test_a_clone_without_outputs_is_not_as_recorded(workspace: Path) -> None:
    shutil.rmtree(".dvc/cache")
    for out in (out for entry in read_lock(Path()).values() for out in entry["outs"]):
        place = Path(out["path"])
        if place.parts[0] not in ("code", "report"):
            shutil.rmtree(place) if place.is_dir() else place.unlink()
    del workspace
    with pytest.raises(PipelineError, match=r"models/online/grpo of online@grpo is missing in DVC's cache and in the"):
        verify(Path())


def edit_in_place(file: Path, change: Callable[[bytes], bytes]) -> None:
    """Write into the inode that DVC's cache may share, without the permission that DVC took away."""
    file.chmod(0o644)
    with file.open("r+b") as stream:
        content = change(stream.read())
        stream.seek(0)
        stream.truncate()
        stream.write(content)
    file.chmod(0o444)


def test_a_record_edited_in_place_is_not_an_interrupted_accept(workspace: Path) -> None:
    record = workspace / "records/online/grpo.json"
    (out,) = [out for out in read_lock(Path())[RUN]["outs"] if out["path"] == "records/online/grpo.json"]
    object_path(cache_folder(Path()), out["md5"]).unlink()
    object_path(cache_folder(Path()), out["md5"]).hardlink_to(record)
    edit_in_place(record, lambda content: content.replace(b'"seed": ', b'"seed": 7'))
    for _ in range(2):
        said = repair(Path())
        assert "records/online/grpo.json of online@grpo was edited, and DVC's copy with it" in said
        assert "accept" not in said
    with pytest.raises(PipelineError):
        verify(Path())


def test_replay_of_rollouts_edited_in_place_advises_what_helps(workspace: Path) -> None:
    file = sorted((workspace / "rollouts/online/grpo").glob("*.parquet"))[0]
    edit_in_place(file, lambda content: content + b" ")
    with pytest.raises(PipelineError, match=r"it differs from the run's output.*posttrain repair verify"):
        replay("grpo", None)


def test_results_of_another_policy_are_refused(workspace: Path) -> None:
    """All of an entry's results and its record are those of another policy, as after a copy of lines by hand."""
    shutil.copyfile("results/dpo/rollouts.parquet", "results/grpo/rollouts.parquet.new")
    Path("results/grpo/rollouts.parquet.new").replace("results/grpo/rollouts.parquet")
    del workspace
    with pytest.raises(DataError, match="its rows belong to the policy dpo, not to grpo"):
        select(["grpo"], None, "sampled")


def test_without_its_record_a_result_is_not_verified(workspace: Path) -> None:
    (out,) = [out for out in read_lock(Path())[RUN]["outs"] if out["path"] == "records/online/grpo.json"]
    for file in (workspace / out["path"], *cached(cache_folder(Path()), out)):
        file.unlink()
    unverified = "its output records/online/grpo.json is missing, so the run is not verified: `dvc pull records/"
    assert unverified in status() and unverified in shown()
    assert "not verified: its record is missing: `dvc pull records/online/grpo.json`" in why("grpo.score", "words")
    with pytest.raises(PosttrainError, match=r"records/online/grpo.json is missing"):
        promote("grpo", "best")
    found = compare(select(["HEAD", "dpo"], "grpo", "sampled"))
    assert any("HEAD is not verified, because online@grpo has no record here" in note for note in found.notes)


def test_why_names_a_run_that_dvc_lock_no_longer_has(workspace: Path) -> None:
    """As after `repair` has removed its entry: its model is no source of the user's."""
    del workspace
    write_entries({name: entry for name, entry in read_lock(Path()).items() if name != RUN})
    told = why("grpo.score", "words")
    assert "not current: dvc.lock has no entry of online@grpo, which makes it: `dvc repro online@grpo`" in told
    assert "models/online/grpo (a source" not in told


def run_beta(workspace: Path, value: float, *targets: str) -> None:
    set_beta(value)
    for target in targets:
        done = dvc(workspace, "repro", "--single-item", target)
        assert done.returncode == 0, done.stdout


def test_compare_refuses_commits_whose_evaluation_is_of_another_model(workspace: Path) -> None:
    belongs = r"its evaluation of grpo does not match the commit's settings: online@grpo: params .*kl.beta 0.02 -> 0.5"
    set_beta(0.5)
    commit("never run")
    with pytest.raises(DataError, match=belongs):
        select(["HEAD", "HEAD~1"], "grpo", "sampled")
    run_beta(workspace, 0.5, "code", RUN)
    commit("trained, not evaluated")
    with pytest.raises(DataError, match="evaluate@grpo: models/online/grpo modified"):
        select(["HEAD", "HEAD~2"], "grpo", "sampled")
    set_beta(0.02)
    commit("trained, not evaluated, and the old settings")
    with pytest.raises(DataError, match=r"kl.beta 0.5 -> 0.02"):
        select(["HEAD", "HEAD~3"], "grpo", "sampled")
    assert [one.name for one in select(["HEAD~3"], "grpo", "sampled")] == ["HEAD~3"]


def test_compare_refuses_a_commit_whose_code_was_edited_after_its_run(workspace: Path) -> None:
    file = workspace / "posttrain/algorithms/policy/ppo.py"
    file.write_text(file.read_text() + "\nNEW = 1\n")
    commit("edited, and the stage `code` did not run")
    with pytest.raises(DataError, match=r"posttrain/algorithms/policy/ppo.py changed after the stage `code` ran"):
        select(["HEAD"], "grpo", "sampled")


@pytest.mark.slow
def test_trainings_of_other_code_are_not_seeds_of_one_setting(workspace: Path) -> None:
    file = workspace / "posttrain/algorithms/policy/ppo.py"
    file.write_text(file.read_text() + "\nNEW = 1\n")
    run_beta(workspace, 0.02, "code", RUN, "evaluate@grpo")
    commit("other code")
    found = compare(select(["HEAD", "HEAD~1"], "grpo", "sampled"))
    assert [mean.label for mean in found.means] == ["HEAD (code of HEAD)", "HEAD~1 (code of HEAD~1)"]
    assert any("trained with different code (online: posttrain/algorithms/policy/ppo.py)" in n for n in found.notes)


def test_compare_says_on_the_terminal_which_experiments_of_a_sweep_it_left_out(workspace: Path) -> None:
    set_beta(0.5)
    commit("never run")
    for name in ("s-a", "s-b"):
        revision = {"s-a": "HEAD~1", "s-b": "HEAD"}[name]
        sha = git(workspace, "rev-parse", revision).strip()
        base = git(workspace, "rev-parse", "HEAD").strip()
        git(workspace, "update-ref", f"refs/exps/{base[:2]}/{base[2:]}/{name}", sha)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        found = select(["s"], "grpo", "sampled")
    assert [one.name for one in found] == ["s-a"]
    assert "left out: s-b: its evaluation of grpo does not match the commit's settings" in said.getvalue()
