"""Models of the Hub, without the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from posttrain.errors import ModelError, PosttrainError
from posttrain.models.files.import_model import FILES, _from_hub, fetch_model
from posttrain.models.files.store import load_model, load_tokenizer
from tests.library.models.imported_models import scorer_folder
from tests.library.models.tiny import tiny_folder

COMMIT = "0123456789" * 4


def test_the_folder_of_a_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **given: Any) -> str:
        asked.update(given, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert _from_hub("team/model", COMMIT) == tmp_path
    assert asked == {"name": "team/model", "revision": COMMIT, "allow_patterns": FILES, "ignore_patterns": "*/*"}


def test_a_branch_is_refused() -> None:
    with pytest.raises(ModelError, match="revision 'main' may move to another commit"):
        _from_hub("team/model", "main")


def test_what_the_hub_says_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, **given: Any) -> str:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(PosttrainError, match=r"base\.hub: team/model"):
        _from_hub("team/model", COMMIT)


def test_a_folder_is_taken_in_whole(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "given")
    (folder / "README.md").write_text("a card", encoding="utf-8")
    fetch_model(str(folder), None, tmp_path / "base")
    assert (tmp_path / "base/README.md").read_text(encoding="utf-8") == "a card"
    mine, theirs = (dict(load_model(place).named_parameters()) for place in (tmp_path / "base", folder))
    assert all(part.equal(theirs[name]) for name, part in mine.items())
    assert load_tokenizer(tmp_path / "base").get_vocab() == load_tokenizer(folder).get_vocab()


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="folder not found"):
        fetch_model(str(tmp_path / "no"), None, tmp_path / "base")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match="this is an adapter, not a whole model"):
        fetch_model(str(adapter), None, tmp_path / "base")


def test_a_scorer_of_others_reads_the_whole_text(tmp_path: Path) -> None:
    fetch_model(str(scorer_folder(tmp_path / "given")), None, tmp_path / "base")
    assert load_model(tmp_path / "base").config.scores_whole_text is True
