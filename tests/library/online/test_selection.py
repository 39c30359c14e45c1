"""Selections of own samples: rows, groups and metrics."""

from __future__ import annotations

import torch

from posttrain.online.selection import FilteredSource, groups, rewards_and_groups, selected_rows, stacked
from posttrain.rollout import TokenRow, token_rows
from posttrain.train.batch_sources import EpochSource, Example
from posttrain.train.step import make_batch

BATCH = make_batch(token_rows([[1]] * 3, [[2], [3, 3], [4]]), {"reward": torch.tensor([1.0, 2.0, 6.0]),
                                                               "group": torch.tensor([7, 3, 7])})  # fmt: skip


def test_rewards_groups_and_rows() -> None:
    reward, group = rewards_and_groups(BATCH)
    assert (reward.tolist(), group.tolist()) == ([1, 2, 6], [7, 3, 7])
    assert [rows.tolist() for rows in groups(group)] == [[0, 2], [1]]
    chosen = selected_rows(BATCH, torch.tensor([2, 1]))
    assert [row.rest for row in chosen.rows] == [[4], [3, 3]] and chosen.columns.item_B is None
    assert chosen.columns.rows["reward"].tolist() == [6, 2]


def test_stacked() -> None:
    assert stacked([torch.tensor(3), torch.tensor(1)]).tolist() == [3, 1] and stacked([]).tolist() == []


def test_a_filtered_source_counts_what_it_selects() -> None:
    example = Example([TokenRow([1], [2]), TokenRow([1], [2, 3])], {"reward": [1.0, 3.0]})
    source = FilteredSource(
        EpochSource([example], 1, 2, 0), lambda batch, step: selected_rows(batch, torch.tensor([1]))
    )
    assert source.steps == 2 and len(source.batch(0)) == 1
    assert source.metrics() == {"reward": 2.0, "length": 1.5, "chosen_rows": 1.0}
    assert source.state_dict() == {}
