"""`posttrain where`."""

from __future__ import annotations

import json
from pathlib import Path

from posttrain.pipeline.commands.line import Document, parse, run
from posttrain.pipeline.commands.where import run as where
from posttrain.pipeline.lineage.row_copies import where as copies
from tests.pipeline.lineage.made import SOURCE, TABLE, trace


def test_copies_of_a_row_are_found(finished: Path) -> None:
    trace(finished)
    text = run(parse(["where", f"{SOURCE}:1"]))
    assert text == copies(f"{SOURCE}:1", "words") and TABLE in text
    document = where(parse(["where", f"{SOURCE}:1", "--json"]))
    assert isinstance(document, Document) and document == copies(f"{SOURCE}:1", "json")
    assert TABLE in json.dumps(json.loads(document))
