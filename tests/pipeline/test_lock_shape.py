"""Files of DVC that DVC cannot have written: each reader names the file, and none ends in a traceback."""

from __future__ import annotations

import contextlib
import importlib
import json
from pathlib import Path

import pytest

from posttrain.errors import PosttrainError
from posttrain.pipeline.commands.line import parse
from posttrain.pipeline.lock.lock_shape import added_files, lock_stages
from tests.workspace import git, make_workspace

ODD = (
    "- 1", "5", "stages: 5", "stages: [a]", "stages: {a: 5}", "stages: {sft@main: {outs: 7}}",
    "stages: {sft@main: {outs: [5]}}", "stages: {sft@main: {deps: [{path: 5}]}}",
    "stages: {sft@main: {outs: [{path: a, md5: 5}]}}", "stages: {sft@main: {params: 5}}",
    "stages: {sft@main: {params: {params.yaml: 5}}}", 'stages: {sft@main: {outs: [{path: "a\\0b"}]}}',
    "%YAML 1.3\n--- {", "\x00", "%YAML 9999999999999999999999.1\n---\na: 1", "[" * 3000, "? {a: b}\n: c\n? [",
)  # fmt: skip
COMMANDS = (
    "status",
    "show results",
    "repair",
    "repair verify",
    "why sft.score",
    "compare",
    "promote sft --as best --dry-run",
    "params",
)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_workspace(tmp_path / "workspace", Path("recipes/smoke.yaml").resolve())
    git(root, "add", "--all")
    monkeypatch.chdir(root)
    return root


def ask(command: str) -> None:
    """Run a command in this process; it may answer, or end with a clear error."""
    with contextlib.suppress(PosttrainError):
        importlib.import_module(f"posttrain.pipeline.commands.{command.split(maxsplit=1)[0]}").run(
            parse(command.split())
        )


@pytest.mark.parametrize("text", ODD)
def test_an_odd_dvc_lock_is_one_clear_error(text: str) -> None:
    with pytest.raises(PosttrainError, match=r"dvc\.lock: (it cannot be read|DVC did not write it: )"):
        lock_stages(text, "dvc.lock")


@pytest.mark.parametrize("text", ["- 1", "outs: 5", "outs: [5]", "outs: [{md5: a}]"])
def test_an_odd_file_of_dvc_add_is_one_clear_error(text: str) -> None:
    with pytest.raises(PosttrainError, match=r"a\.dvc: DVC did not write it: "):
        added_files(text, "a.dvc")


def test_no_command_ends_in_a_traceback_by_an_odd_dvc_lock(workspace: Path) -> None:
    for text in ODD:
        for command in COMMANDS:
            (workspace / "dvc.lock").write_text(text)
            ask(command)


def test_no_command_ends_in_a_traceback_by_an_odd_dvc_yaml(workspace: Path) -> None:
    (workspace / "dvc.yaml").unlink()
    for text in ("stages: 5", "- 1", "stages: {a: 5}", "stages: {a: {cmd: b, outs: 5}}", "%YAML 1.1\n---\nstages: {}"):
        (workspace / "dvc.yaml").write_text(text)
        for command in (*COMMANDS, "check"):
            ask(command)


@pytest.mark.parametrize("text", ["%YAML 1.1\n---\nseed: 0\n", "%YAML 9.1\n---\nseed: 0\n", "%TAG ! a\n---\n!b 5"])
def test_directives_in_params_yaml(workspace: Path, text: str) -> None:
    (workspace / "params.yaml").write_text(text)
    for command in ("check", "status", "params", "show results"):
        ask(command)


@pytest.mark.parametrize("key", ["path", "chat"])
def test_null_bytes_in_params_yaml(workspace: Path, key: str) -> None:
    mine = {"path": "my", "chat": "a.jsonl", key: "a\0b"}
    (workspace / "params.yaml").write_text(json.dumps({"format": 2, "data": {"files": {"mine": mine}}}, indent=1))
    with pytest.raises(PosttrainError, match=r"params\.yaml: line [67]: the text contains a null byte"):
        importlib.import_module("posttrain.pipeline.commands.check").run(parse(["check"]))
    for command in ("status", "params", "show results"):
        ask(command)
