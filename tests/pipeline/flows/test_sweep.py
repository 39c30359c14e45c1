"""A real sweep on a tiny project: killed, gone on with, compared; and what is refused before any work."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows.orphan_guard import OrphanGuard
from flows.sweep import main, named_sweep, parser, plan_data
from flows.sweep_config import (
    Range,
    Sweep,
    Trial,
    check_committed,
    check_trials,
    check_trials_here,
    checked_sweep_name,
    trials,
)
from flows.sweep_plan import check_free
from flows.sweep_runner import Failure, SweepRunner
from flows.sweep_start import Start
from posttrain.errors import PipelineError, PosttrainError
from tests.pipeline.flows.project import Project
from tests.pipeline.flows.small import BETA, OWN, PARAMS, commit
from tests.workspace import ROOT


def sweep(project: Project, seeds: str) -> subprocess.Popen[str]:
    words = ["flows.sweep", "kl", "-S", f"{BETA}=0.02,0.5", "--seeds", seeds, "--jobs", "2"]
    command = [sys.executable, "-m", *words]
    return subprocess.Popen(
        command, cwd=project.root, env=project.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def compared(project: Project) -> dict[str, Any]:
    command = [sys.executable, "-m", "posttrain", "compare", "kl", "--json"]
    done = subprocess.run(command, cwd=project.root, env=project.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_experiments_are_run_and_compared(small: Project) -> None:
    done = sweep(small, "1")
    out, _ = done.communicate(timeout=100)
    assert done.returncode == 0, out
    assert "[2/2] kl-beta0." in out
    again = sweep(small, "1")
    out, _ = again.communicate(timeout=100)
    assert "sweep kl: 2 experiments, 2 done, 0 to run" in out
    assert (small.root / "checkpoints/online/a").is_dir(), (
        "a killed experiment resumes from the workspace's checkpoints"
    )
    found = compared(small)
    assert [one["label"] for one in found["settings"]] == ["beta 0.02", "beta 0.5"]
    command = [sys.executable, "-m", "posttrain", "compare", "kl", "--to", "kl.html"]
    subprocess.run(command, cwd=small.root, env=small.env, check=True, capture_output=True)
    page = (small.root / "kl.html").read_text()
    assert {"kl.beta", "seeds"} <= {*re.findall(r"<th[^>]*>([^<]*)<", page)}, "what varies has a column"
    assert sorted(re.findall(r'<th scope="row"[^>]*>([^<]*)<', page)) == ["0.02", "0.5", "online.runs.a.kl.beta"]
    assert "Which setting mattered" in (small.root / ".sweeps/kl.html").read_text(), "the sweep wrote it too"
    assert "worse (1 seed)" in page and "<polyline" in page, "the best setting is the first row"
    assert found["held_out"][0]["verdict"] == "beta 0.02 is better (1 seed)"


@pytest.mark.slow
def test_an_experiment_waits_for_a_stage_that_another_one_runs(small: Project) -> None:
    (small.root / "once").touch()
    done = sweep(small, "1")
    out, _ = done.communicate(timeout=100)
    assert done.returncode == 0, out
    assert "[2/2] kl-beta0." in out and not (small.root / "once").exists()


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_is_compared(small: Project) -> None:
    slow = Path(small.env["SLOW"])
    slow.touch()
    begun = sweep(small, "1,2")
    assert begun.stdout is not None
    said = next((line for line in begun.stdout if line.startswith("[2/4]")), "it ended too early")
    assert "Completed" in said
    begun.kill()
    begun.communicate()
    slow.unlink()
    end = time.monotonic() + 20
    while small.processes():
        assert time.monotonic() < end, small.processes()
        time.sleep(0.2)

    resumed = sweep(small, "1,2")
    out, _ = resumed.communicate(timeout=100)
    assert resumed.returncode == 0, out
    assert "sweep kl: 4 experiments, 2 done, 2 to run" in out
    listed = small.dvc("exp", "list", "--name-only").split()
    assert sorted(name.rpartition("-")[0] for name in listed) == [
        f"kl-beta{beta}-seed{seed}" for beta in ("0.02", "0.5") for seed in (1, 2)
    ]
    assert (small.root / "params.yaml").read_text() == OWN, "the workspace is left alone"
    assert not list((small.root / ".dvc/tmp/exps/standalone").glob("tmp*")), "the killed copies are removed"
    times = json.loads((small.root / ".sweeps" / f"{listed[0]}.json").read_text())
    assert 0 < times["online"] < 60

    found = compared(small)
    assert [(one["label"], one["seeds"]) for one in found["settings"]] == [("beta 0.02", 2), ("beta 0.5", 2)]
    assert found["held_out"][0]["mean"] == pytest.approx(0.6, abs=0.15)
    assert found["training"]["steps"]["amount"] == 40


@pytest.mark.slow
def test_ctrl_c_ends_everything(small: Project) -> None:
    slow = Path(small.env["SLOW"])
    slow.touch()
    begun = sweep(small, "2")
    assert begun.stdout is not None
    next(line for line in begun.stdout if "Running stage 'online'" in line)
    begun.send_signal(signal.SIGINT)
    begin = time.monotonic()
    out, _ = begun.communicate(timeout=60)
    assert time.monotonic() - begin < 20, out
    assert begun.returncode == 128 + signal.SIGINT, out
    assert small.left_running() == []
    assert small.dvc("exp", "list", "--name-only").split() == []


@pytest.mark.slow
def test_an_edit_while_a_sweep_runs_changes_no_experiment(small: Project) -> None:
    """Three of four experiments begin after the edit, and after the commit of another one."""
    words = ["flows.sweep", "kl", "-S", f"{BETA}=0.02,0.03,0.5,0.6", "--jobs", "1"]
    begun = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=small.root, env=small.env, text=True, stdout=subprocess.PIPE
    )
    assert begun.stdout is not None
    assert next(line for line in begun.stdout if line.startswith("[1/4]"))
    (small.root / "step.py").write_text("raise SystemExit('edited')")
    commit(small.root)
    (small.root / "params.yaml").write_text("")
    out, _ = begun.communicate(timeout=100)
    assert begun.returncode == 0, out
    assert (small.root / "step.py").read_text() == "raise SystemExit('edited')", "the workspace is left alone"


@pytest.mark.slow
def test_a_sweep_stops_when_two_experiments_fail_alike(small: Project) -> None:
    (small.root / "custom/fails").touch()
    commit(small.root)
    words = [sys.executable, "-m", "flows.sweep", "kl", "-S", f"{BETA}=0.02,0.03,0.5,0.6", "--jobs", "1"]
    done = subprocess.run(words, cwd=small.root, env=small.env, text=True, capture_output=True, timeout=100)
    assert done.returncode == 1
    assert re.findall(r"^\[./4\] \S+  (\w+)", done.stdout, re.MULTILINE) == ["Failed", "Failed", "NotRun", "NotRun"]
    cause, *logs, end = done.stderr.strip().splitlines()[-4:]
    assert cause == "2 experiments failed at 'online': the reward cannot be read", done.stderr
    assert all(re.fullmatch(r"  \.sweeps/kl-\S+\.log", log) for log in logs)
    assert end == "The others were not started, because two experiments failed alike"


def test_failures_are_alike_by_stage_and_error(tmp_path: Path) -> None:
    with OrphanGuard() as guard:
        runner = SweepRunner(Start(tmp_path, "", ""), [], [], 0, guard)
        for stage, error in (("sft@a", "no rows"), ("sft@b", "no rows"), ("sft@a", "no memory")):
            failure = Failure()
            for line in (f"Running stage '{stage}':", f"error: {error}", "ERROR: failed to reproduce"):
                failure(line)
            runner.stop_if_repeated(failure)
            assert runner.stopped == ""
        runner.stop_if_repeated(failure)
        assert runner.stopped == "stopped, because two experiments failed alike at 'sft@a': no memory"


def test_an_experiment_that_could_not_begin_has_failed(tmp_path: Path) -> None:
    (tmp_path / ".sweeps").write_text("no folder")
    with OrphanGuard() as guard:
        runner = SweepRunner(Start(tmp_path, "", ""), [Trial("k-1", {})], [], 0, guard)
        assert runner.run(runner.pending[0]).is_failed()
    assert runner.outcomes["k-1"].state == "Failed" and "FileExistsError" in runner.outcomes["k-1"].message


def test_a_grid_times_seeds() -> None:
    found = trials("s", Sweep(grid={"online.runs.a.kl.beta": [0.1, 0.2], "sft.runs.b.epochs": [1.0]}, seeds=[1, 2]))
    assert [one.overrides for one in found] == [
        {"online.runs.a.kl.beta": beta, "sft.runs.b.epochs": 1.0, "online.runs.a.seed": seed, "sft.runs.b.seed": seed}
        for beta in (0.1, 0.2)
        for seed in (1, 2)
    ]
    assert len({one.name for one in found}) == 4
    assert all(one.name.startswith("s-beta0.") for one in found)
    again = trials("s", Sweep(grid={"sft.runs.b.epochs": [1.0], "online.runs.a.kl.beta": [0.2]}, seeds=[2]))
    assert again[0].name.rpartition("-")[2] == found[3].name.rpartition("-")[2], "the same settings are the same work"


def test_listed_settings_and_random_draws() -> None:
    over = {"sft.runs.b.optimizer.lr": Range(low=1e-4, high=1e-2), "sft.runs.b.batch": [8, 16]}
    drawn = {"draws": 5, "seed": 3, "over": over}
    one, two = (
        trials("s", Sweep.model_validate({"random": drawn, "settings": [{"sft.runs.b.epochs": 2.0}]})) for _ in "ab"
    )
    assert one == two, "the same seed draws the same"
    assert one[0].overrides == {"sft.runs.b.epochs": 2.0}
    assert len(one) == 6
    assert all(1e-4 <= trial.overrides["sft.runs.b.optimizer.lr"] <= 1e-2 for trial in one[1:])
    assert {trial.overrides["sft.runs.b.batch"] for trial in one[1:]} <= {8, 16}
    assert len({trial.overrides["sft.runs.b.optimizer.lr"] for trial in one[1:]}) == 5


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"online.runs.a.kl.bta": 0.1}, r"online.runs.a.kl.bta: unknown key. Did you mean 'beta'\?"),
        ({"online.runs.b.kl.beta": 0.1}, "'online.runs.b.kl.beta' is not a setting of a run of params.yaml"),
        ({"evalate.settings.samples": 2}, r"unknown section 'evalate'. Did you mean 'evaluate'\?"),
        ({"online.runs.a.rollout.group_size": 1}, "every advantage would be 0"),
        ({"online.runs.a.kl.beta": "much"}, "online.runs.a.kl.beta = 'much'"),
    ],
)
def test_a_slip_costs_no_work(
    overrides: dict[str, object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(PARAMS)
    Path("dvc.yaml").write_text("stages: {online: {cmd: 'true'}}")
    fine = Trial("s-fine", {BETA: 0.1, "online.runs.a.seed": 3})
    check_trials_here([fine])
    with pytest.raises(PosttrainError, match=said):
        check_trials_here([fine, Trial("s-wrong", overrides)])


def test_nothing_that_takes_ctrl_c_away_is_loaded_beside_a_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polars answers SIGINT itself, and a flow that waits for its tasks would not hear of it."""
    names = "import sys, flows.sweep, flows.sweep_runner, flows.run, flows.deploy, flows.workers, flows.sweep_config"
    words = [sys.executable, "-c", f"{names}; assert not {{'polars', 'torch'}} & set(sys.modules)"]
    subprocess.run(words, cwd=ROOT, check=True)
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(PARAMS)
    Path("dvc.yaml").write_text("stages: {online: {cmd: 'true'}}")
    with pytest.raises(PosttrainError, match=r"unknown key\. Did you mean 'beta'"):
        check_trials([Trial("s-wrong", {"online.runs.a.kl.bta": 0.1})])


def test_what_is_swept_must_be_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PosttrainError, match="Experiments need a git repository with a commit"):
        check_committed("sweep", "Commit them")
    for words in (["init", "-q"], ["config", "user.email", "a@example.com"], ["config", "user.name", "A"]):
        subprocess.run(["git", *words], check=True)
    with pytest.raises(PosttrainError, match="with a commit"):
        check_committed("sweep", "Commit them")
    Path("params.yaml").write_text(PARAMS)
    Path("dvc.yaml").write_text("stages: {online: {cmd: 'true'}}")
    Path("report").mkdir()
    Path("report/summary.json").write_text("{}")
    commit(tmp_path)
    Path("report/summary.json").write_text("{ }")  # what a stage writes may differ
    Path("new.txt").write_text("untracked")
    check_committed("sweep", "Commit them")
    Path("params.yaml").write_text(PARAMS + "# changed")
    with pytest.raises(PosttrainError, match=r"changed since the last commit: params\.yaml"):
        check_committed("sweep", "Commit them")


def test_a_clone_differs_in_outputs_only_also_below_the_root_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "sub"
    root.mkdir()
    monkeypatch.chdir(root)
    for words in (["init", "-q", ".."], ["config", "user.email", "a@example.com"], ["config", "user.name", "A"]):
        subprocess.run(["git", *words], check=True)
    entries = {name: {"deps": [{"path": "rows.jsonl"}], "outs": [{"path": f"{name}.json"}]} for name in ("one", "two")}
    for name in ("rows.jsonl", "two.json"):
        Path(name).write_text("{}")
    Path("dvc.lock").write_text(json.dumps({"stages": entries}))
    commit(root)
    Path("dvc.lock").write_text(json.dumps({"stages": entries}) + "\n")
    Path("two.json").write_text("{ }")
    check_committed("sweep", "Commit them")
    Path("rows.jsonl").write_text("{ }")
    with pytest.raises(PosttrainError, match=r"changed since the last commit: rows\.jsonl"):
        check_committed("sweep", "Commit them")


@pytest.mark.parametrize("name", ["kl-2", "", "a/b", "-a", "a b"])
def test_a_sweep_has_a_name_that_experiments_can_begin_with(name: str) -> None:
    with pytest.raises(PosttrainError, match="is not a valid name for a sweep"):
        checked_sweep_name(name)


def test_seeds_and_targets_of_the_command_line_replace_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweeps").mkdir()
    Path("sweeps/kl.yaml").write_text(f"grid: {{{BETA}: [0.02, 0.5]}}\nseeds: [1]\ntargets: [online]\n")

    def read(*words: str) -> Sweep:
        return named_sweep(parser().parse_args(["kl", *words]))[1]

    assert (read().seeds, read().targets) == ([1], ["online"])
    more = read("--seeds", "1,2,3", "--targets", "report", "--seed-keys", "seed")
    assert (more.seeds, more.targets, more.seed_keys) == ([1, 2, 3], ["report"], ["seed"])
    assert list(more.grid) == [BETA]
    for words in ("kl",), ("no_file", "--seeds", "1,2"):
        with pytest.raises(PosttrainError, match="--random: there are no values to draw from"):
            named_sweep(parser().parse_args([*words, "--random", "4"]))


@pytest.mark.slow
def test_help_and_nothing_to_do(
    small: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(small.root)
    for words, told in {
        ("--seeds", "1,x"): "'1,x' are not whole numbers",
        ("--jobs", "0"): "'0' is not a whole number above 0",
        ("--random", "0"): "'0' is not a whole number above 0",
    }.items():
        with pytest.raises(SystemExit):
            main(["s", "-S", f"{BETA}=0.02,0.5", *words])
        assert told in capsys.readouterr().err
    assert main(["s", "-S", f"{BETA}=0.02,0.5", "--targets", "eval", "--plan"]) == 1
    assert "no stage 'eval'" in capsys.readouterr().err
    assert main(["lost"]) == 1
    assert "sweeps/lost.yaml: file not found" in capsys.readouterr().err
    (small.root / "sweeps").mkdir()
    (small.root / "sweeps" / "kl.yaml").write_text(f"grid:\n  {BETA}: [0.02, 0.5]\nseeds: [1, 2]\n")
    assert main(["kl", "--plan"]) == 0
    out = capsys.readouterr().out
    assert out.count("to run  ") == 4
    assert "4 experiments, 0 done, 4 to run" in out
    named_sweep(parser().parse_args(["kl", "-S", f"{BETA}=0.5"]))
    assert "note: sweeps/kl.yaml is not read, because -S is given" in capsys.readouterr().err
    told = plan_data(parser().parse_args(["kl", "--plan", "--jobs", "3"]))
    assert [told["sweep"], told["targets"], told["jobs"]] == ["kl", [], 3]
    assert [trial["name"] for trial in told["experiments"]] == re.findall(r"(?m)^(kl\S+)  to run", out)
    assert {trial["settings"][BETA] for trial in told["experiments"]} == {0.02, 0.5}
    assert not any(trial["done"] or trial["again"] for trial in told["experiments"])
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "posttrain compare NAME" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "what"), [("grpo", "a policy in params.yaml"), ("main", "git already has a branch")])
def test_a_sweep_has_no_name_that_compare_knows_otherwise(
    name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], check=True)
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"], check=True
    )
    check_free(tmp_path, "lr")
    with pytest.raises(PipelineError, match=what):
        check_free(tmp_path, name)


def test_a_plan_says_why_experiments_of_another_commit_run_again(
    small: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(small.root)
    words = ["kl", "-S", f"{BETA}=0.02,0.5", "--seeds", "1", "--plan"]
    (small.root / "sweeps").mkdir()
    (small.root / "sweeps" / "kl.yaml").write_text(f"grid:\n  {BETA}: [0.02, 0.5]\nseeds: [1]\n")
    _, sweep_ = named_sweep(parser().parse_args(words))
    start = Start.of(small.root)
    for trial in trials("kl", sweep_):
        with start.cloned(trial.overrides) as clone:
            git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(clone)]
            subprocess.run([*git, "commit", "-qam", trial.name], check=True)
            ref = f"refs/exps/{start.baseline[:2]}/{start.baseline[2:]}/{trial.name}"
            subprocess.run([*git, "update-ref", ref, "HEAD"], check=True)
            start.take(clone, trial.name)
    commit(small.root)
    assert main(words) == 0
    assert "sweep kl: 2 experiments, 2 done, 0 to run" in capsys.readouterr().out, (
        "a new file under sweeps/ is no reason"
    )
    (small.root / "step.py").write_text("x = 1\n")
    commit(small.root)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.count(f"(again: it ran at commit {start.baseline[:7]}; since then step.py changed)") == 2
    assert "2 experiments, 0 done, 2 to run" in out
