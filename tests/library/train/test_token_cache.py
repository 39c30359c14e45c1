"""Token rows in a memory-mapped file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from posttrain.models.files.store import load_tokenizer
from posttrain.rollout import TokenRow
from posttrain.settings.host import HOST
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.token_cache import list_array, mapped_rows
from tests.library.models.tiny import TEXTS

FRAME = pl.DataFrame({"id": ["a", "b"], "n": [3, 5]})
CALLS: list[int] = []


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    folder: Path = tmp_path_factory.mktemp("tokens")
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), folder)
    return ChatText(load_tokenizer(folder))


def encode(rows: list[dict[str, Any]]) -> list[list[TokenRow]]:
    CALLS.append(len(rows))
    return [[TokenRow([row["n"]], [1, 2], [True, False]), TokenRow([], [row["n"]])] for row in rows]


def test_rows_come_back(text: ChatText) -> None:
    found = mapped_rows(text, FRAME, encode, "how")
    assert found.row(0) == TokenRow([3], [1, 2], [True, False]) and found.row(3) == TokenRow([], [5])
    assert found.starts.tolist() == [0, 2, 4]
    assert (found.prompt_sizes.tolist(), found.rest_sizes.tolist()) == ([1, 0, 1, 0], [2, 1, 2, 1])
    assert found.stream().tolist() == [1, 2, 3, 1, 2, 5]
    assert found.prompt_bytes(0) == np.array([3], dtype=np.int32).tobytes() and found.prompt_bytes(1) == b""


def test_a_table_is_tokenized_once(text: ChatText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HOST, "cache", lambda: tmp_path)
    CALLS.clear()
    first = mapped_rows(text, FRAME, encode, "how")
    assert CALLS == [1, 2]
    again = mapped_rows(text, FRAME, encode, "how")
    assert CALLS == [1, 2, 1] and again.row(2) == first.row(2) == TokenRow([5], [1, 2], [True, False])
    for file in (tmp_path / "tokens").glob("*.arrow"):
        file.write_bytes(b"damaged")
    assert mapped_rows(text, FRAME, encode, "how").row(1) == TokenRow([], [3]) and CALLS[-1] == 2
    mapped_rows(text, FRAME, encode, "otherwise")
    assert len(list((tmp_path / "tokens").glob("*.arrow"))) == 2


def test_list_array() -> None:
    assert list_array([[1, 2], [], [3]], np.int32).to_pylist() == [[1, 2], [], [3]]
