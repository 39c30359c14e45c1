"""Every moment belongs to one phase, and what a run spent before it was killed is not forgotten."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.measure import counts, phases, timings
from posttrain.measure.phases import Clock, phase
from tests.library.models.tiny import tiny_folder
from tests.pipeline.train.test_training import CutError, CutSource, make_run, train


class Hand:
    """The time as the test sets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    """A clock of our own in the place of the process's, moved by hand."""
    hand = Hand()
    clock = Clock(hand)
    monkeypatch.setattr(phases, "CLOCK", clock)
    monkeypatch.setattr(timings, "CLOCK", clock)
    return hand


def test_each_moment_belongs_to_the_innermost_phase(hand: Hand) -> None:
    hand.now = 2.0  # imports
    phases.CLOCK.begin()
    hand.now = 3.0
    with phase("train"):
        hand.now = 4.0
        with phase("write"):
            hand.now = 14.0
        hand.now = 15.0
        with phase("train"):
            hand.now = 16.0
    hand.now = 20.0
    spent = phases.CLOCK.seconds()
    unused = {"generate": 0.0, "reward": 0.0, "reference": 0.0}
    assert spent == {**unused, "load": 2.0, "train": 3.0, "write": 10.0, "other": 5.0}
    assert sum(spent.values()) == hand.now


def test_a_phase_ends_with_what_it_raises(hand: Hand) -> None:
    phases.CLOCK.begin()

    @phase("reward")
    def fails() -> None:
        hand.now += 1.0
        raise ValueError("on purpose")

    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            fails()
    hand.now += 5.0
    assert phases.CLOCK.seconds()["reward"] == 2.0
    assert phases.CLOCK.seconds()["other"] == 5.0


def test_watchers_hear_of_every_phase(hand: Hand) -> None:
    heard: list[str] = []

    class Listens:
        def entered(self, name: str) -> None:
            heard.append(f"+{name}")

        def left(self, name: str) -> None:
            heard.append(f"-{name}")

    phases.CLOCK.watchers.append(Listens())
    with phase("train"), phase("reward"):
        pass
    assert heard == ["+train", "+reward", "-reward", "-train"]


def test_a_run_that_goes_on_counts_its_starts(hand: Hand) -> None:
    hand.now = 3.0
    kept = json.loads(json.dumps(timings.timings_state()))  # as a checkpoint has it
    timings.restore_timings(kept)
    assert phases.CLOCK.seconds()["load"] == 6.0
    assert phases.CLOCK.starts == 2
    timings.restore_timings(None)  # a checkpoint of an older version has none
    assert phases.CLOCK.starts == 2


@pytest.mark.slow
def test_a_checkpoint_brings_the_seconds_of_the_life_before(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    folder = tiny_folder(tmp_path / "tiny")
    hand.now = 7.0
    phases.CLOCK.begin()
    cut = make_run(folder, "sft", tmp_path)
    object.__setattr__(cut, "source", CutSource(cut.source, 3))
    with pytest.raises(CutError):
        train(cut, tmp_path)

    second = Clock(hand)  # as in the process that goes on
    monkeypatch.setattr(phases, "CLOCK", second)
    monkeypatch.setattr(timings, "CLOCK", second)
    second.begin()
    train(make_run(folder, "sft", tmp_path), tmp_path)
    assert second.starts == 2
    assert second.seconds()["load"] == 7.0


def test_the_file_the_line_and_the_table(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(counts, "COUNTS", Counter())
    with pytest.raises(PipelineError, match="no timings found"):
        timings.timings_table()
    phases.CLOCK.begin()
    with phase("generate"):
        hand.now = 3.0
        counts.count({"generate_tokens": 4500})
    hand.now = 4.0
    timings.report_timings("online@grpo")
    assert "online@grpo: 4.0 s: generate 3.0 s (1,500 tokens/s), other 1.0 s" in capsys.readouterr().err
    written = json.loads((tmp_path / "timings/online/grpo.json").read_text())
    assert written["seconds"]["generate"] == 3.0
    assert written["total"] == 4.0
    row = next(line for line in timings.timings_table().splitlines() if line.startswith("online@grpo"))
    assert row.split()[1:4] == ["4.0", "0%", "75%"]
    (tmp_path / "timings/sft.json").write_text("{}")
    with pytest.raises(PipelineError, match=r"sft\.json"):
        timings.timings_table()


def test_counts_are_in_the_line_the_file_and_the_next_process(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(counts, "COUNTS", Counter())
    timings.report_timings("sft")
    assert "counts" not in json.loads((tmp_path / "timings/sft.json").read_text())
    counts.count({"judge requests": 3, "judge cost": 0.25})
    kept = json.loads(json.dumps(timings.timings_state()))  # as a checkpoint has it
    monkeypatch.setattr(counts, "COUNTS", Counter())
    timings.restore_timings(kept)
    counts.count({"judge requests": 2})
    timings.report_timings("sft")
    assert capsys.readouterr().err.rstrip().endswith("; judge requests 5; judge cost 0.25")
    found = json.loads((tmp_path / "timings/sft.json").read_text())
    assert found["counts"] == {"judge requests": 5, "judge cost": 0.25}
