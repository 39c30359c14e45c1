"""Whether evaluations were made with the same code."""

from __future__ import annotations

from posttrain.pipeline.compare.belonging import unlike


def test_unlike() -> None:
    old, new = {"sft: a.py": "1", "sft: b.py": "1"}, {"sft: a.py": "2", "sft: b.py": "1", "sft: c.py": "1"}
    assert unlike([old, new]) == ["sft: a.py"] and unlike([old, old]) == [] and unlike([]) == []
