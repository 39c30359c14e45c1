"""Prompts in turn, and prompts drawn by how often the policy passed them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain
from posttrain.errors import ParamsError
from posttrain.online.prompt_order import ByPassRate, PassRates, PromptOrder, prompt_order
from posttrain.rollout import Rollout
from tests.library.models.tiny import tiny_folder


def test_each_pass_has_every_prompt_once() -> None:
    order = PromptOrder(7, seed=3)
    drawn = order.places(0, 5) + order.places(5, 16)
    laps = [drawn[:7], drawn[7:14], drawn[14:]]
    assert all(sorted(lap) == list(range(7)) for lap in laps) and len(set(map(tuple, laps))) == 3


def rated() -> ByPassRate:
    """Prompts 0 to 3: never passed, always, half the time, not sampled yet."""
    order = ByPassRate(4, 0, PassRates(pass_score=1.0, memory=1 - 1e-9))
    for place, outcomes in enumerate(([0.0] * 8, [1.2] * 8, [1.0, 0.0] * 4)):
        order.learn(place, torch.tensor(outcomes))
    return order


def test_draws_follow_the_variance_of_what_is_known() -> None:
    order = rated()
    p = torch.tensor([1 / 10, 9 / 10, 5 / 10, 1 / 2])  # (passed + 1) / (samples + 2)
    weights = p * (1 - p)
    drawn = torch.tensor([order.places(nth, 1)[0] for nth in range(4000)]).bincount(minlength=4) / 4000
    torch.testing.assert_close(drawn, weights / weights.sum(), rtol=0, atol=0.03)


def test_a_round_repeats_no_prompt_before_all_were_drawn() -> None:
    order = rated()
    assert all(sorted(order.places(nth, 4)) == [0, 1, 2, 3] for nth in range(50))
    assert sorted(order.places(9, 6)[:4]) == [0, 1, 2, 3]


def test_what_is_never_passed_comes_back() -> None:
    order = ByPassRate(2, 0, PassRates())
    for _ in range(100):
        order.learn(0, torch.zeros(1000))
    drawn = [order.places(nth, 1)[0] for nth in range(4000)]
    assert 10 < drawn.count(0) < 120


def test_earlier_samples_count_less() -> None:
    order = ByPassRate(1, 0, PassRates(memory=0.5))
    for outcomes in ([0.0] * 4, [0.0] * 4, [1.0] * 4):
        order.learn(0, torch.tensor(outcomes))
    state = order.state_dict()
    assert (float(state["passed"]), float(state["samples"])) == (4.0, 4 + 2 + 1)


def test_a_state_continues() -> None:
    other = ByPassRate(4, 0, PassRates())
    other.load_state_dict(rated().state_dict())
    assert other.places(11, 3) == rated().places(11, 3)
    torch.testing.assert_close(other.weights(), rated().weights())


PROMPTS = [{"prompt": f"{a}+1", "answer": "impossible" if a % 3 else "even"} for a in range(30)]
"""Of two thirds no sample passes: in turn, two thirds of the groups teach nothing."""


def even(rollouts: Sequence[Rollout]) -> list[float]:
    """1 where most tokens are even, and never for an impossible prompt."""
    rows = [rollout.row.rest for rollout in rollouts]
    shares = [sum(token % 2 == 0 for token in row) / len(row) for row in rows]
    possible = [rollout.prompt.answer == "even" for rollout in rollouts]
    return [float(share > 0.5 and yes) for share, yes in zip(shares, possible, strict=True)]


def trained(folder: Path, output: Path, rates: dict[str, Any] | None) -> list[dict[str, float]]:
    torch.set_num_threads(1)
    model, tokenizer = posttrain.load_model(folder)
    sizes = {"rounds": 40, "prompts": 6, "group_size": 8, "minibatches": 1}
    rollout = {**sizes, "pass_rates": rates, "sampling": {"max_tokens": 6}}
    settings = {"rollout": rollout, "optimizer": {"lr": 1e-4}, "patience": None}
    return posttrain.train_online(model, tokenizer, PROMPTS, even, settings=settings, output=output)


@pytest.mark.slow
def test_more_groups_have_something_to_learn(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    share = {}
    for name, rates in (("turn", None), ("rates", {})):
        history = trained(folder, tmp_path / name, rates)
        share[name] = sum(row["groups_with_signal"] for row in history[20:]) / 20
    assert share["rates"] > 1.5 * share["turn"], share


def test_a_reference_that_no_loss_reads_is_not_renewed(tmp_path: Path) -> None:
    model, tokenizer = posttrain.load_model(tiny_folder(tmp_path / "tiny"))
    settings = {"kl": "none", "renew_reference": {"every": 2}}
    with pytest.raises(ParamsError, match="the run has no reference"):
        posttrain.train_online(model, tokenizer, PROMPTS, even, settings=settings)


def test_the_order_that_the_settings_choose() -> None:
    plain, rates = prompt_order("abc", 3, None), prompt_order("abc", 3, PassRates())
    assert type(plain) is PromptOrder and plain.places(0, 3) == PromptOrder(3, 3).places(0, 3)
    assert (
        plain.state_dict() == {}
        and isinstance(rates, ByPassRate)
        and rates.state_dict().keys() == {"passed", "samples"}
    )
