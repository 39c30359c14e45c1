"""Users' actions in random order: every reader's answer is true, or names what does not belong together."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.faults.asked import Readers
from benchmarks.faults.lies import Lies
from posttrain.pipeline.lock.run_records import RunRecords
from tests.workspace import dvc, git


@pytest.fixture(scope="module")
def lies(tmp_path_factory: pytest.TempPathFactory) -> Lies:
    return Lies(tmp_path_factory.mktemp("lies"))


@pytest.mark.timeout(900)
def test_no_reader_believes_what_was_not_trained(lies: Lies) -> None:
    row = lies.trial(seed=1, actions=3)
    assert not row["wrong"], row
    assert len(row["done"]) == 3 and row["answers"]["true"] > 10, row


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_finds_readers_that_believe_dvc_lock(lies: Lies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the comparison with records, a copied model passes for a trained one."""
    template = lies.template("external")
    shutil.copytree(template, tmp_path / "copy", symlinks=True)
    root, ledger = tmp_path / "copy/workspace", tmp_path / "copy/ledger.jsonl"
    monkeypatch.chdir(root)
    shutil.rmtree("models/external/b")
    shutil.copytree("models/external/a", "models/external/b")
    assert dvc(root, "commit", "--force", "external@b").returncode == 0
    assert dvc(root, "commit", "--force", "evaluate@b").returncode == 0
    assert not list(Readers(root, "external", ledger, Counter()).lies())
    git(root, "checkout", "--quiet", "dvc.lock")
    assert dvc(root, "commit", "--force", "external@b").returncode == 0
    assert dvc(root, "commit", "--force", "evaluate@b").returncode == 0
    monkeypatch.setattr(RunRecords, "contradictions", lambda *_: [])
    found = list(Readers(root, "external", ledger, Counter()).lies())
    assert any(lie.startswith("verified: external@b passes") for lie in found), found
