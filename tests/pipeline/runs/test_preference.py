"""The rows of a run of `preference.runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.params.named_runs import load_run
from posttrain.pipeline.runs.preference import PREFERENCE, needed_kind, preference_rows
from posttrain.pipeline.runs.training import RunInputs
from posttrain.pipeline.tables.store import write_table
from tests.library.models.tiny import tiny_folder
from tests.pipeline.tables.samples import table_of


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(
        "preference:\n  runs:\n"
        "    dpo: {algorithm: dpo, start: base/tiny, data: mine/pairs, batch: 2}\n"
        "    kto: {algorithm: kto, start: base/tiny, data: mine/feedback, batch: 2}\n"
        "    wrong: {algorithm: kto, start: base/tiny, data: mine/pairs, batch: 2}\n"
    )


def run(name: str) -> Any:
    return load_run(f"preference.runs.{name}", PREFERENCE)


def test_an_algorithm_needs_its_kind_of_table() -> None:
    assert needed_kind(run("dpo"), "a") == "pairs" and needed_kind(run("kto"), "a") == "feedback"
    with pytest.raises(ParamsError, match="kto needs a table of feedback"):
        needed_kind(run("wrong"), "a")


def test_rows_are_tokenised_for_the_start_model(tmp_path: Path) -> None:
    Path("models/base").mkdir(parents=True)
    tiny_folder(tmp_path / "tiny").rename("models/base/tiny")
    write_table(table_of("pairs"), Path("data/mine/pairs.parquet"), "pairs")
    found = preference_rows(RunInputs("preference@dpo", run("dpo")))
    assert len(found.examples) == table_of("pairs").filter(split="train").height and len(found.examples[0].rows) == 2
    assert found.heldout == () and found.watched == () and found.models.folder == Path("models/base/tiny")
