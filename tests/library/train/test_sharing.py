"""A step is shared out so that the processes finish together, and each row is computed once."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.shared_steps import STEPS, WIDTH, groups, in_turn, most_possible, single_rows
from posttrain.rollout import TokenRow
from posttrain.text.packing import micro_batches
from posttrain.train.sharing import Sharing, own_parts, share_out, slowest, useful_share, work_of

BUDGET = 16_384


def drawn(seed: int) -> tuple[list[TokenRow], list[int]]:
    """Rows with shared prompts in items of one to three rows."""
    draw = random.Random(seed)
    rows: list[TokenRow] = []
    items: list[int] = []
    for prompt in range(draw.randint(1, 12)):
        size = draw.randint(0, 60)
        for item in range(draw.randint(1, 4)):
            for _ in range(draw.randint(1, 3)):
                rows.append(TokenRow([prompt] * size, [0] * draw.randint(1, 90)))
                items.append(10 * prompt + item)
    return rows, items


@pytest.mark.parametrize("processes", [2, 3, 8])
@pytest.mark.parametrize("seed", range(25))
def test_every_row_is_computed_once_and_items_stay_whole(seed: int, processes: int) -> None:
    rows, items = drawn(seed)
    rounds = share_out(rows, items, 200, processes, WIDTH)
    parts = [part for dealt in rounds for part in dealt]
    assert all(len(dealt) == processes for dealt in rounds) and any(rounds[-1])
    assert sorted(i for part in parts for i in part) == list(range(len(rows)))
    assert all(part == sorted(part) for part in parts)
    holders = [{number for number, part in enumerate(parts) if any(items[i] == item for i in part)} for item in items]
    assert all(len(found) == 1 for found in holders)
    for part in parts:
        assert sum(len(rows[i]) for i in part) <= 200 or len({items[i] for i in part}) == 1


@pytest.mark.parametrize("seed", range(10))
def test_one_process_gets_the_same_passes_as_ever(seed: int) -> None:
    rows, items = drawn(seed)
    cuts = micro_batches([len(row) for row in rows], items, 200)
    assert [dealt[0] for dealt in share_out(rows, items, 200, 1, WIDTH)] == cuts
    assert [*own_parts([[cut] for cut in cuts], 0)] == [(cut, True) for cut in cuts]


@pytest.mark.parametrize(("tokens", "least"), [("14k", 0.8), ("28k", 0.9), ("56k", 0.9), ("112k", 0.9)])
def test_eight_processes_share_an_ordinary_step(tokens: str, least: float) -> None:
    """By the slowest process of each round. Before: 0.12, 0.22, 0.43, 0.85.

    Of 16 rows the longest alone is more than an eighth of the work, so no process can wait for less.
    """
    (rows,) = [rows for name, rows in STEPS.items() if name.startswith(tokens)]
    rounds = share_out(rows, range(len(rows)), BUDGET, 8, WIDTH)
    assert useful_share(rows, rounds, math.inf) >= least
    assert useful_share(rows, rounds, WIDTH, padded=True) >= min(least, 0.99 * most_possible(rows, 8))


def test_the_measure_sees_idle_and_uneven_processes() -> None:
    rows = single_rows(16)
    assert useful_share(rows, in_turn(rows, BUDGET, 8), WIDTH) == pytest.approx(1 / 8)
    same = [TokenRow([i], [0] * 99) for i in range(8)]
    even = share_out(same, range(8), BUDGET, 8, WIDTH)
    assert useful_share(same, even, WIDTH) == 1
    uneven = [[[0, 1], [2], [3], [4], [5], [6], [7], []]]
    assert useful_share(same, uneven, WIDTH) == pytest.approx(0.5)


def test_long_prompts_are_not_computed_by_every_process() -> None:
    """Four groups of eight short answers to a long prompt, on four processes: a group each."""
    rows = [TokenRow([group] * 1000, [0] * 20) for group in range(4) for _ in range(8)]
    rounds = share_out(rows, range(len(rows)), BUDGET, 4, WIDTH)
    assert sorted(rounds[0]) == [list(range(start, start + 8)) for start in range(0, 32, 8)]


def test_a_group_is_split_where_that_is_faster() -> None:
    """One group of long answers to a short prompt, on four processes."""
    rows = [TokenRow([1] * 10, [0] * 500) for _ in range(8)]
    ((*parts,),) = share_out(rows, range(8), BUDGET, 4, WIDTH)
    assert sorted(map(len, parts)) == [2, 2, 2, 2]


def test_long_rows_count_for_their_attention() -> None:
    """A row of 8,000 tokens and 8 of 1,000: equal tokens, but the long one attends to more pairs."""
    long, short = [TokenRow([1], [0] * 7999)], [TokenRow([i], [0] * 999) for i in range(8)]
    assert work_of(long, WIDTH) > 1.4 * work_of(short, WIDTH)
    rows = [*long, *short, *[TokenRow([9], [0] * 999) for _ in range(4)]]
    (dealt,) = share_out(rows, range(len(rows)), BUDGET, 2, WIDTH)
    assert [0] in dealt


def test_fewer_rows_than_processes() -> None:
    rows = [TokenRow([1], [0] * 5), TokenRow([2], [0] * 9)]
    rounds = share_out(rows, [0, 1], BUDGET, 4, WIDTH)
    assert [sum(counts for _, counts in own_parts(rounds, rank)) for rank in range(4)] == [1, 1, 0, 0]
    assert [len([*own_parts(rounds, rank)]) for rank in range(4)] == [1, 1, 1, 1]
    assert share_out([], [], BUDGET, 4, WIDTH) == []


def test_a_run_says_how_much_of_all_its_steps_was_useful() -> None:
    """The first step of a run says nothing about one with long rows."""
    sharing, even = Sharing(), [TokenRow([i], [0] * 99) for i in range(4)]
    sharing.add(even, share_out(even, range(4), BUDGET, 4, WIDTH), WIDTH)
    assert sharing.described(4) == "100 % of the time that 4 processes spent in steps was useful"
    sharing.add(even[:2], share_out(even[:2], [0, 1], BUDGET, 4, WIDTH), WIDTH)
    assert sharing.useful == pytest.approx(0.75)
    assert sharing.described(4).endswith("was useful; in 1 of 2 steps some had no row")
    assert Sharing().useful == 1


def test_groups_of_completions_share_out_too() -> None:
    for count, least in ((8, 0.8), (64, 0.95)):
        rows = groups(count)
        rounds = share_out(rows, range(len(rows)), BUDGET, 8, WIDTH)
        assert useful_share(rows, rounds, WIDTH) >= least
        assert slowest(rows, rounds, WIDTH) < slowest(rows, in_turn(rows, BUDGET, 8), WIDTH)
