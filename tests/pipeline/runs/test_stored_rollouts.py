"""The stored rollouts of a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from posttrain.errors import DataError
from posttrain.online.collect import Draw
from posttrain.online.rollout_log import SUMMARY
from posttrain.pipeline.outside.rollouts.sampled import Sampled
from posttrain.pipeline.outside.rollouts.training_rollouts import Rollouts
from posttrain.pipeline.runs import stored_rollouts as module
from posttrain.pipeline.runs.stored_rollouts import StoredGroups, StoredRollouts
from posttrain.rollout import Prompt, Score, TokenRow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two draws of two samples; the second turn of each answer is not trained."""
    tokens = (TokenRow([1, 2], [3, 4, 5], [True, False, True]), [-0.5, -0.25])
    found = [
        Sampled(group, 0, [("user", group)], f"{group}{nth}", {"correct": Score(float(nth))}, length=2, tokens=tokens,
                finish="stop", info={"n": nth})
        for group in ("a", "b")
        for nth in range(2)
    ]  # fmt: skip
    Rollouts(found, {}, "theirs", "external.rollouts.theirs").write(tmp_path / "run", None, "v")
    return tmp_path / "run"


def changed(folder: Path, **values: object) -> None:
    file = folder / SUMMARY
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def prompts(folder: Path) -> list[Prompt]:
    ids = pl.read_parquet(folder / "part-00000.parquet")["prompt_id"].unique(maintain_order=True)
    return [Prompt(name, [], [1, 2]) for name in ids]


def test_rollouts_are_drawn_as_they_were(folder: Path) -> None:
    stored, asked = StoredRollouts(folder, "replay"), prompts(folder)
    found = stored.drawn(0, asked)
    assert [(one.text, one.sample, one.scores["correct"]) for one in found] == [
        ("a0", 0, Score(0.0)), ("a1", 1, Score(1.0)), ("b0", 0, Score(0.0)), ("b1", 1, Score(1.0)),
    ]  # fmt: skip
    first = found[0]
    assert list(first.row.rest) == [3, 4, 5] and list(first.row.mask or ()) == [True, False, True]
    assert (list(first.logps), first.finish, first.info, first.version) == (
        [-0.5, -0.25],
        "stop",
        {"n": 0},
        "theirs round 0",
    )
    assert [one.text for one in stored.drawn(1, asked[1:])] == ["b0", "b1"]
    assert [one.text for one in StoredGroups(stored).sample(Draw(asked[1:], 1, 0))] == ["b0", "b1"]
    with pytest.raises(DataError, match="draw 0 is not of prompt"):
        stored.drawn(0, asked[::-1])
    with pytest.raises(DataError, match="draw 2 is not of prompt"):
        stored.drawn(2, asked[:1])


def test_the_table_and_its_figures(folder: Path) -> None:
    changed(folder, steps=[{"loss": 0.5}])
    stored = StoredRollouts(folder, "replay")
    assert stored.steps == [{"loss": 0.5}] and stored.table().height == 4
    assert module._part(stored.parts[0]).height == 4
    assert stored.figures(stored.parts[0], pl.col("reward").sum()).item() == 2.0
    assert stored._draws == [(folder / "part-00000.parquet", 0, 1)]


def test_folders_without_all_of_the_text_are_refused(folder: Path) -> None:
    for values, words in (
        ({"rollouts": "sampled"}, "replay needs all rollouts, but these were stored with rollouts: sampled"),
        ({"rollouts": "full", "text_ends_at_round": 3}, "from round 3 on no text"),
        ({"text_ends_at_round": None, "rows": 5}, "some of the rollouts are missing"),
    ):
        changed(folder, **values)
        with pytest.raises(DataError, match=words):
            StoredRollouts(folder, "replay")
    (folder / SUMMARY).unlink()
    with pytest.raises(DataError, match="no rollouts can be read here"):
        StoredRollouts(folder, "replay")
