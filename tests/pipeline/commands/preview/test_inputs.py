"""The table, the model and the limits of a preview."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import DataError, ModelError, ParamsError
from posttrain.pipeline.commands.preview import inputs as module
from posttrain.pipeline.commands.preview.inputs import Limits, opened
from posttrain.pipeline.tables.store import write_table
from tests.library.models.tiny import tiny_folder
from tests.pipeline.tables.samples import table_of

PARAMS = """
base: {folders: {own: {path: my/model, template: {a: 1}}}, scratch: {tiny: {data: mine/corpus}}}
sft: {runs: {main: {start: base/own, data: mine/chat, max_tokens: 40}, early: {start: base/tiny, data: mine/chat}}}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    tiny_folder(folder / "my")
    (folder / "params.yaml").write_text(PARAMS)
    write_table(table_of("chat"), folder / "data/mine/chat.parquet", "chat")
    (folder / "data/mine/other.parquet").touch()
    (folder / "rows.jsonl").touch()
    return folder


@pytest.fixture(autouse=True)
def inside(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


def test_tables_are_named_by_their_kind() -> None:
    assert (
        module._table("mine/chat")
        == module._table("data/mine/chat.parquet")
        == (Path("data/mine/chat.parquet"), "chat")
    )
    for name, words in (("rows.jsonl", "not a table"), ("data/mine/other.parquet", "this is not the name of a table")):
        with pytest.raises(DataError, match=words):
            module._table(name)


def test_settings_of_the_run_that_makes_a_model() -> None:
    assert module._settings("sft/main")["max_tokens"] == 40 and module._settings("my/model") == {}


def test_a_run_that_has_not_run_gives_its_start() -> None:
    assert module._folder("my/model") == (Path("my/model"), None, {})
    assert module._folder("sft/main") == (Path("my/model"), None, {"a": 1})
    with pytest.raises(ParamsError, match="this is neither a model folder nor a run"):
        module._folder("sft/mian")
    with pytest.raises(ModelError, match="the model base/tiny does not exist yet"):
        module._folder("sft/early")


def test_limits_come_from_the_run_or_an_option() -> None:
    with opened("mine/chat", "my/model", None, None) as found:
        assert (found.table, found.kind, found.model) == (Path("data/mine/chat.parquet"), "chat", "my/model")
        assert found.limits == Limits(None, "drop", 256, "all")
    with opened("mine/chat", "my/model", "last", 7) as found:
        assert found.limits == Limits(7, "drop", 256, "last")
