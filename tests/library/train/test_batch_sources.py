"""Batches of examples: each once per epoch, items, neighbours and parts of a state."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from posttrain.rollout import TokenRow
from posttrain.train.batch_sources import (
    EpochSource,
    Example,
    KtoSource,
    StepSource,
    WrappedSource,
    collate,
    epoch_places,
    prefixed,
    under,
)


def examples(count: int) -> list[Example]:
    return [Example([TokenRow([nth], [nth, nth])], {"label": [1.0]}) for nth in range(count)]


def test_each_example_is_used_once_per_epoch() -> None:
    first = [epoch_places(5, 2, step, seed=3) for step in range(3)]
    assert [len(some) for some in first] == [2, 2, 1] and sorted(chain(*first)) == [0, 1, 2, 3, 4]
    second = [epoch_places(5, 2, step, seed=3) for step in range(3, 6)]
    assert second != first and sorted(chain(*second)) == [0, 1, 2, 3, 4]


def test_sources() -> None:
    source = EpochSource(examples(5), 2, 1.5, 0)
    assert source.steps == 4 and StepSource(examples(5), 2, 7, 0).steps == 7
    assert [row.prompt[0] for row in source.batch(0).rows] == epoch_places(5, 2, 0, 0)
    assert source.metrics() == {} and source.state_dict() == {}
    with pytest.raises(ValueError, match="this source has no state"):
        source.load_state_dict({"a": torch.zeros(1)})
    wrapped = WrappedSource(source)
    assert wrapped.steps == 4 and wrapped.metrics() == {} and wrapped.state_dict() == {}
    assert wrapped.batch(1).rows == source.batch(1).rows


def test_neighbours_answers_are_mismatched() -> None:
    batch = KtoSource(examples(3), 3, 1, 0).batch(0)
    assert batch.columns.rows["label"].tolist() == [1, 1, 1, 0, 0, 0]
    own, others = batch.rows[:3], batch.rows[3:]
    assert [row.prompt for row in others] == [row.prompt for row in own]
    assert [row.rest for row in others] == [own[(nth + 1) % 3].rest for nth in range(3)]
    assert KtoSource(examples(1), 1, 1, 0).batch(0).columns.rows["label"].tolist() == [1]


def test_collate_numbers_the_items() -> None:
    batch = collate(
        [Example([TokenRow([1], [2])] * 2, {"side": [1, -1]}), Example([TokenRow([3], [4])], {"side": [1]})]
    )
    assert batch.columns.items.tolist() == [0, 0, 1] and batch.columns.rows["side"].tolist() == [1, -1, 1]


def test_parts_of_a_state() -> None:
    state = prefixed(update={"step": torch.tensor(3)}, source={"a": torch.tensor(1)})
    assert sorted(state) == ["source.a", "update.step"] and under(state, "update") == {"step": state["update.step"]}
