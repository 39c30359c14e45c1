"""The KV cache of decoding rows gives each row what attention over its whole sequence gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.models.decoder.kv_cache import (
    FIRST_COLUMNS,
    CachedAttention,
    KVBuffer,
    PromptAttention,
    PromptGroups,
    _resized,
    _scores,
    _sums_in_float32,
)
from posttrain.models.forward.forward import Scoring
from posttrain.rollout import token_rows
from posttrain.text.packing import pack

HEADS, KV_HEADS, WIDTH = 4, 2, 8
CPU = torch.device("cpu")
SCALE = 0.5


def attended(query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
    """Attention of one query [H, D] to all keys and values [T, K, D]; the query is at the last one."""
    keys, values = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (keys, values))
    if scoring.window is not None:
        keys, values = keys[-scoring.window :], values[-scoring.window :]
    scores = torch.einsum("hd,thd->ht", query, keys) * scoring.scale
    if scoring.cap is not None:
        scores = scoring.cap * torch.tanh(scores / scoring.cap)
    return torch.einsum("ht,thd->hd", scores.softmax(-1), values)


@dataclass
class Rows:
    """A cache of rows, and next to it the whole keys and values of each."""

    scoring: Scoring
    cache: CachedAttention = field(default_factory=lambda: CachedAttention(70, CPU))
    prompts: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    rows: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)
    draw: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.draw, dtype=torch.float64)

    def admit(self, kept: Sequence[int], lengths: Sequence[int], joining: Sequence[int]) -> None:
        fresh = None
        self.prompts = [self.prompts[place] for place in kept]
        moved = {old: new for new, old in enumerate(kept)}
        self.rows = [(moved[prompt], *own) for prompt, *own in self.rows]
        if lengths:
            fresh = PromptAttention(pack(token_rows([[nth] * length for nth, length in enumerate(lengths)],
                                                    [[]] * len(lengths))))  # fmt: skip
            query, key, value = (self.normal(1, heads, sum(lengths), WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS))
            fresh.attend(0, query, key, value, self.scoring)
            both = (part[0].transpose(0, 1).split(list(lengths)) for part in (key, value))
            self.prompts += zip(*both, strict=True)
        none = torch.zeros(0, KV_HEADS, WIDTH, dtype=torch.float64)
        self.rows += [(prompt, none, none) for prompt in joining]
        self.cache.admit(torch.tensor(kept, dtype=torch.long), fresh, torch.tensor(joining, dtype=torch.long))

    def keep(self, *rows: int) -> None:
        self.rows = [self.rows[row] for row in rows]
        self.cache.keep_rows(torch.tensor(rows))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.cache.step()
            count = len(self.rows)
            query, key, value = (self.normal(count, heads, 1, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS))
            out = self.cache.attend(0, query, key, value, self.scoring)
            assert out.shape == (count, 1, HEADS, WIDTH)
            for row, (prompt, keys, values) in enumerate(self.rows):
                keys, values = torch.cat([keys, key[row, None, :, 0]]), torch.cat([values, value[row, None, :, 0]])
                self.rows[row] = prompt, keys, values
                before = self.prompts[prompt]
                whole = torch.cat([before[0], keys]), torch.cat([before[1], values])
                assert_close(out[row, 0], attended(query[row, :, 0], *whole, self.scoring))


@pytest.mark.parametrize(
    "scoring",
    [Scoring(SCALE), Scoring(SCALE, cap=1.5), Scoring(SCALE, window=3), Scoring(SCALE, window=4, cap=2.0)],
    ids=["plain", "cap", "window", "window and cap"],
)
def test_rows_that_leave_and_join_attend_to_their_own_tokens(scoring: Scoring) -> None:
    rows = Rows(scoring)
    rows.admit([], [3, 5], [0, 0, 1])
    rows.step(3)
    rows.keep(0, 2)
    rows.step()
    rows.admit([0, 1], [2], [2, 1])
    rows.step(2)
    rows.keep(2, 3)
    rows.step(2)
    rows.admit([1, 2], [], [0])
    rows.step(2)


def test_more_columns_than_the_first_ones() -> None:
    rows = Rows(Scoring(SCALE))
    rows.admit([], [2], [0, 0])
    rows.step(FIRST_COLUMNS + 2)


def test_the_memory_of_the_cache() -> None:
    rows = Rows(Scoring(SCALE))
    rows.admit([], [3, 5], [0, 0, 1])
    rows.step()
    number = KV_HEADS * WIDTH * 8
    assert rows.cache.nbytes == 2 * number * (2 * 5 + 3 * FIRST_COLUMNS)


def test_a_prefill_stores_its_keys_and_values_by_prompt() -> None:
    fresh = PromptAttention(pack(token_rows([[5, 6, 7], [8, 9]], [[], []])))
    key, value = torch.randn(2, 1, KV_HEADS, 5, WIDTH)
    out = fresh.attend(4, torch.randn(1, HEADS, 5, WIDTH), key, value, Scoring(SCALE))
    assert fresh.lengths_P.tolist() == [3, 2] and out.shape == (1, 5, HEADS, WIDTH)
    keys, values = fresh.keys_values[4]
    assert keys.shape == (2, KV_HEADS, 3, WIDTH)
    assert torch.equal(keys[0], key[0, :, :3]) and torch.equal(keys[1, :, :2], key[0, :, 3:])
    assert torch.equal(values[1, :, :2], value[0, :, 3:]) and not values[1, :, 2].any()
    assert_close(out[0, 3], value[0, :, 3].repeat_interleave(2, 0), msg="the first token sees itself alone")


def test_a_buffer_grows_and_turns_over_at_its_limit() -> None:
    buffer = KVBuffer(limit=2)
    assert buffer.nbytes == 0
    seen = []
    for step in range(3):
        new = torch.full((1, 1, 1, 1), float(step))
        keys, values = buffer.write(step, new, -new)
        assert torch.equal(keys, -values)
        seen.append(keys.flatten().tolist())
    assert seen == [[0.0], [0.0, 1.0], [2.0, 1.0]]
    assert buffer.size == 2 and buffer.nbytes == 2 * 2 * 4
    buffer.extend(1)
    buffer.select(torch.tensor([1, 0]))
    buffer.roll(1)
    keys, _ = buffer.write(1, torch.full((2, 1, 1, 1), 9.0), torch.zeros(2, 1, 1, 1))
    assert keys[:, :, 0].tolist() == [[0.0, 9.0], [1.0, 9.0]]


@pytest.mark.parametrize("prompts", [[0, 0, 1], [1, 0, 1, 0], [2, 0]])
def test_rows_are_grouped_by_prompt_and_back(prompts: list[int]) -> None:
    groups = PromptGroups(torch.tensor(prompts), 3)
    part = torch.arange(len(prompts) * 4.0).view(len(prompts), 2, 2, 1)
    grouped = groups.by_prompt(part)
    assert grouped.shape == (6, 2 * max(prompts.count(one) for one in prompts), 1)
    assert torch.equal(groups.by_row(grouped, 2), part)
    first = prompts[0]
    assert torch.equal(grouped[2 * first : 2 * first + 2, :2], part[0])


def test_groups_of_equal_size_are_views() -> None:
    groups = PromptGroups(torch.tensor([0, 0, 1, 1]), 2)
    part = torch.arange(4.0).view(4, 1, 1, 1)
    assert groups.by_prompt(part).tolist() == [[[0.0], [1.0]], [[2.0], [3.0]]]
    assert torch.equal(groups.by_row(groups.by_prompt(part), 1), part)


def test_keys_are_padded_or_cut_to_a_length() -> None:
    part = torch.arange(3.0).view(1, 1, 3, 1)
    assert _resized(part, 3) is part
    assert _resized(part, 4).flatten().tolist() == [0.0, 1.0, 2.0, 0.0]
    assert _resized(part, 2).flatten().tolist() == [0.0, 1.0]


def test_scores_are_products_and_only_a_gpu_sums_16_bits_in_float32() -> None:
    query, keys = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 4.0], [5.0, 6.0]]])
    assert _scores(query, keys).tolist() == [[[11.0, 17.0]]]
    assert _sums_in_float32(query) is False and _sums_in_float32(query.bfloat16()) is False
