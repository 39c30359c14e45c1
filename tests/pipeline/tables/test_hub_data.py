"""Data sets of the Hub, as they lie on this machine."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from posttrain.errors import DataError
from posttrain.pipeline.tables import hub_data as module
from posttrain.pipeline.tables.hub_data import dataset_parts, hub_parts
from posttrain.pipeline.tables.options import HubTable
from posttrain.pipeline.tables.readers import Columns

SOURCE = HubTable(name="org/name", revision="0" * 40)


def test_the_splits_of_a_data_set() -> None:
    rows = datasets.Dataset.from_dict({"prompt": ["a", "b"], "other": [1, 2]})
    found = dataset_parts(datasets.DatasetDict({"train": rows, "test": rows.select([1])}), SOURCE, "here")
    assert list(found) == ["train", "test"]
    (train,), (test,) = found.values()
    assert train.place.startswith(SOURCE.place) and train.place.endswith(" train")
    columns = Columns(frozenset({"prompt"}))
    assert list(train.rows(columns, "here")) == [(1, {"prompt": "a"}), (2, {"prompt": "b"})]
    assert list(test.rows(columns, "here")) == [(1, {"prompt": "b"})]


def test_a_local_folder_is_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("org/name").mkdir(parents=True)
    with pytest.raises(DataError, match="'org/name' is a local file or folder, not a data set on the Hub"):
        hub_parts(SOURCE, "here", print)


def test_a_licence_is_a_list() -> None:
    assert module._listed("mit") == ["mit"] and module._listed(["mit", "other"]) == ["mit", "other"]
