"""Which objectives take the fast path of training, on which the loss is computed tile by tile (law `tiles`)."""

from __future__ import annotations

from tests.library.laws.subjects import subjects


def test_the_common_objectives_take_the_fast_path() -> None:
    by_token = {name for name, made in subjects().items() if made().by_token}
    assert {"likelihood", "grpo", "rloo", "reinforce", "dapo", "cispo"} <= by_token
    assert not {"gspo", "ppo", "dpo", "reward"} & by_token, "these read whole rows or other models"
