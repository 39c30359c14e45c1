"""The exit code of the command `posttrain`, and how it ends with an error."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from dvc.exceptions import DvcException

from posttrain import __main__ as command
from posttrain.errors import FREE_MEMORY, ParamsError, PipelineError, PosttrainError
from posttrain.pipeline.commands import line


@pytest.fixture(autouse=True)
def no_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POSTTRAIN_TRACEBACK", raising=False)
    monkeypatch.chdir(tmp_path)


def ended(monkeypatch: pytest.MonkeyPatch, *words: str, entry: str = "main") -> int:
    """Run the command in this process."""
    monkeypatch.setattr(sys, "argv", ["posttrain", *words])
    status: int = getattr(command, entry)()
    return status


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let every command end with this error."""

    def fail(arguments: Any) -> str:
        raise error

    monkeypatch.setattr(line, "run", fail)


def test_a_command_that_works_ends_with_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for entry in ("main", "script"):
        assert ended(monkeypatch, "params", "dpo", entry=entry) == 0
        assert "dpo" in capsys.readouterr().out


def test_a_mistake_ends_with_1_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "chek", entry="script") == 1
    assert capsys.readouterr().err.startswith("error: posttrain: unknown command 'chek'. Did you mean 'check'?")


def test_a_mistake_is_a_document_with_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(monkeypatch, "params", "dpoo", "--json") == 1
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["code"] == "params" and "dpoo" in told["what"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "gone.txt"), "gone.txt"),
        (ModuleNotFoundError("no peft", name="peft"), "peft"),
        (MemoryError("no room"), f"memory or threads ran out (no room). {FREE_MEMORY}"),
        (PipelineError(what="it is damaged", where="a table", fix="Write it again"), "a table: it is damaged"),
    ],
)
def test_a_failure_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, said: str
) -> None:
    raising(monkeypatch, error)
    assert ended(monkeypatch, "params") == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and said in " ".join(shown.split())


@pytest.mark.parametrize("error", [ModuleNotFoundError("no mine", name="mine"), RuntimeError("a fault")])
def test_a_fault_of_code_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    raising(monkeypatch, error)
    with pytest.raises(type(error), match=str(error)):
        ended(monkeypatch, "params")


def of_dvc(cause: BaseException) -> PosttrainError:
    error = PipelineError(what="DVC cannot read the pipeline", where="dvc.yaml", fix="Correct it")
    error.__cause__ = cause
    return error


def test_the_mistake_in_params_yaml_stands_behind_an_error_of_dvc() -> None:
    Path("params.yaml").write_text("sft: {runs: {main: {epoch: 3}}}\n", encoding="utf-8")
    found = command._params_error_behind(of_dvc(DvcException("no")))
    assert isinstance(found, ParamsError) and "sft" in str(found)


def test_an_error_without_such_a_mistake_stays() -> None:
    Path("params.yaml").write_text("sft: {runs: {main: {epoch: 3}}}\n", encoding="utf-8")
    for error in (of_dvc(ValueError("of our own")), PipelineError(what="no", where="here", fix="Nothing")):
        assert command._params_error_behind(error) is error


def test_the_code_of_a_checkout_is_run_in_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "posttrain").mkdir()
    (tmp_path / "posttrain/__main__.py").touch()
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, words: started.append(words))
    assert ended(monkeypatch, "chek", entry="script") == 1
    assert started == [[sys.executable, "-m", "posttrain", "chek"]]
