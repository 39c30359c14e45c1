"""A stage is killed and its code edited: equal code resumes, other code asks, and a person decides."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.faults.edits import replaced
from benchmarks.faults.project import RUN, command, ended, errors, made, products, repro, started

EDIT = replaced("stages/fit.py", "SCALE * numbers", "2 * SCALE * numbers")
COMMENT = replaced("stages/fit.py", "weight = saved", "# where it stopped\n    weight = saved")
DOCSTRING = replaced("posttrain/files.py", '"""Write plain data', '"""Write any plain data')
RESUME, RESTART = (f"posttrain checkpoints {action} {RUN}" for action in ("resume", "restart"))


def killed(folder: Path, *words: str) -> None:
    """Kill the stage `fit` with SIGKILL after its first checkpoint, and wait for those that started it."""
    pattern = "checkpoints/fit/*/*/step-*/sums.json"  # no rglob: it fails when the stage renames a folder meanwhile
    before = set(folder.glob(pattern))
    process = started(folder, *words)
    while not set(folder.glob(pattern)) - before:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    below = psutil.Process(process.pid).children(recursive=True)
    for child in (one for one in below if "stages.fit" in " ".join(one.cmdline())):
        child.kill()
    assert ended(process).status


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small project with a run that was killed after its first checkpoint."""
    folder = made(tmp_path_factory.mktemp("checkpoints") / "template")
    assert repro(folder, "numbers").status == 0
    killed(folder, "dvc", "repro", RUN)
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "project", symlinks=True))


def from_nothing(folder: Path) -> dict[str, str]:
    """What the run gives without any checkpoint."""
    other = Path(shutil.copytree(folder, folder.with_name("other"), symlinks=True))
    shutil.rmtree(other / "checkpoints")
    done = repro(other, "--force", "--single-item", RUN)
    assert "fit begins at step 0" in done.output and not done.status, done.output
    return products(other)


def resumed(output: str) -> bool:
    return "fit begins at step" in output and "fit begins at step 0" not in output


@pytest.mark.slow
def test_a_comment_and_a_docstring_are_no_change_and_the_bytes_are_the_same(folder: Path) -> None:
    COMMENT(folder)
    DOCSTRING(folder)
    done = repro(folder, RUN)
    assert done.status == 0 and resumed(done.output), done.output
    assert products(folder) == from_nothing(folder)
    assert "resumed_after_edits" not in (folder / "records/fit/a.json").read_text()


@pytest.mark.slow
def test_other_code_is_named_with_both_commands_and_resume_is_for_this_code_alone(folder: Path) -> None:
    EDIT(folder)
    before = sorted((folder / "checkpoints").rglob("step-*"))
    refused = repro(folder, RUN)
    (line,) = errors(refused.output)
    assert refused.status and "Traceback" not in refused.output
    assert "step 5, saved " in line and "made with other code or packages: stages/fit.py changed. " in line
    assert f"`{RESUME}`" in line and f"`{RESTART}`" in line
    assert sorted((folder / "checkpoints").rglob("step-*")) == before and not (folder / "models/fit/a").exists()
    accepted = command(folder, "posttrain", "checkpoints", "resume", RUN)
    assert accepted.status == 0 and "resumes at step 5" in accepted.output, accepted.output

    text = (folder / "stages/fit.py").read_text()
    replaced("stages/fit.py", "2 * SCALE", "3 * SCALE")(folder)
    assert RESUME in errors(repro(folder, RUN).output)[0], "a later edit asks again"
    (folder / "stages/fit.py").write_text(text)
    killed(folder, "dvc", "repro", RUN)
    again = repro(folder, RUN)
    assert again.status == 0 and resumed(again.output), again.output
    record = json.loads((folder / "records/fit/a.json").read_text())
    assert record["resumed_after_edits"] == "step 5: stages/fit.py changed"
    assert not command(folder, "posttrain", "repair", "verify").status


@pytest.mark.slow
def test_restart_removes_the_checkpoint_and_the_run_is_that_of_the_new_code(folder: Path) -> None:
    replaced("posttrain/scale.py", "1.0", "3.0")(folder)
    early = command(folder, "posttrain", "checkpoints", "restart", RUN)
    assert early.status == 1 and "none of its runs was stopped because" in early.output
    assert "posttrain/scale.py" in errors(repro(folder, RUN).output)[0]
    removed = command(folder, "posttrain", "checkpoints", "restart", RUN)
    assert removed.status == 0 and "removed step 5 of fit@a" in removed.output, removed.output
    done = repro(folder, RUN)
    assert done.status == 0 and "fit begins at step 0" in done.output, done.output
    assert products(folder) == from_nothing(folder)


@pytest.mark.slow
def test_other_packages_are_named_with_both_versions(folder: Path) -> None:
    for file in (folder / "checkpoints").rglob("state.json"):
        state = json.loads(file.read_text())
        state["maker"]["packages"]["torch"] = "2.1.0"
        rewritten(file, state)
    line = errors(repro(folder, RUN).output)[0]
    assert "torch 2.1.0 -> 2." in line and RESUME in line


@pytest.mark.slow
def test_a_checkpoint_of_a_newer_version_is_refused(folder: Path) -> None:
    for file in (folder / "checkpoints").rglob("state.json"):
        rewritten(file, {**json.loads(file.read_text()), "format": 99})
    (line,) = errors(repro(folder, RUN).output)
    assert "made by a newer posttrain (format 99" in line


@pytest.mark.slow
def test_a_checkpoint_of_an_older_version_stops_the_run_and_stays(folder: Path) -> None:
    files = [*(folder / "checkpoints").rglob("state.json")]
    for file in files:
        rewritten(file, {**json.loads(file.read_text()), "format": 2})
    (line,) = errors(repro(folder, RUN).output)
    assert "made by an older posttrain (format 2; this one resumes format 3)" in line and "to start from step 0" in line
    assert all(file.is_file() for file in files)


def rewritten(file: Path, state: object) -> None:
    """Another state under a checksum that is right."""
    from hashlib import sha256

    file.write_text(json.dumps(state))
    sums = json.loads(file.with_name("sums.json").read_text())
    file.with_name("sums.json").write_text(json.dumps({**sums, file.name: sha256(file.read_bytes()).hexdigest()}))


@pytest.mark.slow
def test_parameters_that_are_changed_and_changed_back_resume(folder: Path) -> None:
    params = (folder / "params.yaml").read_text()
    replaced("params.yaml", "rate: 0.9", "rate: 0.8")(folder)
    other = repro(folder, RUN)
    assert "fit begins at step 0" in other.output and not other.status
    assert "fit@a: 1 unfinished runs with other parameters or inputs use " in other.output
    (folder / "params.yaml").write_text(params)
    back = repro(folder, RUN)
    assert back.status == 0 and resumed(back.output), back.output


HOLDER = """
import sys, time
from pathlib import Path
from posttrain.pipeline.workspace import hold
hold(Path(sys.argv[1]), "a run")
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_the_list_says_what_lies_there_and_clean_leaves_a_living_process_alone(folder: Path) -> None:
    shutil.copytree(folder / "checkpoints/fit/a", folder / "checkpoints/fit/b")
    (held,) = (folder / "checkpoints/fit/a").glob("*/held")
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(held)], cwd=folder, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"held\n"
        a, b, total = command(folder, "posttrain", "checkpoints").output.splitlines()
        assert a.startswith("fit@a  step 5") and a.endswith("  running") and total.endswith(" in all")
        assert b.startswith("fit@b  step 5") and b.endswith("  no such run in params.yaml")
        cleaned = command(folder, "posttrain", "clean", "checkpoints", "--all")
        assert "removed step 5 of fit@b" in cleaned.output and "fit@a" not in cleaned.output, cleaned.output
        process.kill()
    assert "removed step 5 of fit@a" in command(folder, "posttrain", "clean", "checkpoints", "--all").output
    assert command(folder, "posttrain", "checkpoints").output == "no checkpoints\n"


@pytest.mark.slow
def test_an_experiment_asks_and_resumes_by_the_same_command(folder: Path) -> None:
    (folder / "checkpoints").rename(folder / "set-aside")
    killed(folder, "dvc", "exp", "run", "--temp", "-S", "fit.runs.a.steps=50", RUN)
    assert list((folder / "checkpoints").rglob("step-*")), "they lie in the main workspace"
    EDIT(folder)
    refused = command(folder, "dvc", "exp", "run", "--temp", "-S", "fit.runs.a.steps=50", RUN)
    assert refused.status and RESUME in errors(refused.output)[0], refused.output
    accepted = command(folder, "posttrain", "checkpoints", "resume", RUN)
    assert accepted.status == 0, accepted.output
    done = command(folder, "dvc", "exp", "run", "--temp", "-S", "fit.runs.a.steps=50", RUN)
    assert done.status == 0 and resumed(done.output), done.output


@pytest.mark.slow
def test_a_flow_asks_and_resumes_by_the_same_command(folder: Path) -> None:
    shutil.copytree(Path(__file__).resolve().parents[2] / "flows", folder / "flows")
    EDIT(folder)
    refused = command(folder, "flows.pipeline")
    assert refused.status and RESUME in refused.output, refused.output
    accepted = command(folder, "posttrain", "checkpoints", "resume", RUN)
    assert accepted.status == 0, accepted.output
    done = command(folder, "flows.pipeline")
    record = json.loads((folder / "records/fit/a.json").read_text())
    assert done.status == 0 and record["resumed_after_edits"] == "step 5: stages/fit.py changed", done.output
