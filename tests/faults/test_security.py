"""No pickle is read, no secret is written down, and no path in the parameters leads out of the workspace."""

from __future__ import annotations

import io
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faults.changes import ROWS
from benchmarks.faults.kills import prepared
from benchmarks.faults.processes import Server
from benchmarks.faults.surroundings import STAGES
from benchmarks.faults.tried import LINKS
from tests.workspace import ROOT, dvc, environment

CANARY = "-".join(("canary", "7f3a9c51e2"))  # whole in no file of the checkout, so in none of its copies
SECRETS = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "POSTTRAIN_SECRET", "DATABASE_PASSWORD")


def forbid_pickle() -> None:
    """In the stage's process: whatever would run what a pickle says fails, from Python and from C."""

    def hook(event: str, arguments: object) -> None:
        if event == "pickle.find_class":
            raise PermissionError(f"a pickle was read: {arguments}")

    sys.addaudithook(hook)
    import torch

    for owner, name in ((pickle, "load"), (pickle, "loads"), (torch, "load"), (torch, "save")):
        setattr(owner, name, _refused(name))


def _refused(name: str) -> object:
    def refuse(*arguments: object, **named: object) -> None:
        raise PermissionError(f"{name} was called")

    return refuse


def read_a_pickle() -> None:
    """In the stage's process: what the hook has to catch."""
    forbid_pickle()
    pickle.Unpickler(io.BytesIO(pickle.dumps(Path))).load()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server({name: f"{CANARY}-{name}" for name in SECRETS}) as started:
        yield started


@pytest.mark.slow
def test_every_stage_runs_where_pickle_is_forbidden(server: Server, smoke_workspace: Path, tmp_path: Path) -> None:
    workspace = prepared(smoke_workspace, tmp_path / "w")
    for stage in (*STAGES, "sft main"):  # the second time from its checkpoint
        ended = server.run(workspace, stage, before="tests.faults.test_security:forbid_pickle")
        assert ended.status == 0, f"{stage}: {ended.output}"
    report = prepared(smoke_workspace, tmp_path / "r", "report")
    assert server.run(report, "report", before="tests.faults.test_security:forbid_pickle").status == 0


@pytest.mark.slow
def test_the_prohibition_works(server: Server, smoke_workspace: Path, tmp_path: Path) -> None:
    workspace = prepared(smoke_workspace, tmp_path / "w")
    ended = server.run(workspace, "sft main", before="tests.faults.test_security:read_a_pickle")
    assert ended.status != 0 and "a pickle was read" in ended.output


def found_in(folder: Path, words: str) -> list[str]:
    """The files under a folder that hold these words, as bytes."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and words.encode() in path.read_bytes()]


@pytest.mark.slow
def test_no_secret_of_the_environment_is_written_down(server: Server, smoke_workspace: Path, tmp_path: Path) -> None:
    """By no stage, whether it ends well, is refused, or tells where an error was raised."""
    workspace = prepared(smoke_workspace, tmp_path / "w")
    for stage in STAGES:
        ended = server.run(workspace, stage)
        assert ended.status == 0 and CANARY not in ended.output, stage
    given = {"change": "damage", "arguments": {"file": "data/two_step/chat.parquet", "how": "head"}}
    refused = server.run(
        workspace, "sft main", before="benchmarks.faults.changes:apply", given=given, env={"POSTTRAIN_TRACEBACK": "1"}
    )
    assert refused.status == 1 and "Traceback" in refused.output and CANARY not in refused.output
    assert not found_in(workspace, CANARY)


@pytest.mark.slow
def test_no_secret_gets_into_what_dvc_writes(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"{CANARY}-{name}")
    done = dvc(own_workspace, "repro", "--force", "--single-item", "report")
    assert done.returncode == 0 and CANARY not in done.stdout
    assert not found_in(own_workspace, CANARY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value", "stage", "words"),
    [
        ("base.folders.mine.path", "../other", "base_folders mine", "outside the workspace"),
        ("base.folders.mine.path", "linked", "base_folders mine", "outside the workspace"),
        ("base.hub.theirs.name", "../other", "base_hub theirs", "base.hub: ../other: the model '../other'"),
        ("data.files.mine.path", "../other", "data_files mine", "is outside the workspace"),
        ("data.files.mine.chat.path", "../../other", "data_files mine", "data.files.mine"),
        ("data.hub.theirs.chat.name", "../other", "data_hub theirs", "data.hub.theirs.chat.name"),
        ("evaluate.settings.reference", "../../other", "completions sft", "evaluate.settings.reference"),
        ("evaluate.settings.reference", "x@..@..@other", "completions sft", "evaluate.settings.reference"),
        ("evaluate.policies.sft", "../../other", "completions sft", "evaluate.policies"),
        ("online.runs.grpo.start", "x@..@..@..@other", "online grpo", "online.runs.grpo.start"),
        ("online.runs.grpo.data", "../../other/prompts", "online grpo", "online.runs.grpo.data"),
    ],
)
def test_no_path_leads_out_of_the_workspace(
    server: Server, smoke_workspace: Path, tmp_path: Path, place: str, value: str, stage: str, words: str
) -> None:
    workspace = prepared(smoke_workspace, tmp_path / "w")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/rows.jsonl").write_text(ROWS)
    (workspace / "linked").symlink_to(tmp_path / "other")
    given = {"change": "setting", "arguments": {"path": place.split("."), "value": value}}
    ended = server.run(workspace, stage, before="benchmarks.faults.changes:apply", given=given)
    assert ended.status == 1 and words in ended.output, ended.output
    assert "Traceback" not in ended.output, ended.output


@pytest.mark.slow
@pytest.mark.parametrize(("place", "path", "value", "stage"), LINKS)
def test_no_link_leads_out_of_the_workspace(
    server: Server, smoke_workspace: Path, tmp_path: Path, place: str, path: str, value: str, stage: str
) -> None:
    workspace = prepared(smoke_workspace, tmp_path / "w")
    given = {"change": "linked", "arguments": {"place": place, "path": path.split("/"), "value": value}}
    ended = server.run(workspace, stage, before="benchmarks.faults.changes:apply", given=given)
    assert ended.status == 1 and re.search("outside the workspace|is outside models/", ended.output), ended.output


@pytest.mark.slow
def test_a_folder_outside_is_taken_where_it_is_allowed(server: Server, smoke_workspace: Path, tmp_path: Path) -> None:
    workspace = prepared(smoke_workspace, tmp_path / "w")
    (workspace / "models/sft/main").rename(tmp_path / "model")
    value = f"{{path: {tmp_path / 'model'}, outside_workspace: true}}"
    given = {"change": "setting", "arguments": {"path": ["base", "folders", "mine"], "value": value}}
    ended = server.run(workspace, "base_folders mine", before="benchmarks.faults.changes:apply", given=given)
    assert ended.status == 0, ended.output


@pytest.mark.slow
def test_a_stage_opens_no_connection() -> None:
    """The whole library imports without a socket being opened."""
    code = (
        "import sys\n"
        "def hook(event, arguments):\n"
        "    if event == 'socket.connect': raise PermissionError(arguments)\n"
        "sys.addaudithook(hook)\n"
        "from benchmarks.faults.server import load\n"
        "load()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment() | {"PYTHONPATH": str(ROOT)}, text=True
    )
    assert done.returncode == 0
