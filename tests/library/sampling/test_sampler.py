"""Prompts of a table, their tokens, and the rollouts of a sampler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.models.files.store import load_tokenizer
from posttrain.rollout import Prompt
from posttrain.sampling.sampler import (
    Completion,
    Request,
    SamplingParams,
    check_capacity,
    encode_prompts,
    generate_rollouts,
    prompts_of,
)
from posttrain.settings.params import check
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from tests.library.models.tiny import TEXTS

ASKED = [{"role": "user", "content": "1+1"}]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    folder: Path = tmp_path_factory.mktemp("tokens")
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), folder)
    return ChatText(load_tokenizer(folder))


class Scripted:
    """A sampler that answers each request with its number, and remembers the names."""

    can = frozenset[Any]()
    version = "step 3"
    context = 100

    def __init__(self, text: ChatText) -> None:
        self.text, self.asked = text, list[Request]()

    def sync(self, model: Any, version: str) -> None:
        self.version = version

    def generate(self, requests: Sequence[Request], params: SamplingParams, seed: int, **_: Any) -> list[Completion]:
        first = len(self.asked)
        self.asked += requests
        ids = [self.text.tokenizer(str(first + nth))["input_ids"] for nth in range(len(requests))]
        return [Completion([*one, self.text.stop], [-1.0] * (len(one) + 1), "stop") for one in ids]


@pytest.mark.parametrize(
    ("settings", "truncates"),
    [({}, False), ({"top_p": 0.9}, True), ({"top_k": 1}, True), ({"temperature": 0.5}, False)],
)
def test_which_settings_leave_tokens_out(settings: dict[str, Any], truncates: bool) -> None:
    assert SamplingParams(**settings).truncates is truncates


def test_stop_strings() -> None:
    assert SamplingParams(stop=["a", "b"]).stop == ["a", "b"]
    with pytest.raises(ParamsError, match="every text contains the empty string"):
        check(SamplingParams, {"stop": ["a", ""]}, where="sampling")


def test_rows_of_a_table_are_prompts() -> None:
    row = {"id": "p1", "prompt": ASKED, "answer": "2", "info": '{"level": 3}', "task": "sums", "problem": "x",
           "chat_template_kwargs": '{"mode": 1}'}  # fmt: skip
    other = {**row, "id": "p2", "chat_template_kwargs": None}
    assert prompts_of([row, other]) == [
        Prompt("p1", ASKED, (), "2", {"level": 3}, "sums", "x", {"mode": 1}),
        Prompt("p2", ASKED, (), "2", {"level": 3}, "sums", "x", {}),
    ]


def test_prompts_get_their_tokens(text: ChatText) -> None:
    (found,) = encode_prompts(text, [Prompt("p1", ASKED, ())])
    assert found == Prompt("p1", ASKED, text.prompt(ASKED)) and len(found.ids) > 3


def test_rollouts_are_ordered_by_prompt_and_named(text: ChatText) -> None:
    sampler = Scripted(text)
    prompts = encode_prompts(text, [Prompt(name, ASKED, ()) for name in ("a", "b", "a")])
    found = generate_rollouts(sampler, text, prompts, SamplingParams(), 0, samples=2, name="4:0")
    assert [request.name for request in sampler.asked] == [
        "a:4:0:0",
        "a:4:0:1",
        "b:4:0:0",
        "b:4:0:1",
        "a:4:0:2",
        "a:4:0:3",
    ]
    assert [(one.prompt.id, one.sample, one.text) for one in found] == [
        ("a", 0, "0"), ("a", 1, "1"), ("b", 0, "2"), ("b", 1, "3"), ("a", 0, "4"), ("a", 1, "5"),
    ]  # fmt: skip
    assert {one.version for one in found} == {"step 3"} and found[0].row.rest[-1] == text.stop
    generate_rollouts(sampler, text, prompts[:1], SamplingParams(), 0)
    assert sampler.asked[-1].name == "a:0"


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=4)
    check_capacity(7, [[1, 2, 3]], 1, params, "here")
    check_capacity(None, [[1] * 1000], 1, params, "here")
    with pytest.raises(ParamsError, match=r"a prompt of 3 tokens and sampling\.max_tokens = 4 more are longer"):
        check_capacity(6, [[1], [1, 2, 3]], 1, params, "here")
    monkeypatch.setattr("posttrain.sampling.sampler.free_bytes", lambda device: 999)
    with pytest.raises(ParamsError, match="2 completions at a time need over"):
        check_capacity(None, [], 2, params, "here")
