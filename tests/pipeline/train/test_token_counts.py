"""How long rows are in tokens, as the command `tokens` prints and plots it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.data.columns import KINDS, SPLITS, from_rows
from posttrain.errors import DataError
from posttrain.models.files.store import load_tokenizer
from posttrain.pipeline.commands import line
from posttrain.pipeline.runs.token_counts import BAR, token_counts
from posttrain.pipeline.tables.store import write_tables
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from tests.library.models.tiny import TEXTS
from tests.pipeline.tables.samples import assistant, table_of, user


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), tmp_path / "models/base/start")
    return tmp_path


def test_the_command_counts_every_row(workspace: Path) -> None:
    """19 rows of one length and one that is longer, with their quantiles, limits, histogram and plot."""
    rows = [{"split": "train", "problem": "p", "messages": user(f"{n % 10}") + assistant("a")} for n in range(10)]
    rows.append({"split": "train", "problem": "p", "messages": user("1") + assistant("b " * 150)})
    table = from_rows(rows, "chat")
    write_tables({"chat": table}, Path("data/mine"))
    text = ChatText(load_tokenizer(workspace / "models/base/start"))
    found = text.exchanges([(row["messages"][:1], row["messages"][1:]) for row in rows])
    short, long = len(found[0]), len(found[-1])
    assert long > 128 and short < 128
    words = ["show", "tokens", "mine/chat", "base/start", "--plot", "tokens.json"]
    lines = line.run(line.parse(words)).splitlines()
    assert lines[0] == f"mine/chat with the tokenizer of base/start: 11 rows, {sum(map(len, found)):,} tokens"
    assert [text.split()[0] for text in lines[2:5]] == ["prompt", "rest", "row"]
    mean = f"{sum(map(len, found)) / 11:,.0f}"
    assert lines[4].split()[1:] == [mean, *(str(n) for n in (short, short, short, long, long))]
    assert "1 rows (9.1%) have more than 128 tokens" in lines
    bars = [text.split() for text in lines if text.endswith("#")]
    assert [(bar[3], bar[4]) for bar in bars] == [("10", "#" * BAR), ("1", "#" * (BAR // 10))]
    plot = json.loads(Path("tokens.json").read_text())
    assert {row["metric"] for row in plot} == {"prompt", "rest"}
    assert sum(row["rows"] for row in plot) == 22


def test_every_kind_of_table(workspace: Path) -> None:
    for kind in (one for one in KINDS if SPLITS[one]):  # those of data/
        write_tables({kind: table_of(kind)}, Path("data") / kind)
        assert token_counts(f"{kind}/{kind}", str(workspace / "models/base/start"), None).startswith(
            f"{kind}/{kind} with"
        )
    with pytest.raises(DataError, match=r"'mine/chats' is not a table such as mine/chat\. Did you mean 'chat'"):
        token_counts("mine/chats", "base/start", None)
