"""A table from several sources: patterns of files, and lists of sources with and without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.errors import DataError, ParamsError, TableError
from posttrain.pipeline.checks.check_rows import check_rows
from posttrain.pipeline.tables.mixing import rows_per_source
from posttrain.pipeline.tables.options import FileTable
from posttrain.pipeline.tables.sources import FilesRun, HubRun, file_tables
from posttrain.pipeline.tables.store import check_table
from posttrain.settings.params import check
from tests.pipeline.tables.loading import load_table
from tests.pipeline.tables.samples import assistant, user

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name: str, start: int, count: int, **more: Any) -> None:
    """Demonstrations of the sums from `start`."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{n}+1?", "completion": str(n + 1), **more} for n in range(start, start + count)]
    Path(name).write_text("\n".join(map(json.dumps, rows)))


def load(*sources: dict[str, Any], **shared: Any) -> pl.DataFrame:
    """A checked chat table of these sources."""
    shared = {"test_share": 0.0, **shared}
    listed = [FileTable(**{**shared, **one}) for one in sources]
    table = load_table(listed, "chat", "here.chat", table=Path("rejected/chat.parquet"))
    return check_table(table, "chat", "chat.parquet")


def asked(table: pl.DataFrame) -> list[int]:
    """The numbers of the sums."""
    return [int(turns[0]["content"].split("+")[0]) for turns in table["messages"].to_list()]


@pytest.mark.parametrize("name", ["eval", "validation", "valid", "val", "dev", "test", "Eval", "TEST"])
@pytest.mark.parametrize("kind", ["chat", "prompts"])
def test_what_is_for_evaluation_is_never_suggested_as_training_data(name: str, kind: str) -> None:
    put(f"my/{name}.jsonl", 0, 60, answer="1")
    Path("params.yaml").write_text(json.dumps({"data": {"files": {"mine": {"path": "my", kind: f"{name}.jsonl"}}}}))
    if (name.lower(), kind) == ("test", "prompts"):
        assert check_rows() == "", "prompts may be for tests alone"
        return
    with pytest.raises(ParamsError, match=f"Its splits are {name}, which are for evaluation. Add a file") as caught:
        check_rows()
    assert "splits: {train" not in str(caught.value)
    put("my/more/part.jsonl", 100, 5), put(f"my/more/{name}.jsonl", 0, 60)
    Path("params.yaml").write_text(json.dumps({"data": {"files": {"mine": {"path": "my", "chat": "more"}}}}))
    with pytest.raises(ParamsError, match=r"e\.g\. splits: {train: part}"):
        check_rows()


@pytest.mark.slow
def test_a_pattern_reads_the_files_that_it_matches() -> None:
    for nth in (10, 9, 1):
        put(f"d/part-{nth}.jsonl", 10 * nth, 10)
    put("d/sub/part-20.jsonl", 200, 10)
    for hidden in ("d/.part-30.jsonl", "d/_part-30.jsonl", "d/.sub/part-30.jsonl", "d/_sub/part-30.jsonl"):
        put(hidden, 300, 10)
    Path("d/part-4.txt").write_text("not data")
    none = {"heldout_share": 0.0}
    assert asked(load({"path": "d/part-*.jsonl", **none})) == [*range(10, 20), *range(100, 110), *range(90, 100)]
    assert asked(load({"path": "d/part-?.jsonl", **none})) == [*range(10, 20), *range(90, 100)]
    assert asked(load({"path": "*/part-[19].jsonl", **none})) == [*range(10, 20), *range(90, 100)]
    assert sorted(asked(load({"path": "d/**/*.jsonl", **none})))[-1] == 209
    Path("d").rename("my [1]")
    assert len(asked(load({"path": "my [1]/part-*.jsonl", **none}))) == 30


def test_files_of_a_pattern_belong_to_splits_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    for name, start in {"train-0": 0, "train-1": 10, "test-0": 20}.items():
        put(f"d/{name}.jsonl", start, 10)
    Path("d/train.md").write_text("not data")
    assert load({"path": "d/t*"}).filter(split="heldout").height == 10
    assert "here.chat.0: not read: train.md\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("d/x-*.jsonl", "here.chat.0: no data file matches d/x-*.jsonl. Add files that end in .parquet"),
        ("d/*.txt", "no data file matches d/*.txt"),
        ("nowhere/*.jsonl", "no data file matches nowhere/*.jsonl"),
        ("*/../../*.jsonl", "is not in the folder"),
        ("out/*.jsonl", "is outside the workspace"),
    ],
)
def test_a_pattern_without_data_files_is_refused(path: str, expected: str, tmp_path: Path) -> None:
    put("d/a.jsonl", 0, 10)
    Path("d/a.txt").write_text("not data")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    put(str(outside / "a.jsonl"), 0, 10)
    Path("out").symlink_to(outside)
    with pytest.raises(DataError) as caught:
        load({"path": path})
    assert expected in str(caught.value)


def test_two_stars_must_stand_for_a_whole_folder() -> None:
    with pytest.raises(ParamsError, match=r"\*\* must stand for a whole folder, e\.g\. \*\*/\*\.jsonl"):
        check(FileTable, {"path": "a**/x.jsonl"}, where="here")


def test_a_list_without_weights_has_all_rows_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    put("a.jsonl", 50, 20)
    put("b.jsonl", 0, 30)
    put("c.jsonl", 60, 20)
    table = load({"path": "a.jsonl"}, {"path": "b.jsonl"}, {"path": "c.jsonl"}, heldout_share=0.0)
    assert asked(table) == [*range(50, 70), *range(30), *range(70, 80)], "what two sources have is kept once"
    assert capsys.readouterr().err.splitlines() == [
        "here.chat: 10 rows left out: duplicates of an earlier row of the same split",
        "here.chat: 70 rows: 60 train, 0 held out",
    ]


def test_sources_of_different_layouts_are_mixed_by_weight(capsys: pytest.CaptureFixture[str]) -> None:
    put("a.jsonl", 0, 100)
    put("a-heldout.jsonl", 100, 7)
    Path("a").mkdir()
    Path("a.jsonl").rename("a/train.jsonl")
    Path("a-heldout.jsonl").rename("a/dev.jsonl")
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    rows = [
        {"turns": [*user(f"{n}+1?"), {"role": "assistant", "content": "", "tool_calls": [call]}]}
        if n == 1000
        else {"turns": user(f"{n}+1?") + assistant(str(n + 1))}
        for n in range(1000, 1300)
    ]
    Path("b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    first = {"path": "a", "weight": 2}
    second = {"path": "b.jsonl", "weight": 1.0, "rename": {"turns": "messages"}}
    table = load(first, second)
    expected = capsys.readouterr().err.splitlines()
    train, heldout = table.filter(split="train"), table.filter(split="heldout")
    assert sum(n < 1000 for n in asked(train)) == 100 and sum(n >= 1000 for n in asked(train)) == 50
    assert sum(n < 1000 for n in asked(heldout)) == 7, "held-out rows are all kept"
    assert sum(n >= 1000 for n in asked(heldout)) == heldout.height - 7 > 0
    left = 300 - (heldout.height - 7)
    assert "here.chat: 100 of 100 training rows of a used, 0 left (weight 2)" in expected
    assert f"here.chat: 50 of {left} training rows of b.jsonl used, {left - 50} left (weight 1)" in expected
    assert sum(n < 1000 for n in asked(train[:60])) == 40, "its first rows are a mixture too"
    Path("b.jsonl").write_text("\n".join(map(json.dumps, reversed(rows))))
    assert load(first, second).equals(table), "the order of a file does not matter"


def test_rows_per_source_follow_the_weights() -> None:
    assert rows_per_source([100, 300], [2, 1]) == [100, 50]
    assert rows_per_source([100, 30], [2, 1]) == [60, 30]
    assert rows_per_source([10, 10, 10], [1, 1, 1]) == [10, 10, 10]
    assert rows_per_source([7, 100], [0.1, 0.7]) == [7, 49]


def test_a_weight_that_uses_no_row_of_a_source_is_refused() -> None:
    put("a.jsonl", 0, 5)
    put("b.jsonl", 10, 5)
    with pytest.raises(DataError, match=r"here.chat.0: with weight .* none of its 5 training rows of a.jsonl are used"):
        load({"path": "a.jsonl", "weight": 1}, {"path": "b.jsonl", "weight": 100}, heldout_share=0.0)


def test_a_source_whose_rows_are_all_those_of_another_is_the_one_that_is_named() -> None:
    put("a.jsonl", 0, 20)
    put("b.jsonl", 5, 10)
    with pytest.raises(DataError, match=r"here.chat.1: with weight 1, none of its 0 training rows of b.jsonl are used"):
        load({"path": "a.jsonl", "weight": 2}, {"path": "b.jsonl", "weight": 1}, heldout_share=0.0)


def test_the_bad_rows_of_all_sources_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    put("a.jsonl", 0, 20)
    put("b.jsonl", 20, 20)
    for name, row in {
        "a.jsonl": {"prompt": " ", "completion": "x"},
        "b.jsonl": {"prompt": "x", "completion": 5},
    }.items():
        Path(name).write_text(f"{Path(name).read_text()}\n{json.dumps(row)}")
    same = {"path": "a.jsonl", "rename": {}}  # the same file twice, read in two ways
    with pytest.raises(TableError) as caught:
        load({"path": "a.jsonl"}, {"path": "b.jsonl"})
    assert "here.chat: 2 of 42 rows break the rules of a 'chat' table:" in str(caught.value)
    assert "b.jsonl line 21: 'completion' is a number" in str(caught.value)
    assert "a.jsonl line 21, messages = " in str(caught.value)
    rejected = pl.read_parquet("rejected/chat.rejected.parquet")
    assert rejected.columns[:3] == ["file", "line", "reason"]
    assert set(rejected.select("file", "line").rows()) == {("a.jsonl", 21), ("b.jsonl", 21)}
    with pytest.raises(TableError, match=r"1 of 42 rows break the rules of a 'chat' table:\n  b.jsonl line 21: 'comp"):
        load({**same, "bad_rows": "drop"}, {"path": "b.jsonl"})
    capsys.readouterr()
    Path("rejected/chat.rejected.parquet").unlink()
    with pytest.raises(
        TableError, match=r"break the rules of a 'chat' table, more of b.jsonl than bad_rows: {drop: 0}"
    ):
        load({**same, "bad_rows": "drop"}, {"path": "b.jsonl", "bad_rows": {"drop": 0}})
    assert load({**same, "bad_rows": "drop"}, {"path": "b.jsonl", "bad_rows": "drop"}).height == 40
    dropped = pl.read_parquet("rejected/chat.rejected.parquet")
    assert set(dropped.select("file", "line").rows()) == {("a.jsonl", 21), ("b.jsonl", 21)}
    assert "here.chat: 2 rows left out (bad_rows: drop), e.g. b.jsonl line 21: " in capsys.readouterr().err


def test_a_held_out_row_of_one_source_is_held_out_in_all(capsys: pytest.CaptureFixture[str]) -> None:
    put("a.jsonl", 0, 20)
    put("b/train.jsonl", 30, 10)
    put("b/dev.jsonl", 19, 2)
    table = load({"path": "a.jsonl"}, {"path": "b"})
    assert "1 row now in heldout: their problems are in the split heldout of another table" in capsys.readouterr().err
    assert table.filter(split="heldout").height == 2 and table.filter(split="train").height == 29
    put("c/train.jsonl", 19, 2)
    put("c/dev.jsonl", 50, 2)
    with pytest.raises(TableError, match=r"b/dev.jsonl line 1, problem = .*: must be in one split only"):
        load({"path": "c"}, {"path": "b"})


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        ([], "here.chat = []: give at least one"),
        ([{"path": "a", "wieght": 1}], "here.chat.0.wieght: unknown key. Did you mean 'weight'?"),
        ([{"path": "a", "weight": 0}], "here.chat.0.weight = 0: "),
        (["a", {"weight": 1.0}], "here.chat.1.path is missing"),
        ([{"path": "a", "weight": 1}, "b"], "here: chat.1 has no weight, but others have one. Give every source a wei"),
        (
            ["a", {"path": "b", "test_share": 0.1}],
            (
                "here.chat.0.test_share = 0.05, chat.1.test_share = 0.1: a problem that is in two tables would be in "
                "different"
            ),
        ),
        ({"path": "a", "rname": {}}, "here.chat.rname: unknown key. Did you mean 'rename'?"),
        (5, "here.chat"),
    ],
)
def test_invalid_lists_of_sources_are_refused(chat: Any, expected: str) -> None:
    with pytest.raises(ParamsError) as caught:
        check(FilesRun, {"path": "d", "chat": chat}, where="here")
    assert expected in str(caught.value)


def test_a_list_of_the_hub() -> None:
    source = {"name": "org/name", "revision": COMMIT}
    run = check(HubRun, {"chat": [{**source, "weight": 2}, {**source, "config": "b", "weight": 1}]}, where="here")
    assert isinstance(run.chat, list) and [one.place for one in run.chat] == ["org/name", "org/name b"]


def test_a_run_with_short_forms_in_a_list() -> None:
    put("d/a.jsonl", 0, 100)
    put("d/b-1.jsonl", 100, 100)
    Path("params.yaml").write_text("data: {files: {mine: {path: d, chat: [a.jsonl, b-*.jsonl]}}}")
    assert sorted(asked(file_tables("mine")["chat"]))[-1] >= 100


def split_sizes(table: pl.DataFrame) -> dict[str, int]:
    return {split: count for split in ("train", "heldout", "test") if (count := table.filter(split=split).height)}


def test_a_file_of_a_list_belongs_to_the_split_of_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("train", "validation", "Dev-1", "eval.small", "Test")
    for nth, name in enumerate(names):
        put(f"{name}.jsonl", 10 * nth, 10)
    files = [{"path": f"{name}.jsonl"} for name in names]
    assert split_sizes(load(*files, heldout_share=0.0)) == {"train": 10, "heldout": 40}
    weighted = [{**file, "weight": 1} for file in files]
    assert split_sizes(load(*weighted, heldout_share=0.0)) == {"train": 10, "heldout": 40}
    assert "training rows of validation.jsonl" not in capsys.readouterr().err
    Path("params.yaml").write_text(
        "data: {files: {mine: {path: ., prompts: [train.jsonl, validation.jsonl, Test.jsonl],"
        " chat: [train.jsonl, validation.jsonl]}}}"
    )
    assert check_rows() == ""
    assert split_sizes(file_tables("mine")["prompts"])["test"] == 10
    trained = load({"path": "validation.jsonl", "splits": {"train": "validation"}}, heldout_share=0.0)
    assert asked(trained) == [*range(10, 20)]


def prompts_of(name: str, numbers: range, **more: Any) -> None:
    Path(name).write_text("\n".join(json.dumps({"prompt": f"{n}+1?", "answer": str(n + 1), **more}) for n in numbers))


def test_of_a_row_that_is_moved_into_test_the_row_of_the_test_file_is_kept() -> None:
    """The moved one came first, and with it the `info` of the file was lost."""
    prompts_of("train.jsonl", range(140))
    prompts_of("test.jsonl", range(30, 40), info={"level": 3})
    Path("params.yaml").write_text("data: {files: {mine: {path: ., prompts: [train.jsonl, test.jsonl]}}}")
    table = file_tables("mine")["prompts"]
    tests = table.filter(split="test")
    assert tests.height == 10 and set(tests["info"]) == {'{"level": 3}'}
    assert table.height == 140 and not set(table.filter(pl.col("split") != "test")["problem"]) & set(tests["problem"])


@pytest.mark.parametrize(
    ("name", "word"), [("validation.jsonl", "validation"), ("Dev-1.jsonl", "Dev"), ("test.jsonl", "test")]
)
def test_a_table_without_training_rows_is_refused(name: str, word: str) -> None:
    put(name, 0, 10)
    with pytest.raises(DataError, match=rf"no split named train. Its splits are {word}, which are for evaluation"):
        load({"path": name})
    Path("params.yaml").write_text(f"data: {{files: {{mine: {{path: ., chat: {name}}}}}}}")
    with pytest.raises(ParamsError, match="the source has no split named train"):
        check_rows()
    put("b/dev.jsonl", 10, 10)
    with pytest.raises(
        DataError, match=r"'train' is empty. The table has 20 of the 20 rows read: 20 heldout .*ame the training rows"
    ):
        load({"path": name}, {"path": "b"})


def test_feedback_of_pairs_keeps_what_the_template_reads() -> None:
    rows = [{"prompt": f"{n}?", "chosen": "yes", "rejected": "no"} for n in range(40)]
    rows = [{**row, "chat_template_kwargs": {"enable_thinking": False}} if n % 2 else row for n, row in enumerate(rows)]
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("params.yaml").write_text("data: {files: {mine: {path: ., pairs: pairs.jsonl}}}")
    tables = file_tables("mine")
    thinks = tables["feedback"].filter(pl.col("chat_template_kwargs").is_not_null())
    asked_for = tables["pairs"].filter(pl.col("chat_template_kwargs").is_not_null())
    assert set(thinks["chat_template_kwargs"]) == {'{"enable_thinking":false}'} and thinks.height > 20
    assert set(thinks["problem"]) == set(asked_for["problem"])
    check_table(tables["feedback"], "feedback", "feedback.parquet")
