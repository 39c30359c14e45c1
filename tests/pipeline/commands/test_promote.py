"""The arguments of `posttrain promote`. What it does is in `test_promotion.py`."""

from __future__ import annotations

import pytest

from posttrain.pipeline.commands import promote as module
from posttrain.pipeline.commands.line import parse
from posttrain.pipeline.commands.promote import promotion


def test_a_policy_is_tagged_or_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "promote", lambda *given: f"{given}")
    assert module.run(parse(["promote", "grpo", "--as", "champion"])) == "('grpo', 'champion', None, 'tag')"
    words = ["promote", "grpo", "--as", "champion", "--force", "a reason", "--dry-run"]
    assert module.run(parse(words)) == "('grpo', 'champion', 'a reason', 'show')"
