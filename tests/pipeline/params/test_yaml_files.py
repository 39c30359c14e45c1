"""YAML is parsed once per process and again after an edit; aliases that would swell to gigabytes are refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ruamel.yaml.composer import Composer

from posttrain.__main__ import main
from posttrain.errors import ParamsError
from posttrain.pipeline.params import params_file
from posttrain.pipeline.params.yaml_files import read_yaml
from tests.workspace import ROOT

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every document that is composed from now on."""
    seen: list[object] = []
    compose = Composer.get_single_node

    def counted(composer: Composer) -> object:
        seen.append(composer)
        return compose(composer)

    monkeypatch.setattr(Composer, "get_single_node", counted)
    return seen


def test_a_file_is_parsed_once_and_again_after_an_edit(tmp_path: Path, parsed: list[object]) -> None:
    file = tmp_path / "params.yaml"
    file.write_text("seed: 1\nsft: {runs: {main: {start: base/tiny}}}\n")
    for _ in range(5):
        params_file.read(file)["sft"] = "changed by a caller"
        assert read_yaml(file)["sft"] == {"runs": {"main": {"start": "base/tiny"}}}
    assert len(parsed) == 1
    file.write_text("seed: 2\n")
    assert read_yaml(file) == {"seed": 2} and len(parsed) == 2


@pytest.mark.slow
def test_a_check_parses_params_once_for_its_own_reader(
    smoke_workspace: Path, monkeypatch: pytest.MonkeyPatch, parsed: list[object]
) -> None:
    from posttrain.pipeline.checks.params_schema import check_params

    monkeypatch.chdir(smoke_workspace)
    text = (smoke_workspace / "params.yaml").read_text()
    pure = [read_yaml("params.yaml")]
    parsed.clear()
    check_params()
    assert not parsed, "it was parsed again"
    assert read_yaml("params.yaml") == pure[0], "a reader changed what others get"
    assert text == (smoke_workspace / "params.yaml").read_text()


def test_an_alias_bomb_is_refused_at_once_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(BOMB)
    with pytest.raises(ParamsError, match=r"params.yaml: line 6: its aliases stand for more than 100000 values"):
        read_yaml(file)


def test_an_alias_in_itself_and_merged_keys_that_swell_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text("a: &a [1, *a]\n")
    with pytest.raises(ParamsError, match="line 1: an alias contains itself"):
        read_yaml(file)
    file.write_text("seed: 1\nsft: &s {runs: {a: 1}}\nreward: {<<: *s, more: *s}\n")
    assert read_yaml(file)["reward"] == {"runs": {"a": 1}, "more": {"runs": {"a": 1}}}, "a few are right"


@pytest.mark.parametrize("command", ["check", "status", "show results", "clean", "repair", "repair verify"])
def test_every_command_ends_on_an_alias_bomb(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("dvc.yaml", "constraints.txt", ".dvc/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "params.yaml").write_text(BOMB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["posttrain", *command.split()])
    assert main() == 1
    assert "line 6: its aliases" in capsys.readouterr().err


def test_what_yaml_means_stays(tmp_path: Path) -> None:
    """Of version 1.2: 1e-5 is a number, `no` a text, 010 is ten; a key that is given twice is refused."""
    file = tmp_path / "params.yaml"
    file.write_text("a: 1e-5\nb: no\nc: 010\n")
    assert read_yaml(file) == {"a": 1e-5, "b": "no", "c": 10}
    file.write_text("a: 1\na: 2\n")
    with pytest.raises(ParamsError, match="duplicate key"):
        read_yaml(file)
