"""Which stages an edit makes stale, as DVC says it after the stage `code`; what `status` says and `accept` takes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.marks import slow_except
from tests.workspace import dvc, environment, run

LABELS = ("base", "dpo", "grpo", "sft")
EVALUATED = {f"{stage}@{label}" for stage in ("completions", "evaluate") for label in LABELS}
SAMPLING = {"data_samples@compared", "online@grpo", *EVALUATED}
SCORED = {"data_samples@compared", "online@grpo", "report", *(f"evaluate@{label}" for label in LABELS)}
TRAINING = {"base_scratch@tiny", "sft@main", "reward@main", "preference@dpo", "online@grpo"}
ALL = {*SAMPLING, *TRAINING, "data_tasks@two_step", "report"}
OWN = """from posttrain.rewards.reward import rule


@rule()
def short(rollout, options):
    return -len(rollout.text) / 100
"""


def insert(file: str, before: str, text: str) -> Callable[[Path], None]:
    """An edit that puts a text before another one."""

    def edit(workspace: Path) -> None:
        old = (workspace / file).read_text(encoding="utf-8")
        assert before in old
        (workspace / file).write_text(old.replace(before, text + before, 1), encoding="utf-8")

    return edit


EDITS = {
    "a space in the profiler": ("measure/profile.py", "def ", "\n", set()),
    "code in the profiler": ("measure/profile.py", "def ", "NEW = 1\n", set()),
    "code of a progress line": ("measure/progress.py", "class ", "NEW = 1\n", set()),
    "a comment in sampling": ("sampling/sampler.py", "\n\n\n", "\n# new\n", set()),
    "a docstring in algorithms": ("algorithms/policy_objective.py", '"""', '"""New. """\n', set()),
    "a surrogate that no run uses": ("algorithms/policy/sapo.py", "def ", "NEW = 1\n", set()),
    "a row that no run uses": ("algorithms/policy/rloo.py", "ROWS = {", "NEW = 1\n", set()),
    "code that says what is stale": ("pipeline/lock/git.py", "def ", "NEW = 1\n", set()),
    "a reward that no run uses": ("rewards/learned.py", "class ", "NEW = 1\n", set()),
    "the surrogate of one run": ("algorithms/policy/ppo.py", "\n\n\n", "\nNEW = 1\n", {"online@grpo"}),
    "the row of one run": ("algorithms/policy/grpo.py", "Shao 2024, ", "New ", {"online@grpo"}),
    "code in sampling": ("sampling/sampler.py", "\n\n\n", "\nNEW = 1\n", SAMPLING),
    "code of the grader": ("answers/units.py", "def ", "NEW = 1\n", SCORED),
    "code in training": ("train/loop.py", "def refuse_dropout", "NEW = 1\n", TRAINING),
    "code of the report": ("pipeline/report/page.py", "def ", "NEW = 1\n", {"report"}),
    "code of the tables of a task": (
        "pipeline/toy_tasks/two_step/text.py",
        "def ",
        "NEW = 1\n",
        {*SAMPLING, "data_tasks@two_step", "report"},
    ),
}


QUICK = ("a docstring in algorithms", "the row of one run")


@pytest.fixture(scope="module")
def workspace(smoke_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the finished pipeline for all tests here, each of which restores what it edits."""
    target = tmp_path_factory.mktemp("stale") / "workspace"
    run(smoke_workspace, "cp", "-a", str(smoke_workspace), str(target))
    return target


def stale(workspace: Path) -> set[str]:
    """What DVC calls changed by itself, once `code` has run."""
    done = dvc(workspace, "repro", "--quiet", "--single-item", "code")
    assert done.returncode == 0, done.stdout
    done = dvc(workspace, "status", "--json")
    assert done.returncode == 0, done.stdout
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return set(found)


@pytest.mark.parametrize("name", slow_except(QUICK, EDITS))
def test_an_edit_makes_only_the_runs_stale_that_can_run_it(workspace: Path, name: str) -> None:
    file, before, text, expected = EDITS[name]
    path = workspace / "posttrain" / file
    old = path.read_text(encoding="utf-8")
    assert before in old
    path.write_text(old.replace(before, text + before, 1), encoding="utf-8")
    try:
        assert stale(workspace) == expected
    finally:
        path.write_text(old, encoding="utf-8")


@pytest.mark.slow
def test_another_seed_makes_the_runs_stale_that_train_or_sample(workspace: Path) -> None:
    params = workspace / "params.yaml"
    text = params.read_text(encoding="utf-8")
    params.write_text(text.replace("seed: 0\n", "seed: 1\n", 1), encoding="utf-8")
    assert stale(workspace) == {*TRAINING, "data_samples@compared", "report"}
    params.write_text(text, encoding="utf-8")
    assert not stale(workspace)


@pytest.mark.slow
def test_another_torch_version_makes_the_runs_stale_that_import_it(workspace: Path, tmp_path: Path) -> None:
    """DVC looks at constraints.txt; the versions that count are those that are installed."""
    constraints = workspace / "constraints.txt"
    old = constraints.read_text(encoding="utf-8")
    constraints.write_text(old + "# new\n", encoding="utf-8")
    assert stale(workspace) == set()
    installed = tmp_path / "torch-99.0.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 99.0.0\n")
    env = environment() | {"PYTHONPATH": str(tmp_path)}
    told = subprocess.run(
        ["python", "-m", "posttrain", "status"], cwd=workspace, env=env, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    changed = {line.partition(":")[0] for line in told.stdout.splitlines() if " -> 99.0.0" in line}
    assert changed == ALL - {"data_tasks@two_step", "report"}
    constraints.write_text(old, encoding="utf-8")
    assert run(workspace, "python", "-m", "posttrain", "status").stdout == "nothing is stale\n"


@pytest.mark.slow
def test_a_module_of_the_users_makes_the_run_stale_that_names_it(own_workspace: Path) -> None:
    params, own = own_workspace / "params.yaml", own_workspace / "custom/mine.py"
    own.write_text(OWN)
    params.write_text(params.read_text().replace("{correct: 1.0, format: 0.2}", '{correct: 1.0, "mine:short": 0.1}'))
    dvc(own_workspace, "repro", "--single-item", "code")
    done = run(own_workspace, "python", "-m", "posttrain", "accept", "online", "--reason", "a test")
    assert (
        done.returncode == 1 and "something other than its code changed: params.yaml: online.runs.grpo" in done.stdout
    ), done.stdout
    assert dvc(own_workspace, "commit", "--force").returncode == 0
    assert stale(own_workspace) == set()
    own.write_text(OWN.replace("/ 100", "/ 50"))
    assert stale(own_workspace) == {"online@grpo"}


@pytest.mark.slow
def test_status_says_which_file_and_which_parameter_changed(own_workspace: Path) -> None:
    params = own_workspace / "params.yaml"
    params.write_text(params.read_text().replace("kl: {beta: 0.02}", "kl: {beta: 0.05}"))
    insert("posttrain/algorithms/policy/ppo.py", "\n\n\n", "\nNEW = 1\n")(own_workspace)
    done = run(own_workspace, "python", "-m", "posttrain", "status")
    *lines, left = done.stdout.splitlines()
    why = "params online.runs.grpo.kl.beta 0.02 -> 0.05; posttrain/algorithms/policy/ppo.py changed"
    assert lines == [
        f"online@grpo: {why}; then stale because of it: completions@grpo, evaluate@grpo",
        "report: params.yaml modified",
    ]
    assert re.fullmatch(r"13 of 17 stages are done; the others took \d+:\d\d when they last ran", left)
    assert done.returncode == 0


@pytest.mark.slow
def test_an_accepted_refactoring_is_recorded_and_nothing_runs(own_workspace: Path) -> None:
    insert("posttrain/pipeline/report/page.py", "def ", "NEW = 1\n")(own_workspace)
    insert("posttrain/algorithms/policy/ppo.py", "\n\n\n", "\nNEW = 1\n")(own_workspace)
    accept = ("python", "-m", "posttrain", "accept")
    done = run(own_workspace, *accept, "online@grpo", "report", "--reason", "a constant that nothing reads")
    assert done.stdout.splitlines() == [
        "online@grpo: accepted: posttrain/algorithms/policy/ppo.py changed",
        "report: accepted: posttrain/pipeline/report/page.py changed",
    ]
    (accepted,) = json.loads((own_workspace / "records/online/grpo.json").read_text())["accepted"]
    assert accepted["reason"] == "a constant that nothing reads"
    old, new = accepted["changed"]["files"]["posttrain/algorithms/policy/ppo.py"]
    assert old != new
    assert "up to date" in dvc(own_workspace, "status").stdout
    verified = run(own_workspace, "python", "-m", "posttrain", "repair", "verify")
    assert verified.returncode == 0, verified.stdout
    again = run(own_workspace, *accept, "report", "--reason", "again")
    assert again.returncode == 1 and "it is up to date" in again.stdout


KILLED = """import os, signal
import dvc.repo
from posttrain.pipeline.lock.accept import accept

dvc.repo.Repo.commit = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
accept(["report"], "a constant that nothing reads")
"""


@pytest.mark.parametrize("between", slow_except(("repair",), ("", "repair")))
def test_a_killed_accept_can_be_repeated(own_workspace: Path, between: str) -> None:
    insert("posttrain/pipeline/report/page.py", "def ", "NEW = 1\n")(own_workspace)
    record = own_workspace / "records/report.json"
    before = record.read_text()
    assert run(own_workspace, "python", "-c", KILLED).returncode == -9
    assert record.read_text() != before
    if between:
        said = run(own_workspace, "python", "-m", "posttrain", between).stdout
        assert "`accept` of report was interrupted: undone, run it again" in said and "dvc repro --force" not in said
        assert record.read_text() == before
    again = run(own_workspace, "python", "-m", "posttrain", "accept", "report", "--reason", "a constant")
    assert again.stdout == "report: accepted: posttrain/pipeline/report/page.py changed\n"
    (accepted,) = json.loads(record.read_text())["accepted"]
    assert accepted["reason"] == "a constant"
    assert "up to date" in dvc(own_workspace, "status").stdout


@pytest.mark.slow
def test_a_stage_refuses_to_run_with_code_that_is_not_recorded(own_workspace: Path) -> None:
    insert("tasks/two_step/text.py", "def ", "NEW = 1\n")(own_workspace)
    lock = (own_workspace / "dvc.lock").read_bytes()
    done = dvc(own_workspace, "repro", "--force", "--single-item", "data_tasks@two_step")
    said = (
        "params.yaml or code changed after the stage `code` ran: posttrain/pipeline/toy_tasks/two_step/text.py changed"
    )
    assert done.returncode and f"error: code/data_tasks/two_step.json: {said}. Run `dvc repro`" in done.stdout
    assert (own_workspace / "dvc.lock").read_bytes() == lock


@pytest.mark.parametrize(("written", "fails"), [("# a comment", False), ("NEW = 1", True)])
@pytest.mark.slow
def test_code_that_is_edited_while_a_stage_runs_stops_it(own_workspace: Path, written: str, fails: bool) -> None:
    """The task edits itself: a comment may change, code not."""
    (own_workspace / "custom/mine.py").write_text(
        "from pathlib import Path\n\n"
        "from posttrain.tasks.task import TASKS, Generator, Task\n\n"
        "two_step = TASKS['two_step'].generator\n\n\n"
        f"def tables(params):\n    with Path(__file__).open('a') as file:\n        file.write({written + chr(10)!r})\n"
        "    return two_step.tables(params)\n\n\nown = Task(Generator(two_step.params, two_step.kinds, tables))\n"
    )
    params = own_workspace / "params.yaml"
    params.write_text(params.read_text().replace("task: two_step", 'task: "mine:own"'))
    done = dvc(own_workspace, "repro", "data_tasks@two_step")
    assert bool(done.returncode) == fails, done.stdout
    assert ("custom/mine.py changed while data_tasks@two_step was running" in done.stdout) == fails
