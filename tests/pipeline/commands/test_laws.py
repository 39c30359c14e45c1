"""The arguments of `posttrain laws`."""

from __future__ import annotations

import pytest

from posttrain.laws import own
from posttrain.pipeline.commands import laws as module
from posttrain.pipeline.commands.line import Document, parse


def test_a_module_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "check_module", lambda name, as_json, every: f"{name} {as_json} {every}")
    assert module.run(parse(["laws", "mine"])) == "mine False False"
    assert module.run(parse(["laws", "mine", "--all"])) == "mine False True"
    document = module.run(parse(["laws", "mine", "--json"]))
    assert document == "mine True False" and isinstance(document, Document)
