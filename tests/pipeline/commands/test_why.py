"""`posttrain why`."""

from __future__ import annotations

import json
from pathlib import Path

from posttrain.pipeline.commands import why as module
from posttrain.pipeline.commands.line import Document, parse
from posttrain.pipeline.lineage.explain import why
from tests.pipeline.lineage.made import trace


def test_a_number_is_explained_as_text_or_json(finished: Path) -> None:
    trace(finished)
    assert module.run(parse(["why", "sft.score"])) == why("sft.score", "words")
    document = module.run(parse(["why", "sft.score", "--json"]))
    assert isinstance(document, Document) and json.loads(document)[0]["title"] == "sft.score = 0.3"
