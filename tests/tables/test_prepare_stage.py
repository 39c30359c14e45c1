"""The stage, run as DVC runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import posttrain
from posttrain.errors import TableError
from posttrain.params import check
from posttrain.tables.prepare import PREPARED, prepare, summary, table_path, write_tables
from posttrain.tables.sources import PrepareParams
from posttrain.tables.store import read_table
from tests.tables.samples import assistant, user

SIZES = {"n_corpus": 300, "n_corpus_heldout": 20, "n_sft": 50, "n_sft_heldout": 10, "n_rl": 60} | {
    "n_heldout": 20,
    "n_test": 30,
}


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(posttrain.__file__).parents[1])}
    command = [sys.executable, "-m", "stages.prepare"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_stage_writes_its_tables_and_a_summary(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(json.dumps({"prepare": {"two_step": SIZES}}))
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == sorted(f"{kind}.parquet" for kind in PREPARED)
    for kind in PREPARED:
        read_table(table_path(tmp_path / "data", kind), kind)
    assert [line.split() for line in done.stdout.splitlines()[-4:]] == [
        ["table", "train", "heldout", "test"],
        ["corpus", "300", "20", "-"],
        ["chat", "50", "10", "-"],
        ["prompts", "60", "20", "30"],
    ]


def test_stage_is_lean() -> None:
    """Torch costs seconds at import, and this stage is to end in about three."""
    code = (
        "import sys, stages.prepare; print(sorted({'torch', 'transformers', 'datasets', 'prefect'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    root = Path(posttrain.__file__).parents[1]
    assert subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_stage_that_fails_writes_no_table(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(json.dumps({"prepare": {"two_step": {**SIZES, "n_test": 10**6}}}))
    done = run(tmp_path)
    assert done.returncode != 0
    assert "n_test = 1,000,000, but the test split has only" in done.stderr
    assert not (tmp_path / "data").exists()


def test_given_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chat = [{"messages": user(f"{n}+1?") + assistant(str(n + 1))} for n in range(100)]
    prompts = [{"question": f"{n}+1?", "answer": n + 1} for n in range(100)]
    Path("chat.jsonl").write_text("\n".join(map(json.dumps, chat)))
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    given = {"chat": {"path": "chat.jsonl"}, "prompts": {"path": "prompts.jsonl", "rename": {"question": "prompt"}}}
    tables = prepare(check(PrepareParams, {"source": "given", "given": given}, where="prepare"))
    assert tables["prompts"].height == 100
    assert tables["corpus"]["text"][0] == "0+1?\n\n1"
    assert tables["corpus"].height == tables["chat"].height
    write_tables(tables)
    assert read_table("data/prompts.parquet", "prompts").equals(tables["prompts"])
    assert summary(tables).count("\n") == 3


def test_problem_in_two_given_splits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("chat", "prompts"):
        Path(name).mkdir()
    chat = [{"prompt": f"{n}?", "completion": "a"} for n in range(100)]
    for name, rows in {
        "chat/train": chat,
        "chat/test": chat[:1],
        "prompts/train": chat,
        "prompts/test": chat[1:2],
    }.items():
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = {name: {"path": name} for name in ("chat", "prompts")}
    with pytest.raises(TableError, match="must be in one split only") as caught:
        prepare(check(PrepareParams, {"source": "given", "given": given}, where="prepare"))
    assert str(caught.value).startswith("prepare.given.chat: 2 of 101 rows break the rules of a 'chat' table:")
    for place in ("chat/train.jsonl line 1", "chat/test.jsonl line 1"):
        assert f"{place}, problem = " in str(caught.value)
