"""`posttrain where`, the notes before a push, and docs/reference/deletion.md word for word."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest

from flows.hosts import push_results
from posttrain.errors import DataError
from posttrain.pipeline.lineage.explain import why
from posttrain.pipeline.lineage.query import Query
from posttrain.pipeline.lineage.row_copies import find_copies, where
from posttrain.pipeline.lineage.search import in_bytes
from tests.pipeline.commands.test_project import LIBRARY, command, posttrain
from tests.pipeline.lineage.guide import ADDRESS, LINE, PARAMS, project, write_data
from tests.workspace import ROOT, environment

pytestmark = [pytest.mark.timeout(1800)]
GUIDE = (ROOT / "docs/reference/deletion.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SOURCE = f"my/data/demonstrations.jsonl:{LINE}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with its tables, without models."""
    folder = project(tmp_path_factory.mktemp("privacy"))
    done = command(folder, "dvc", "repro", "data_files@mine")
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture
def inside(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


@pytest.mark.slow
def test_a_row_is_found_by_its_line_its_id_and_its_text(inside: Path) -> None:
    by_line = find_copies(SOURCE)
    assert {"my/data/demonstrations.jsonl", "data/mine/chat.parquet"} <= by_line.files.keys()
    assert by_line.files["my/data/demonstrations.jsonl"] == [LINE]
    assert by_line.tracked == ["my/data/demonstrations.jsonl"]
    assert list(by_line.cache.values()) == ["data/mine/chat.parquet"]
    assert list(by_line.runs) == ["data_files@mine"] and len(by_line.cached_runs) == 1
    assert list(by_line.commits) == ["my/data/demonstrations.jsonl"]
    (row_id,) = by_line.ids
    for other in (find_copies(row_id), find_copies(ADDRESS)):
        assert other.files == by_line.files and other.cache == by_line.cache and other.runs == by_line.runs
    assert json.loads(where(ADDRESS, "json"))["files"] == by_line.files
    assert where("nobody wrote this", "words").endswith("\nno copy found")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("abc", "'abc': the text is too short. Give an id, FILE:LINE, or at least 4 characters of the row's text"),
        ("my/data/prompts.jsonl:900", "my/data/prompts.jsonl:900: no row has this number"),
        ("my/empty.jsonl:1", "my/empty.jsonl:1: the row has no text to search for"),
        ("params.yaml:3", "params.yaml: rows of a '.yaml' file cannot be read"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, expected: str
) -> None:
    write_data(tmp_path / "my/data")
    (tmp_path / "my/empty.jsonl").write_text('{"text": "", "number": 3}\n')
    (tmp_path / "params.yaml").write_text(PARAMS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=re.escape(expected)):
        where(row, "words")


@pytest.mark.slow
def test_a_push_is_told_first_and_leaves_out_what_is_not_to_be_pushed(
    inside: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = posttrain(inside, "check").stdout
    store = inside.parent / "store"
    assert f"note: `dvc push` sends your own text to the remote 'store' ({store}): data/mine (" in expected

    graph = (inside / "dvc.yaml").read_text(encoding="utf-8")
    (shown,) = (text for kind, text in BLOCK.findall(GUIDE) if kind == "yaml")
    lines = "\n".join(f"  {line}" for line in shown.rstrip().splitlines()[1:])
    files, rest = graph.split("\n  data_hub:")
    (inside / "dvc.yaml").write_text(files.replace("        - data/${key}", lines) + "\n  data_hub:" + rest)
    assert command(inside, "dvc", "push", "--run-cache").returncode == 0
    assert find_copies(ADDRESS).remote == {}
    assert "up to date" in command(inside, "dvc", "status", "data_files@mine").stdout
    (inside / "dvc.yaml").write_text(graph)
    capfd.readouterr()
    push_results(inside)
    assert (
        f"note: `dvc push` sends your own text to the remote 'store' ({store}): data/mine (" in capfd.readouterr().err
    )
    assert list(find_copies(ADDRESS).remote.values()) == ["store"]


@pytest.mark.slow
def test_after_the_guide_nothing_holds_the_row(tmp_path: Path) -> None:
    folder = project(tmp_path)
    for words in (("repro",), ("exp", "run", "--set-param", "evaluate.settings.prompts=5"), ("push", "--run-cache")):
        done = command(folder, "dvc", *words)
        assert done.returncode == 0, done.stdout
    commands = "set -e\n" + "".join(text for kind, text in BLOCK.findall(GUIDE) if kind == "sh")
    done = subprocess.run(
        ["bash", "-c", commands], cwd=folder, env=environment() | LIBRARY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (last,) = (text for kind, text in BLOCK.findall(GUIDE) if kind == "")
    assert done.stdout.endswith(last), done.stdout
    before = done.stdout.partition("Running stage")[0]
    for expected in (
        f"file: {SOURCE.replace(':', ' line ')}, in git",
        "cache: ",
        "remote store: ",
        "git: my/data/",
        "experiment: ",
    ):
        assert expected in before, before
    for stage in ("data_files@mine", "sft@main", "evaluate@sft", "report"):
        assert f"has read it, must run again: {stage} " in before and f"stage '{stage}'" in done.stdout


@pytest.mark.parametrize(
    "written",
    [
        b'{"info":{"level":1},"prompt":"a text that only this row has"}\n',
        b'{"row": {"prompt": "a text that only this row has"}}\n',
    ],
)
def test_a_line_of_json_is_not_taken_for_weights(written: bytes) -> None:
    """Its bytes 8 and 9 are those with which the header of safetensors begins."""
    assert written[8:10] == b'{"'
    assert in_bytes(written, Query(texts=("a text that only this row has",))) == [1]
    header = b'{"weight": {"dtype": "F32", "note": "a text that only this row has"}}'
    assert in_bytes(len(header).to_bytes(8, "little") + header, Query(texts=("a text that only this row has",))) is None


def test_a_text_with_quotes_is_found_in_csv(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    pl.DataFrame({"prompt": ["x", 'he said "yes" to it']}).write_csv(file)
    assert in_bytes(file.read_bytes(), Query(texts=('he said "yes" to it',))) == [3]


def test_a_text_of_a_category_is_found(tmp_path: Path) -> None:
    frame = pl.DataFrame({"prompt": ["one text", "another text"]}, schema={"prompt": pl.Categorical})
    frame.write_parquet(tmp_path / "mine.parquet")
    assert in_bytes((tmp_path / "mine.parquet").read_bytes(), Query(texts=("another text",))) == [2]


TEXT = "“Frau Müller” wohnt in der Elmstraße 12, Köln"
ENCODED = {"excel.csv": "cp1252", "sheet.csv": "utf-16", "other.csv": "utf-16-be", "mail.csv": "utf-7"}


def _encoded_sources(folder: Path) -> None:
    """A csv file in each encoding, whose third row has the text on line 4, and the entry that reads them."""
    (folder / "my/data").mkdir(parents=True)
    lines = ["prompt,completion", "Wie viel ist 1 + 1?,zwei", "Wie viel ist 1 + 2?,drei", f"wo wohnt sie?,{TEXT}"]
    quoted = [line.replace(TEXT, '"{}"'.format(TEXT.replace('"', '""'))) for line in lines]
    for name, encoding in ENCODED.items():
        (folder / "my/data" / name).write_bytes("\n".join([*quoted, ""]).encode(encoding))
    sources = [f"{{path: {name}, encoding: {encoding}, heldout_share: 0}}" for name, encoding in ENCODED.items()]
    text = f"format: 2\ndata: {{files: {{mine: {{path: my/data, chat: [{', '.join(sources)}]}}}}}}\n"
    (folder / "params.yaml").write_text(text, encoding="utf-8")


def test_a_text_is_found_in_files_of_other_encodings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _encoded_sources(tmp_path)
    (tmp_path / "notes.txt").write_bytes(f"one\n\n{TEXT}\n".encode("utf-16-le"))  # no entry names it
    monkeypatch.chdir(tmp_path)
    expected = {f"my/data/{name}": [4] for name in ENCODED} | {"notes.txt": [3]}
    assert find_copies(TEXT).files == expected
    for name in ENCODED:
        assert find_copies(f"my/data/{name}:4").files == expected, name


def test_the_named_line_is_listed_and_what_cannot_be_searched_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.jsonl").write_text('{"text": "two\\n\\u006cines that no search of bytes finds"}\n')
    (tmp_path / "half.parquet").write_bytes(b"PAR1" + bytes(100))
    monkeypatch.chdir(tmp_path)
    copies = find_copies("mine.jsonl:1")
    assert copies.files == {"mine.jsonl": [1]}
    assert copies.unreadable == {"half.parquet": "damaged parquet"}
    assert where("nobody wrote this", "words").splitlines()[1:] == [
        "no copy found",
        "could not be searched: half.parquet (damaged parquet)",
    ]


@pytest.mark.slow
def test_why_finds_the_source_of_a_row_in_another_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert posttrain(tmp_path, "init", "mine").returncode == 0
    shutil.rmtree(tmp_path / "mine/my/data", ignore_errors=True)
    _encoded_sources(tmp_path / "mine")
    done = command(tmp_path / "mine", "dvc", "repro", "data_files@mine")
    assert done.returncode == 0, done.stdout
    monkeypatch.chdir(tmp_path / "mine")
    table = pl.read_parquet("data/mine/chat.parquet")
    (row,) = (row for row in table.iter_rows(named=True) if TEXT in str(row["messages"]))
    said = json.dumps(why(row["id"], "json"), ensure_ascii=False)
    for name in ENCODED:
        assert f"my/data/{name}" in said, said
