"""Rows packed into one sequence by hand."""

from __future__ import annotations

import torch

from posttrain.rollout import Kept, TokenRow
from posttrain.text.packing import joined_kept, kept_of, micro_batches, pack, sent

ROWS = [TokenRow([1, 2], [3, 4]), TokenRow([1, 2], [5], [True]), TokenRow([], [6, 7, 8], [True, False, True])]


def test_pack_stores_a_shared_prompt_once() -> None:
    packed = pack(ROWS)
    assert packed.ids_N.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert packed.positions_N.tolist() == [0, 1, 2, 3, 2, 0, 1, 2]
    assert packed.spans == ((0, 2, 2, 2), (0, 2, 4, 1), (5, 0, 5, 3))
    assert packed.source_M.tolist() == [1, 2, 1, 6] and packed.target_M.tolist() == [3, 4, 5, 8]
    assert packed.lengths_B.tolist() == [2, 1, 1] and packed.last_B.tolist() == [3, 4, 7]
    assert packed.kept is None and packed.experts_NLK is None
    assert packed.rows_per_token().tolist() == [2, 2, 1, 1, 1, 1, 1, 1]
    assert packed.to(torch.device("cpu")) is packed


def test_buckets_hold_rows_of_similar_length() -> None:
    packed = pack([TokenRow([1, 2], [3, 4, 5, 6]), TokenRow([1, 2], [7])])
    gathers, take = packed.gathered
    assert [gather.tolist() for gather in gathers] == [[[0, 1, 2, 3, 4, 5]], [[0, 1, 6]]]
    assert take.tolist() == [0, 1, 2, 3, 4, 5, 8]
    assert [mask.tolist() for mask in packed.row_masks()] == [[[1.0] * 6], [[1.0] * 3]]
    assert [mask.tolist() for mask in pack(ROWS).row_masks()] == [[[1, 1, 1, 1]], [[1, 1, 1], [1, 1, 1]]]


def test_experts_of_packed_tokens() -> None:
    experts = torch.tensor([[[1]], [[2]], [[3]]])
    packed = pack([TokenRow([1], [2, 3], experts=experts), TokenRow([4], [5])])
    assert packed.experts_NLK is not None
    assert packed.experts_NLK.flatten().tolist() == [1, 2, 3, -1, -1]


def test_kept_tokens() -> None:
    kept = Kept(torch.tensor([1, 2], dtype=torch.int32), torch.tensor([2], dtype=torch.int32))
    both = joined_kept([kept, kept])
    assert (both.ids.tolist(), both.counts.tolist()) == ([1, 2, 1, 2], [2, 2])
    found = kept_of([TokenRow([1], [2], kept=kept), TokenRow([1], [3, 4])])
    assert found is not None and (found.ids.tolist(), found.counts.tolist()) == ([1, 2], [2, 0, 0])
    assert kept_of(ROWS) is None


def test_micro_batches_keep_items_whole() -> None:
    assert micro_batches([3, 3, 2, 9], [0, 0, 1, 2], 8) == [[0, 1, 2], [3]]
    assert micro_batches([3, 3, 2], [0, 0, 1], 7) == [[0, 1], [2]] and micro_batches([], [], 5) == []


def test_sent() -> None:
    part = torch.tensor([1])
    assert sent(part, torch.device("cpu")).tolist() == [1]
