"""Turns before each prompt of an evaluation."""

from __future__ import annotations

import pytest

from posttrain.evaluate.context import ContextTurn, check_turns


def turns(*roles: str) -> list[ContextTurn]:
    return [ContextTurn.model_validate({"role": role, "content": "a"}) for role in roles]


@pytest.mark.parametrize("roles", [(), ("system",), ("user", "assistant"), ("system", "user", "assistant")])
def test_turns_that_a_prompt_can_follow(roles: tuple[str, ...]) -> None:
    given = turns(*roles)
    assert check_turns(given) is given


@pytest.mark.parametrize(
    "roles", [("user",), ("assistant", "user"), ("system", "system"), ("user", "assistant", "system")]
)
def test_turns_that_no_prompt_can_follow(roles: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"a prompt cannot follow {', '.join(roles)}"):
        check_turns(turns(*roles))
