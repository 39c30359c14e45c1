"""The user's own command as a stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import ParamsError, PipelineError
from posttrain.pipeline.processes import own_command as module
from posttrain.pipeline.processes.own_command import OwnCommand, run_own, written_by


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my").mkdir()
    Path("my/make.sh").write_text('echo "$1 $POSTTRAIN_SEED $MORE" > "$2/a.txt"; echo done\n')


def test_a_command_writes_into_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MORE", "more")
    params = OwnCommand(command=["sh", "my/make.sh", "{start}", "{out}"], script="my/make.sh", env=["MORE"], seed=3)
    with written_by(params, "external.runs.a", Path("models/a"), Path("models/start"), None) as written:
        assert written == Path("models/.a.scratch.tmp")
        assert (written / "out/a.txt").read_text() == "models/start 3 more\n"
    assert not written.exists() and "done" in capfd.readouterr().out


def test_what_fails_is_named_with_its_last_lines() -> None:
    with pytest.raises(PipelineError, match=r"exit status 4. It printed last:\n  two\n"):
        run_own("echo two; exit 4", {}, [], Path("scratch"), "external.runs.a")
    with pytest.raises(PipelineError, match=r"exit status 1. It printed last: nothing"):
        run_own(["false"], {}, [], Path("scratch"), "external.runs.a")
    outside = OwnCommand(command="true", script="/bin/true")
    with (
        pytest.raises(ParamsError, match="it is outside the workspace"),
        written_by(outside, "a", Path("b"), None, None),
    ):
        pass


def test_placeholders_are_filled() -> None:
    assert module._filled("a {out} {other} ${x}", {"out": "b", "x": "c"}) == "a b {other} $c"


def test_the_environment_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MORE", "more")
    monkeypatch.setenv("HIDDEN", "secret")
    found = module._environment({"out": "b"}, ["MORE"], "external.runs.a")
    assert found["MORE"] == "more" and found["POSTTRAIN_OUT"] == "b" and found["PYTHONUNBUFFERED"] == "1"
    assert "HIDDEN" not in found
    with pytest.raises(ParamsError, match="the environment variable NONE_SUCH is not set"):
        module._environment({}, ["NONE_SUCH"], "external.runs.a")


def test_output_is_printed_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    printed = module._Printed()
    for part in (b"a\nb", b"\xc3", b"\xbc\r\n1 %\r2 %", b"\rend"):
        printed.show(part)
    printed.end()
    assert list(printed.last) == ["a", "bü", "1 %", "2 %", "end"]
    assert capsys.readouterr().out == "a\nbü\n1 %\r2 %\rend\n"
