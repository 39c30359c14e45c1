"""Files of other format versions are refused, or read where they have what is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from posttrain.errors import ModelError, ParamsError, TableError
from posttrain.models.files.store import load_model
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.tables.store import read_table, write_table
from tests.library.models.tiny import tiny_folder
from tests.pipeline.tables.samples import table_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_folder(tmp_path / "tiny")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format: 1\n", "format = 1 is the format of an earlier version. Version 0.1 wrote it"),
        ("format: 3\n", "made by a newer posttrain (format 3; this one reads formats up to 2)"),
        ("format: two\n", "format = 'two' is not a format version"),
    ],
)
def test_params_of_an_unknown_format_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(text)
    with pytest.raises(ParamsError) as caught:
        read()
    assert words in str(caught.value)


def test_tables_of_other_format_versions_are_refused_or_read(tmp_path: Path) -> None:
    file = tmp_path / "chat.parquet"
    write_table(table_of("chat"), file, "chat")
    metadata = pq.read_schema(file).metadata
    assert metadata[b"posttrain.format"] == b"2"
    arrow = pq.read_table(file)
    pq.write_table(arrow.replace_schema_metadata(None), file)
    assert read_table(file, "chat").equals(table_of("chat")), "without a format, and right"
    pq.write_table(arrow.drop_columns(["id"]).replace_schema_metadata(None), file)
    with pytest.raises(TableError, match=r"an earlier version of posttrain wrote it .*make it again: `dvc repro`"):
        read_table(file, "chat")
    pq.write_table(arrow.replace_schema_metadata({"posttrain.format": "3"}), file)
    with pytest.raises(TableError, match="made by a newer posttrain"):
        read_table(file, "chat")


def test_a_model_of_a_newer_format_is_refused(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model/manifest.json").write_text('{"posttrain_format": 3}')
    with pytest.raises(ModelError, match="made by a newer posttrain"):
        load_model(tmp_path / "model")
