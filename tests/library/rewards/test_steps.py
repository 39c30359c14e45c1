"""Steps of a text, and the tokens at which they end."""

from __future__ import annotations

from pathlib import Path

from posttrain.models.files.store import load_tokenizer
from posttrain.rewards.steps import REDUCE, step_ends, steps_of
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from tests.library.models.tiny import TEXTS


def test_texts_up_to_each_step() -> None:
    assert [*steps_of("a\n\nb\n c", "\n")] == ["a", "a\n\nb", "a\n\nb\n c"]
    assert [*steps_of(" \n", "\n")] == [] and [*steps_of("a--b", "--")] == ["a", "a--b"]
    assert {name: reduce([3.0, 1.0, 2.0]) for name, reduce in REDUCE.items()} == {
        "min": 1.0, "mean": 2.0, "sum": 6.0, "last": 2.0,
    }  # fmt: skip


def test_tokens_up_to_each_step(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), tmp_path)
    text = ChatText(load_tokenizer(tmp_path))
    words = "1+1\n2+2\n3"
    ids = [*text.tokenizer(words)["input_ids"], text.stop]
    rollout = Rollout(Prompt("p", [], [1]), 0, TokenRow([1], ids), [0.0] * len(ids), words, "stop")
    parts = [*steps_of(words, "\n")]
    ends = step_ends(rollout, parts, "\n", text)
    assert ends[-1] == len(ids)
    for end, part in zip(ends[:-1], parts[:-1], strict=True):
        whole = f"{part}\n"
        assert text.stops.decode(ids[:end]).startswith(whole) and not text.stops.decode(ids[: end - 1]).startswith(
            whole
        )
    second = [7, *ids]
    mask = [True, False, *[True] * (len(ids) - 1)]
    later = Rollout(Prompt("p", [], [1]), 0, TokenRow([1], second, mask), [0.0] * len(ids), words, "stop")
    assert step_ends(later, parts[-1:], "\n", text) == [1 + len(ids) - 1], "tokens of the turns before count"
