"""A preview on the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.models.files.store import load_tokenizer
from posttrain.pipeline.commands.preview import text as module
from posttrain.pipeline.commands.preview.rows import Part
from posttrain.pipeline.commands.preview.text import escaped, preview
from posttrain.pipeline.tables.store import write_table
from posttrain.rollout import TokenRow
from posttrain.text.chat import ChatText
from tests.library.models.tiny import tiny_folder
from tests.pipeline.tables.samples import table_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def test_rows_are_shown_or_written_as_a_page(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(table_of("corpus"), Path("data/mine/corpus.parquet"), "corpus")
    given = {"rows": 2, "turns": None, "longest": None}
    shown = preview("mine/corpus", str(model), style="plain", html=None, **given)
    assert "\nfirst 2 rows, trained text is between {+ and +}:\n" in shown and shown.count("\n--- row ") == 2
    assert "trained text is green" in preview("mine/corpus", str(model), style="colour", html=None, **given)
    said = preview("mine/corpus", str(model), style="plain", html=Path("a.html"), **given)
    assert said.endswith("2 rows are shown in a.html") and Path("a.html").is_file()


def test_text_is_split_where_training_begins(model: Path) -> None:
    text = ChatText(load_tokenizer(model))
    ids = text.tokenizer.encode("1+1=2", add_special_tokens=False)
    part = Part("text", TokenRow(ids[:2], ids[2:]), len(ids) - 2)
    before, after = (text.stops.decode(some) for some in (ids[:2], ids[2:]))
    assert module._stretches(text, part) == [(before, False), (after, True)]
    assert before + after == "1+1=2"


def test_marks_and_titles() -> None:
    assert module._marked("a\n\x07", "plain") == "{+a\n\\x07+}"
    assert module._marked("a\n\nb", "colour") == "\033[32ma\033[0m\n\n\033[32mb\033[0m"
    assert escaped("a\x1b\nb") == "a\\x1b\nb"
