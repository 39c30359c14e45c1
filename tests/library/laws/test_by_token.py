"""Which objectives take the fast path of training, on which the loss is computed tile by tile (law `tiles`)."""

from __future__ import annotations

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.laws.cases import LONGEST, Shape, build, run
from tests.library.laws.subjects import subjects


def test_the_common_objectives_take_the_fast_path() -> None:
    by_token = {name for name, made in subjects().items() if made().by_token}
    assert {"likelihood", "grpo", "rloo", "reinforce", "dapo", "cispo"} <= by_token
    assert not {"gspo", "ppo", "dpo", "reward"} & by_token, "these read whole rows or other models"


def test_an_objective_that_only_measures_the_entropy_has_no_gradient_through_it() -> None:
    """Its head's softmax runs in one kernel, which offers no gradient of the entropy."""
    measured = set[str]()
    for name, made in subjects().items():
        objective = made()
        if objective.by_token and not objective.entropy_in_loss:
            measured.add(name)
            gradient = run(build(objective, Shape(0))).gradients.get("entropy")
            assert gradient is None or not gradient.any(), name
    assert {"likelihood", "grpo", "dapo", "cispo"} <= measured
    with_bonus = PolicyObjective(POLICY_ROWS["grpo"].settings(entropy=0.1), LONGEST)
    assert with_bonus.entropy_in_loss and run(build(with_bonus, Shape(0))).gradients["entropy"].any()
