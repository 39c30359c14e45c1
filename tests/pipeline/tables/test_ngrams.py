"""Word n-grams of texts as hashes."""

from __future__ import annotations

import numpy as np
import polars as pl

from posttrain.data.columns import TURNS
from posttrain.pipeline.tables.ngrams import chunks, grams, row_texts, spans, texts_without_system, user_texts

TALK = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
CHAT = pl.DataFrame({"messages": [TALK]}, schema={"messages": TURNS})
PROMPTS = pl.DataFrame({"prompt": [TALK], "answer": ["x"]}, schema={"prompt": TURNS, "answer": pl.String})


def test_equal_words_have_equal_hashes() -> None:
    found = grams(pl.Series(["The cat sat. ", "the CAT sat down", "", "cat"]), 3)
    assert found.starts.tolist() == [0, 1, 3, 3, 4] and found.texts.tolist() == [0, 1, 1, 3]
    assert found.values[0] == found.values[1] and len(set(found.values.tolist())) == 3
    assert len(grams(pl.Series(["..."]), 3).values) == 0
    assert grams(pl.Series(["两个人"]), 2).starts.tolist() == [0, 2]


def test_texts_of_rows() -> None:
    assert row_texts(CHAT, "chat").to_list() == ["s\nu\na"] and row_texts(PROMPTS, "prompts").to_list() == [
        "s\nu\na\nx"
    ]
    assert user_texts(CHAT, "chat").to_list() == ["u"] == user_texts(PROMPTS, "prompts").to_list()
    assert texts_without_system(CHAT, "chat").to_list() == ["u\na"]
    corpus = pl.DataFrame({"text": ["t"]})
    assert row_texts(corpus, "corpus").to_list() == ["t"] == user_texts(corpus, "corpus").to_list()
    calls = CHAT.with_columns(fields=pl.lit('[{"name": "add"}]'))
    assert "add" in row_texts(calls, "chat")[0] and "name" not in row_texts(calls, "chat")[0]


def test_parts_are_bounded() -> None:
    assert list(spans(np.array([1, 1, 1]), 2)) == [(0, 2), (2, 3)]
    assert list(spans(np.array([2**21, 2**22, 1]), 9)) == [(0, 1), (1, 2), (2, 3)]
    assert [(start, part.to_list()) for start, part in chunks(pl.Series(["a", "b"]))] == [(0, ["a", "b"])]
