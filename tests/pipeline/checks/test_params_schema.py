"""The whole params.yaml is checked, and its parameters are described."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from posttrain.errors import ParamsError
from posttrain.pipeline import EXPLAINED
from posttrain.pipeline.checks import params_schema as module
from posttrain.pipeline.checks.params_schema import check_params, section_texts
from posttrain.pipeline.runs.base import FolderRun
from posttrain.pipeline.runs.external import ExternalRun
from posttrain.pipeline.tables.sources import FilesRun
from posttrain.settings.params import check

RIGHT = "data: {tasks: {toy: {task: two_step}}}\nbase: {scratch: {tiny: {data: toy/corpus, steps: 40}}}\n"


class Inner(BaseModel):
    """A model within another."""

    size: int = 3


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("custom").mkdir()


def test_runs_are_counted_or_their_mistakes_listed() -> None:
    Path("params.yaml").write_text(RIGHT)
    assert check_params().splitlines()[0] == "params.yaml: 2 runs are right"
    Path("params.yaml").write_text(RIGHT.replace("data: {", "format: 2\ndata: {").replace("base:", "sft: {}\nbase:"))
    assert check_params().startswith("params.yaml: 2 runs are right")
    Path("params.yaml").write_text("data: {tasks: {toy: {task: two_step}}}\n")
    assert check_params().startswith("params.yaml: 1 run is right")
    Path("params.yaml").write_text(RIGHT.replace("40", "x").replace("two_step", "two_stpe"))
    with pytest.raises(ParamsError) as raised:
        check_params()
    assert raised.value.what == "nothing was run or removed" and raised.value.fix.startswith("Fix these 2 ")


def test_mistakes_are_one_error() -> None:
    one = module._mistakes(["a: wrong"])
    assert (one.what, one.fix) == ("a: wrong", "Nothing was run or removed")
    two = module._mistakes(["a: wrong. ", f"b: wrong {EXPLAINED}"])
    assert two.fix == f"Fix these 2 ({EXPLAINED}):\n  a: wrong\n  b: wrong"
    found: list[str] = []
    with module._collected(found):
        raise ParamsError(what="wrong", where="params.yaml", fix="Fix it")
    assert found == ["wrong. Fix it"]


def test_braces_are_written_out() -> None:
    said = module._without_braces("  reward: {mine:score: 1.0}")
    assert said.splitlines()[1:] == ["  reward:", "    mine:score: 1.0"]
    assert module._without_braces("reward: {mine:score: 1.0,") == "Write the name on a separate line, without braces"


def test_missing_inputs_are_named(tmp_path: Path) -> None:
    def said(kind: type[Any], **given: Any) -> list[str]:
        return list(module._missing_inputs("a.b", check(kind, given, where="a.b"), tmp_path))

    Path("my").mkdir()
    Path("my/a.jsonl").touch()
    assert said(FilesRun, path="my", chat="a.jsonl") == []
    (line,) = said(FilesRun, path="my", chat="b.jsonl")
    assert line.endswith("my/b.jsonl not found. Did you mean 'a.jsonl'?")
    assert said(FolderRun, path="none") == ["a.b.path = 'none': folder not found."]
    assert said(FolderRun, path="my/a.jsonl")[-1] == "a.b.path = 'my/a.jsonl': is a file, not a folder."
    assert said(FolderRun, path="my") == ["a.b.path = 'my': it has no config.json. Give the folder of a model."]
    (line,) = said(ExternalRun, command="a", script="my/run.py", start="base/a", data="none")
    assert line.startswith("a.b.script = 'my/run.py': not found.")


def test_parameters_are_described() -> None:
    texts = section_texts()
    assert texts["the top level"].startswith("the top level\n  seed  int (default 0)")
    assert texts["sft.runs.NAME"].startswith("sft.runs.NAME\n  ")


def test_types_are_shown_in_short() -> None:
    shown = {
        "mapping": dict[str, int], "a|b": Literal["a", "b"], "int|null": int | None, "null": type(None), "float": float,
        "list[int]": list[int], "list[str]|int": list[str] | int,
    }  # fmt: skip
    for text, annotation in shown.items():
        assert module._type(annotation) == text
    assert module._model_in(Inner) is Inner and module._model_in(Inner | None) is Inner
    assert module._model_in(list[Inner]) is Inner and module._model_in(int | None) is None
