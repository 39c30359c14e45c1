from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.functional import objective_loss, policy_loss, preference_loss, reward_loss
from posttrain.algorithms.policy_rows import POLICY_ROWS
from posttrain.algorithms.preference_rows import PREFERENCE_ROWS
from posttrain.algorithms.supervised import LikelihoodKnobs, LikelihoodObjective
from posttrain.errors import ParamsError

DRAW = torch.Generator().manual_seed(0)
MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 0], [0, 1, 1, 1]]).bool()
LOGP, OLD, REF, VALUE = -torch.rand(4, 4, 4, generator=DRAW, dtype=torch.float64) - 0.01
REWARD = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)


def both(name: str, padded: bool) -> dict[str, object]:
    def shape(column: Tensor) -> Tensor:
        return column if padded else column[MASK]

    where = {"mask": MASK} if padded else {"lengths": MASK.sum(1)}
    extra = {"value": VALUE, "old_value": VALUE, "step_start_logp": LOGP}
    columns = {key: shape(column) for key, column in extra.items()} | {"age": torch.zeros(4)}
    columns["reward_parts"] = torch.stack([REWARD, REWARD.flip(0)], dim=1)
    columns["opponent"] = torch.tensor([False, True, False, True])
    common = {"logp": shape(LOGP), "ref_logp": shape(REF), **where}
    if name in POLICY_ROWS:
        return common | {
            "old_logp": shape(OLD),
            "rewards": REWARD,
            "group_size": 2,
            "max_length": 8,
            "reward_weights": (1.0, 0.5),
            "columns": columns,
        }
    if not PREFERENCE_ROWS[name].settings().paired:
        return common | {"label": torch.tensor([1.0, -1.0, 0.0, 1.0])}
    return common | {"side": torch.tensor([1.0, 1.0, -1.0, -1.0])}


@pytest.mark.parametrize("name", [*POLICY_ROWS, *PREFERENCE_ROWS])
def test_padded_and_ragged_are_one(name: str) -> None:
    call = policy_loss if name in POLICY_ROWS else preference_loss
    padded, flat = call(name, **both(name, True)), call(name, **both(name, False))  # type: ignore[arg-type]
    assert_close(padded.loss, flat.loss)
    assert_close(padded.gradient[MASK], flat.gradient)
    assert bool((padded.gradient[~MASK] == 0).all())
    assert padded.metrics == pytest.approx(flat.metrics)
    assert padded.state == flat.state


def test_grpo_by_hand() -> None:
    """Two groups of two, rewards 1 and 0: advantages +-0.7070...; on policy the loss is -mean of advantages, 0."""
    result = policy_loss("grpo", logp=LOGP, mask=MASK, rewards=REWARD, group_size=2, settings={"kl": "none"})
    advantage = 0.5 / (0.5**0.5 + 1e-4)
    expected = torch.zeros_like(LOGP)
    for row, sign in enumerate((1, -1, -1, 1)):
        expected[row, MASK[row]] = -sign * advantage / (4 * int(MASK[row].sum()))
    assert_close(result.gradient, expected)
    assert float(result.loss.detach()) == pytest.approx(0, abs=1e-12)
    assert result.metrics["ratio"] == pytest.approx(1)
    assert result.metrics["reward"] == 0.5


def test_the_loss_carries_the_callers_graph() -> None:
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    result = preference_loss("dpo", logp=LOGP * scale, ref_logp=REF, mask=MASK, side=torch.tensor([1, -1, 1, -1]))
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert scale.grad is not None
    assert float(scale.grad) == pytest.approx(float((result.gradient * LOGP).sum()))


def test_state_goes_in_and_comes_out() -> None:
    settings = {"advantage": "moving_average", "kl": "none"}
    first = policy_loss("reinforce", logp=LOGP, mask=MASK, rewards=REWARD, settings=settings)
    second = policy_loss("reinforce", logp=LOGP, mask=MASK, rewards=REWARD + 1, settings=settings, state=first.state)
    assert first.state["baseline"] / first.state["baseline_weight"] == pytest.approx(0.5)
    row = LOGP[1][MASK[1]].sum()
    assert float(second.gradient[1][MASK[1]][0]) == pytest.approx(-(1.0 - 0.5) / 4), row


@pytest.mark.parametrize("name", ["dpo", "ipo", "orpo", "slic"])
def test_pairs_may_stand_side_by_side_or_in_halves(name: str) -> None:
    torch.manual_seed(0)
    logp, ref = -torch.rand(6, 3), -torch.rand(6, 3)
    sides = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    found = {}
    for layout, order in {"halves": range(6), "pairs": [0, 3, 1, 4, 2, 5], "mixed": [3, 0, 1, 2, 4, 5]}.items():
        rows = list(order)
        mask = torch.ones(6, 3, dtype=torch.bool)
        result = preference_loss(name, logp=logp[rows], ref_logp=ref[rows], mask=mask, side=sides[rows])
        gradient = torch.zeros(6, 3)
        gradient[rows] = result.gradient
        found[layout] = (result.loss, gradient, result.metrics)
    for layout in ("pairs", "mixed"):
        assert_close(found[layout][:2], found["halves"][:2])
        assert found[layout][2] == pytest.approx(found["halves"][2], rel=1e-5, abs=1e-6)


def test_ranked_answers() -> None:
    score = torch.tensor([2.0, 1.0, 0.0, 5.0, 4.0])
    ranked = reward_loss(score, rank=torch.tensor([0, 1, 2, 0, 1]), item=torch.tensor([0, 0, 0, 1, 1]))
    one, two = float(torch.log1p(torch.tensor(-1.0).exp())), float(torch.log1p(torch.tensor(-2.0).exp()))
    assert float(ranked.loss.detach()) == pytest.approx(((2 * one + two) / 3 + one) / 2)
    pairs = reward_loss(score[:4], side=torch.tensor([1.0, -1.0, -1.0, 1.0]))
    assert pairs.metrics["accuracy"] == 1


def test_mistakes_are_named() -> None:
    with pytest.raises(ParamsError, match="Did you mean"):
        policy_loss("gpro", logp=LOGP, mask=MASK, rewards=REWARD)
    with pytest.raises(ParamsError, match="no whole groups of 3"):
        policy_loss("grpo", logp=LOGP, mask=MASK, rewards=REWARD, group_size=3)
    with pytest.raises(ParamsError, match="Give max_length"):
        policy_loss("dr_grpo", logp=LOGP, mask=MASK, rewards=REWARD, group_size=2)
    with pytest.raises(ParamsError, match="padded or ragged"):
        policy_loss("rloo", logp=LOGP, rewards=REWARD, group_size=2)
    with pytest.raises(ParamsError, match="'ref_logp' has shape"):
        policy_loss("grpo", logp=LOGP, ref_logp=REF[:2], mask=MASK, rewards=REWARD, group_size=2)
    with pytest.raises(ParamsError, match="Did you mean 'ref_logp'"):
        objective_loss(LikelihoodObjective(LikelihoodKnobs()), {"logp": LOGP, "ref_lgp": LOGP}, mask=MASK)
    with pytest.raises(KeyError, match="ref_logp"):
        policy_loss("grpo", logp=LOGP, mask=MASK, rewards=REWARD, group_size=2)
    with pytest.raises(ValueError, match="group of one"):
        policy_loss("grpo", logp=LOGP, ref_logp=REF, mask=MASK, rewards=REWARD, group_size=1)
    with pytest.raises(ValueError, match="one chosen row"):
        preference_loss("dpo", logp=LOGP, ref_logp=REF, mask=MASK, side=torch.tensor([1.0, 1.0, 1.0, -1.0]))
