"""The arguments of `posttrain laws`."""

from __future__ import annotations

import pytest

from posttrain.laws import own
from posttrain.pipeline.commands import laws as module
from posttrain.pipeline.commands.line import Document, parse


def test_a_module_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "check_module", lambda name, as_json: f"{name} {as_json}")
    assert module.run(parse(["laws", "mine"])) == "mine False"
    document = module.run(parse(["laws", "mine", "--json"]))
    assert document == "mine True" and isinstance(document, Document)
