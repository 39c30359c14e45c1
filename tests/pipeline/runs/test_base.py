"""A new model from a corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.data.columns import from_rows
from posttrain.pipeline.runs.base import ScratchRun, scratch_rows
from posttrain.pipeline.runs.training import RunInputs
from posttrain.pipeline.tables.store import write_table
from posttrain.settings.params import check


def test_a_tokenizer_windows_and_a_model_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [f"{a}+{b}={a + b}, so the answer is #### {a + b}" for a in range(10) for b in range(10)]
    rows = [{"split": "train" if nth % 10 else "heldout", "text": text} for nth, text in enumerate(texts)]
    write_table(from_rows(rows, "corpus"), Path("data/mine/corpus.parquet"), "corpus")
    given = {
        "data": "mine/corpus", "steps": 1, "window": 32, "tokenizer": {"vocabulary": 300},
        "shape": {"layers": 1, "width": 16, "heads": 2, "context": 64},
    }  # fmt: skip
    reads = RunInputs("base@tiny", check(ScratchRun, given, where="base.scratch.tiny"))
    with scratch_rows(reads) as found:
        folder = Path("models/.tokenizer-tiny")
        assert found.models.folder == folder and folder.is_dir()
    assert not folder.exists()
    assert reads.inputs == [Path("data/mine/corpus.parquet")]
    assert found.models.policy.config.vocab_size == len(found.text.tokenizer) <= 300
    assert len(found.examples) > len(found.heldout) > 0
    assert all(len(row) <= 33 for one in found.examples for row in one.rows)
