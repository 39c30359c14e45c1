"""params.yaml as checked plain data, and its sections as typed settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.params.params_file import at, load, read
from posttrain.supervised.sft import SftConfig


def written(folder: Path, text: str) -> Path:
    (folder / "params.yaml").write_text(text)
    return folder / "params.yaml"


def test_read_and_load(tmp_path: Path) -> None:
    file = written(tmp_path, "format: 2\nsft: {runs: {a: {epochs: 2}, b: }}\n")
    assert read(file) == {"sft": {"runs": {"a": {"epochs": 2}, "b": None}}}
    assert load(SftConfig, "sft.runs.a", path=file).epochs == 2.0
    assert load(SftConfig, "sft.runs.b", path=file).epochs == SftConfig().epochs
    seeded = written(tmp_path, "seed: 7\nsft: {runs: {a: {epochs: 2}}}\n")
    assert read(seeded)["sft"]["runs"]["a"] == {"epochs": 2, "seed": 7}


def test_at() -> None:
    data = {"a": {"b": {"c": 1}}}
    assert at(data, "a.b.c") == 1 and at(data, "a") == {"b": {"c": 1}}
    with pytest.raises(ParamsError, match=r"a\.b has no section 'd'"):
        at(data, "a.b.d")
    with pytest.raises(ParamsError, match="the top level has no section 'x'"):
        at(data, "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sftt: {}\n", "unknown section 'sftt'"),
        ("sft: 3\n", "section 'sft' is 3, not a mapping"),
        ("sft:\n", "section 'sft' is empty"),
        ("sft: {run: {}}\n", "sft.run: unknown key.*Did you mean 'runs'"),
        ("sft: {epochs: 3}\n", "sft.epochs: unknown key.*Settings belong to a run: sft.runs.NAME.epochs"),
        ("evaluate: {xyz: 3}\n", "It belongs to evaluate.settings, or to evaluate.policies"),
        ("data: {xyz: 3}\n", "A run is data.GROUP.NAME; groups are"),
        ("sft: {runs: 3}\n", "sft.runs is 3, not a mapping"),
        ("format: 1\nsft: {}\n", "format = 1 is the format of an earlier version"),
    ],
)
def test_what_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=message):
        read(written(tmp_path, text))
