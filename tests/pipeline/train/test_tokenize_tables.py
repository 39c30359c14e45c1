"""Tables tokenized into memory-mapped files: the rows of before, kept by content, cut or left out when too long."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from posttrain.data.columns import from_rows
from posttrain.errors import DataError
from posttrain.models.files.store import load_tokenizer
from posttrain.rollout import TokenRow
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train import token_cache as mapped
from posttrain.train.batch_sources import EpochSource
from posttrain.train.examples import Examples, RowLimit, make_examples
from posttrain.train.token_cache import mapped_rows
from posttrain.train.tokenize_tables import comparisons, demonstrations, feedback, rankings, windows
from tests.library.models.tiny import TEXTS
from tests.pipeline.tables.samples import assistant, user

LONG = RowLimit(max_tokens=4096)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer") / "tokenizer"
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), folder)
    return folder


@pytest.fixture
def text(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChatText:
    """In a workspace of DVC, where token files are kept."""
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return ChatText(load_tokenizer(tokenizer), "tokenizer")


def chat(count: int, words: int = 4) -> pl.DataFrame:
    rng = random.Random(0)
    asked = [" ".join(rng.choice(TEXTS) for _ in range(rng.randrange(1, words))) + f" {n}?" for n in range(count)]
    rows = [{"split": "train", "problem": "p", "messages": user(one) + assistant("<|im_end|> #### 1")} for one in asked]
    return from_rows(rows, "chat")


def judged(count: int) -> pl.DataFrame:
    shared = [{"split": "train", "problem": "p", "prompt": user(f"{n // 3}?")} for n in range(count)]
    rows = [{**one, "completion": assistant(f"#### {n}"), "label": n % 3 == 0} for n, one in enumerate(shared)]
    return from_rows(rows, "feedback")


def files() -> list[Path]:
    return sorted(Path(".dvc/tmp/tokens").glob("*"))


def encoded(text: ChatText, frame: pl.DataFrame, first: str, second: str) -> list[TokenRow]:
    return text.exchanges([(row[first], row[second]) for row in frame.to_dicts()])


@pytest.mark.parametrize("kept", [True, False])
def test_rows_are_those_of_the_tokenizer(text: ChatText, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several chunks, in a workspace of DVC and elsewhere."""
    monkeypatch.setattr(mapped, "CHUNK", 7)
    if not kept:
        Path(".dvc/tmp").rmdir()
    frame = chat(30)
    rows = frame.to_dicts()
    expected = text.exchanges([(row["messages"][:-1], row["messages"][-1:]) for row in rows])
    found = demonstrations(text, frame, LONG, "here", "all")
    assert [example.rows for example in found] == [[row] for row in expected]
    assert found.tokens.tolist() == [len(row) for row in expected]
    assert found.trained_tokens == sum(len(row.rest) for row in expected)
    assert bool(files()) == kept


def test_each_kind_of_table(text: ChatText) -> None:
    frame = judged(12)
    expected = encoded(text, frame, "prompt", "completion")
    liked = feedback(text, frame, LONG, "here")
    assert [example.rows for example in liked] == [[row] for row in expected]
    assert [example.columns for example in liked][:2] == [{"label": [1.0]}, {"label": [-1.0]}]
    ranked = rankings(text, frame, LONG, "here")
    assert [example.rows for example in ranked] == [expected[n : n + 3] for n in range(0, 12, 3)]
    assert ranked[3].columns == {"rank": [0.0, 1.0, 1.0]}
    assert ranked.tokens.tolist() == [sum(map(len, expected[n : n + 3])) for n in range(0, 12, 3)]

    shared = [{"split": "train", "problem": "p", "prompt": user(f"{n}?"), "margin": n / 2} for n in range(5)]
    sides = [{**one, "chosen": assistant("good"), "rejected": assistant("bad")} for one in shared]
    pairs = from_rows(sides, "pairs")
    chosen, rejected = (encoded(text, pairs, "prompt", side) for side in ("chosen", "rejected"))
    expected = [row for pair in zip(chosen, rejected, strict=True) for row in pair]
    compared = comparisons(text, pairs, LONG, "here")
    assert [row for example in compared for row in example.rows] == expected
    assert compared[3].columns == {"side": [1.0, -1.0], "margin": [1.5, 1.5]}
    assert len(files()) == 4, "feedback and rankings share their file"


def test_windows_are_cut_from_one_stream(text: ChatText, capsys: pytest.CaptureFixture[str]) -> None:
    frame = from_rows([{"split": "train", "text": one} for one in TEXTS[:20]], "corpus")
    stream = [token for one in TEXTS[:20] for token in (*text.plain([one])[0], text.stop)]
    found = windows(text, frame, 16, "here")
    assert [example.rows[0].rest for example in found] == [
        stream[start : start + 17] for start in range(0, len(stream) - 16, 16)
    ]
    left = (len(stream) - 1) % 16
    assert capsys.readouterr().out == f"here: the last {left} of {len(stream)} tokens do not fill a window: dropped\n"
    with pytest.raises(DataError, match=f"have {len(stream)} tokens, fewer than window = 4096"):
        windows(text, frame, 4096, "here")


def test_masks_and_batches_are_kept(tmp_path: Path) -> None:
    """An order of batches is the same as over a list of the same examples."""
    rows = [TokenRow([1, 2, n], [3, n, 4], [True, False, True] if n % 2 else None) for n in range(9)]
    frame = pl.DataFrame({"n": range(9)})

    def encode(records: list[dict[str, Any]]) -> list[list[TokenRow]]:
        return [[rows[record["n"]]] for record in records]

    file = mapped._write(tmp_path / "rows.arrow", frame, encode)
    found = make_examples(mapped.MappedRows(file))
    file.unlink()
    assert [example.rows[0] for example in found] == rows
    sources = [EpochSource(one, 4, 2, seed=3) for one in (found, list(found))]
    assert [sources[0].batch(step).rows for step in range(6)] == [sources[1].batch(step).rows for step in range(6)]


@pytest.mark.slow
def test_a_table_is_tokenized_once(text: ChatText, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another table, template, date, encoding or code, and a damaged file, are tokenized again."""
    frame, calls = chat(20), list[int]()

    def encode(records: list[dict[str, Any]]) -> list[list[TokenRow]]:
        calls.append(len(records))
        return [[row] for row in text.exchanges([(one["messages"][:-1], one["messages"][-1:]) for one in records])]

    def again(of: ChatText = text, table: pl.DataFrame = frame, how: str = "a") -> bool:
        calls.clear()
        assert mapped_rows(of, table, encode, how).row(3) == encode(table.to_dicts())[3][0]
        return calls != [1, table.height]

    assert again()
    assert not again()
    assert again(table=frame.tail(19))
    assert again(how="b")
    assert again(ChatText(load_tokenizer(tokenizer), today="2025-01-01"))
    other = load_tokenizer(tokenizer)
    other.chat_template += " "
    assert again(ChatText(other))
    assert not again()
    (kept, *_) = (file for file in files() if file.suffix == ".arrow")
    for file in files():
        if file.suffix == ".arrow":
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
    assert again()
    assert not again()
    monkeypatch.setattr(mapped, "CACHE_BYTES", kept.stat().st_size)
    assert again(table=frame.tail(18))
    assert len(files()) == 2, "the least recently used files are removed"


def test_long_rows_are_left_out_or_cut_and_counted(text: ChatText, capsys: pytest.CaptureFixture[str]) -> None:
    frame = chat(40, words=6)
    whole = [example.rows[0] for example in demonstrations(text, frame, LONG, "here", "all")]
    most = int(np.median([len(row.prompt) for row in whole])) + 3
    short, full = [row for row in whole if len(row) <= most], [row for row in whole if len(row.prompt) >= most]
    dropped = demonstrations(text, frame, RowLimit(max_tokens=most), "here", "all")
    assert [example.rows[0] for example in dropped] == short
    long = 40 - len(short)
    assert capsys.readouterr().out == f"here: {long} of 40 rows are longer than {most} tokens: left out\n"
    cut = demonstrations(text, frame, RowLimit(max_tokens=most, long_rows="cut"), "here", "all")
    expected = [TokenRow(row.prompt, row.rest[: most - len(row.prompt)]) for row in whole if len(row.prompt) < most]
    assert [example.rows[0] for example in cut] == expected
    assert cut.tokens.tolist() == [len(row) for row in expected]
    assert cut.trained_tokens == sum(len(row.rest) for row in expected)
    told = f"{long - len(full)} cut, {len(full)} dropped because no answer would be left"
    assert capsys.readouterr().out == f"here: {long} of 40 rows are longer than {most} tokens: {told}\n"
    assert 0 < len(full) < long
    with pytest.raises(DataError, match="all 40 rows are longer than max_tokens = 8"):
        demonstrations(text, frame, RowLimit(max_tokens=8), "here", "all")


def test_a_cut_row_keeps_a_trained_token() -> None:
    """With a mask it is the first trained token that must be left."""

    class Given:
        prompt_sizes, rest_sizes, starts = np.array([4, 4]), np.array([6, 6]), np.arange(3)

        def row(self, place: int) -> TokenRow:
            return TokenRow([1] * 4, [2] * 6, [False] * 5 + [True] if place else [True] + [False] * 5)

    cut = make_examples(Given()).limited(RowLimit(max_tokens=8, long_rows="cut"), "here")
    assert isinstance(cut, Examples)
    assert [example.rows[0] for example in cut] == [TokenRow([1] * 4, [2] * 4, [True] + [False] * 3)]
