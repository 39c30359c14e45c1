"""What bash and zsh complete: real shells, in a real project."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.pipeline.commands.completion import SCRIPTS, completions
from tests.workspace import ROOT, environment

PROBE = {
    "bash": """source "$1"; shift; COMP_WORDS=(posttrain "$@"); COMP_CWORD=$#; _posttrain
        printf '%s\\n' "${COMPREPLY[@]}" """,
    "zsh": """compdef() { :; }; compadd() { printf '%s\\n' "${(@P)2}"; }; _files() { echo files; }; source "$1"; shift
        words=(posttrain "$@"); CURRENT=$#words; _posttrain""",
}
ASKED = {
    ("sho",): ["show"],
    ("show", "r"): ["results", "report"],
    ("show", "results", "--ag"): ["--against"],
    ("show", "results", "--against", "s"): ["sft", "sft/main"],
    ("compare", "sft", "g"): ["grpo"],
    ("serve", "on"): ["online/grpo"],
    ("plan", "online@"): ["online@grpo"],
    ("preview", "two_step/ch"): ["two_step/chat"],
    ("completion", ""): ["bash", "zsh"],
    ("params", "onl"): ["online", "online_dpo", "online_ipo"],
}


@pytest.mark.parametrize("asked", list(ASKED), ids=" ".join)
def test_words_are_completed(asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert completions(asked) == ASKED[asked]


def test_outside_of_a_project_nothing_but_the_command_line_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert completions(["compare", "s"]) == []
    assert completions(["compare", "--ag"]) == ["--against"]


@pytest.mark.slow
@pytest.mark.parametrize("shell", [shell for shell in SCRIPTS if shutil.which(shell)])
def test_the_shell_itself_completes(shell: str, tmp_path: Path) -> None:
    script, command = tmp_path / "completion", tmp_path / "posttrain"
    script.write_text(SCRIPTS[shell])
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m posttrain "$@"\n')
    command.chmod(0o755)
    env = {**environment(), "PATH": f"{tmp_path}:{environment()['PATH']}"}
    for asked, found in ASKED.items():
        words = [shell, "-c", PROBE[shell], shell, str(script), *asked]
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.stdout.split() == found, f"{asked}: {done.stderr}"
