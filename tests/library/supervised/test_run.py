"""A training on rows: with and without an evaluation of held-out ones."""

from __future__ import annotations

from pathlib import Path

from posttrain.models.files.text import load_text
from posttrain.rollout import token_rows
from posttrain.supervised.run import run_supervised
from posttrain.supervised.sft import SftConfig
from posttrain.train.batch_sources import Example
from posttrain.train.checkpoint import NoCheckpoints
from posttrain.train.metrics import NoRecorder
from posttrain.train.model_set import ModelSet
from posttrain.train.trained import Trained
from tests.library.models.tiny import random_rows, tiny_folder


def test_rows_are_trained_and_held_out_ones_measured(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    text, examples = load_text(folder), [Example([row]) for row in token_rows(*random_rows(6))]
    seen: list[int] = []
    for watch, last in ((None, {}), ({"every": 2}, {"heldout_loss"})):
        config = SftConfig(epochs=1.0, batch=2, watch=watch, optimizer={"lr": 1e-2})  # type: ignore[arg-type]
        models = ModelSet.load(config.runtime(), folder, config.needs, config)
        heldout = examples[:2] if watch else []
        found = run_supervised("sft@main", config, models, text, examples, heldout, None, NoCheckpoints(), NoRecorder(),
                              lambda step, _: seen.append(step))  # fmt: skip
        assert isinstance(found, Trained) and found.steps == 3 and found.models is models
        assert set(last) <= found[-1].keys() and len(found) == (4 if watch else 3)
    assert seen == [0, 1, 2, 0, 1, 2]
