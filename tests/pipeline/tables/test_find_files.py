"""The files that a path names, by split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.tables.find_files import FileFinder, matches


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (
        "d/train-0.jsonl",
        "d/test.jsonl",
        "d/notes.md",
        "d/_x.jsonl",
        "d/.h/a.jsonl",
        "d/a/b.jsonl",
        "one.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    return tmp_path


def found(root: Path, path: str, *names: str) -> dict[str, list[str]]:
    parts = FileFinder("here", outside_workspace=True).find(path, root, names)
    return {split: [Path(part.place).name for part in some] for split, some in parts.items()}


def test_files_of_a_folder_by_the_first_word_of_their_name(root: Path) -> None:
    assert found(root, "d") == {"test": ["test.jsonl"], "train": ["train-0.jsonl"]}
    assert found(root, "one.csv") == {"train": ["one.csv"]} and found(root, "one.csv", "one") == {"one": ["one.csv"]}
    finder = FileFinder("here", outside_workspace=True)
    finder.find("d", root, ())
    assert finder.ignored == ["a/", "notes.md"]


def test_patterns(root: Path) -> None:
    assert matches("one.csv", root) is None
    assert {file.name for file in matches("d/**/*.jsonl", root) or ()} == {
        "train-0.jsonl",
        "test.jsonl",
        "_x.jsonl",
        "b.jsonl",
    }
    assert found(root, "d/**/*.jsonl") == {"train": ["train-0.jsonl"], "test": ["test.jsonl"], "b": ["b.jsonl"]}


def test_what_save_to_disk_wrote(root: Path) -> None:
    (root / "s/train").mkdir(parents=True)
    (root / "s/dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    (root / "s/train/state.json").write_text(json.dumps({"_data_files": [{"filename": "x.arrow"}]}))
    (root / "s/train/x.arrow").write_text("")
    assert found(root, "s") == {"train": ["x.arrow"]} == found(root, "s/train")
    (root / "s/train/state.json").write_text("{}")
    with pytest.raises(DataError, match=r"state\.json cannot be read"):
        found(root, "s")


@pytest.mark.parametrize(
    ("path", "message"),
    [("nothing", "not found"), ("d/*.csv", "no data file matches"), ("d/notes.md", "unknown file type")],
)
def test_what_is_no_source(path: str, message: str, root: Path) -> None:
    with pytest.raises(DataError, match=message):
        found(root, path)


def test_files_outside_are_not_opened(root: Path) -> None:
    with pytest.raises(DataError, match="is not in the folder"):
        FileFinder("here", outside_workspace=False).find("../x", root, ())
