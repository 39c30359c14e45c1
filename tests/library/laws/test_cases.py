"""Random steps for objectives: the columns that each needs, the same for a seed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.formulas.ragged import Ragged
from posttrain.laws.cases import LONGEST, Shape, _rows, _tokens, build, run, without_extra_terms
from tests.library.laws.subjects import subjects

SHAPE = Shape(seed=3)


def test_the_columns_of_a_step() -> None:
    case = build(subjects()["grpo"](), SHAPE)
    assert len(case.step.lengths_B) == 9 and int(case.step.lengths_B.max()) <= 6
    count = int(case.step.lengths_B.sum())
    assert case.step.tokens["token"].tolist() == list(range(count)) and case.step.rows["row"].tolist() == list(range(9))
    assert case.leaves.keys() == {"logp", "entropy"} and case.leaves["logp"].dtype == torch.float64
    assert {"old_logp", "ref_logp"} <= case.step.tokens.keys() and case.step.item_B is not None
    assert_close(build(subjects()["grpo"](), SHAPE).leaves["logp"], case.leaves["logp"])
    assert {"value", "logp"} <= build(subjects()["ppo"](), SHAPE).leaves.keys()


def test_the_same_numbers_in_another_precision() -> None:
    case = build(subjects()["ppo"](), SHAPE)
    single = case.cast(torch.float32)
    assert single.leaves["logp"].dtype == single.step.tokens["old_logp"].dtype == torch.float32
    assert single.step.rows["row"].dtype == torch.long
    assert_close(single.leaves["logp"].double(), case.leaves["logp"])


def test_the_loss_of_parts_is_that_of_the_step() -> None:
    case = build(subjects()["likelihood"](), SHAPE)

    def halves(step: Ragged) -> list[Ragged]:
        return [step.select(part) for part in torch.arange(len(step)).chunk(2)]

    whole, parts, pieces = run(case), run(case, halves), run(case, halves, halves)
    assert_close(whole.loss, -case.leaves["logp"].mean())
    assert_close(whole.gradients["logp"], torch.full_like(case.leaves["logp"], -1 / len(case.leaves["logp"])))
    for other in (parts, pieces):
        assert_close(other.loss, whole.loss)
        assert_close(other.gradients["logp"], whole.gradients["logp"])
        assert other.metrics == pytest.approx(whole.metrics)
    assert whole.case is case and whole.prepared.lengths_B.tolist() == case.step.lengths_B.tolist()


def test_only_the_surrogate_stays() -> None:
    full = PolicyObjective(POLICY_ROWS["ppo"].settings(entropy=0.01), LONGEST)
    bare = without_extra_terms(full)
    assert (bare.config.kl.type, bare.config.entropy, bare.config.ptx) == ("none", 0.0, 0.0)
    assert bare.config.surrogate == full.config.surrogate and full.config.entropy == 0.01


def test_token_columns() -> None:
    found = _tokens(400, torch.Generator().manual_seed(0))
    logs = [part for name, part in found.items() if name.endswith("logp")]
    assert len(logs) == 5 and all(len(part) == 400 and bool((part < 0).all()) for part in logs)
    spread: dict[str, Tensor] = {name: found[name] - found["logp"] for name in ("old_logp", "ref_logp")}
    assert float(spread["old_logp"].mean().abs()) < 0.1 and float(spread["ref_logp"].std()) == pytest.approx(
        0.5, abs=0.1
    )
    assert float(found["value"].mean().abs()) < 0.2


@pytest.mark.parametrize(
    ("subject", "columns", "count"),
    [("dpo", {"side"}, 18), ("reward, ranks", {"rank"}, 9), ("grpo", {"reward", "group"}, 9), ("kto", {"label"}, 9)],
)
def test_row_columns_of_each_kind(subject: str, columns: set[str], count: int) -> None:
    rows, item_B = _rows(subjects()[subject](), SHAPE, torch.Generator().manual_seed(0))
    assert columns <= rows.keys() and len(item_B) == count
    assert all(len(part) == count for part in rows.values())
    if subject == "dpo":
        assert item_B.tolist() == [pair for pair in range(9) for _ in range(2)]
        assert rows["side"].view(9, 2).sum(1).tolist() == [0.0] * 9
    if subject == "reward, ranks":
        assert item_B.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2] and set(rows["rank"].tolist()) <= {0, 1, 2}
    if subject == "grpo":
        assert sorted(rows["group"].tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2] and item_B.tolist() == list(range(9))
