"""Conversations as a judge reads them."""

from __future__ import annotations

from dataclasses import replace

from posttrain.rewards.judge.texts import asked_of, said
from posttrain.rollout import Prompt
from tests.library.models.tiny import rollout_of

TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def test_said() -> None:
    assert said(rollout_of("only")) == "only"
    assert said(replace(rollout_of("b"), turns=TURNS)) == "user: a\n\nassistant: b"


def test_asked_of() -> None:
    assert asked_of(Prompt("p", TURNS[:1], [])) == "a"
    assert asked_of(Prompt("p", TURNS, [])) == "user: a\n\nassistant: b"
