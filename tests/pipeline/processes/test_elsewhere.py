"""A stage whose processes the user's own command starts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.processes import elsewhere as module
from posttrain.pipeline.processes.elsewhere import start_elsewhere
from posttrain.pipeline.processes.schedulers import LAUNCH
from posttrain.pipeline.workspace import failure_path


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("sft: {runs: {main: {processes: 2}, one: {processes: 1}}}\n")
    for name in (LAUNCH, "RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_stage_without_a_command_or_with_one_process_starts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_elsewhere("sft@main") is False
    monkeypatch.setenv(LAUNCH, "true")
    assert start_elsewhere("sft@one") is False


def test_the_command_gets_the_number_and_the_stages_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAUNCH, "sh -c 'echo $0 $# > seen' {processes}")
    assert start_elsewhere("sft@main") is True
    number, words = Path("seen").read_text().split()
    assert number == "2" and int(words) > 0


def test_a_failure_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAUNCH, "sh -c 'exit 3'")
    with pytest.raises(PipelineError, match="`sh` ended with exit code 3"):
        start_elsewhere("sft@main")
    monkeypatch.setenv(LAUNCH, "sruun -n {processes}")
    with pytest.raises(PipelineError, match="`sruun` cannot be started: No such file or directory"):
        start_elsewhere("sft@main")
    file = failure_path("sft@main").resolve()
    file.parent.mkdir(parents=True)
    monkeypatch.setenv(LAUNCH, f"sh -c 'echo no > {file}; exit 3'")
    with pytest.raises(SystemExit):
        start_elsewhere("sft@main")


def test_the_words_of_a_command() -> None:
    assert module._words("srun -n 2 --label='a b'") == ["srun", "-n", "2", "--label=a b"]
    with pytest.raises(PipelineError, match="it is not a valid command"):
        module._words("srun 'a")
