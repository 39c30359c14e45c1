"""Requests and replies of `posttrain serve`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.serve.requests import ROWS, ChatRequest, TokensRequest, failure, parsed

TURN = {"role": "user", "content": "a"}


def request(**given: Any) -> ChatRequest:
    return parsed(json.dumps({"model": "m", "messages": [TURN], **given}).encode(), ChatRequest)


def test_turns_are_plain_texts() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}
    assert request(messages=[TURN, parts]).turns == [TURN, {"role": "user", "content": "bc"}]


def test_jobs() -> None:
    job = request(seed=3, n=2, max_completion_tokens=7, top_k=4, stop="x", temperature=0.5).job()
    assert (job.sampling.max_tokens, job.sampling.top_k, job.sampling.stop, job.sampling.rows) == (7, 4, ["x"], ROWS)
    assert job.sampling.temperature == 0.5 and job.greedy is False and [dict(turn) for turn in job.messages] == [TURN]
    greedy = request(temperature=0).job()
    assert greedy.greedy is True and greedy.sampling.temperature == 1.0 and greedy.sampling.stop == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"add_generation_prompt": False}, "add_generation_prompt needs prompt_logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs needs n: 1, max_tokens: 1"),
        ({"prompt_logprobs": 0, "max_tokens": 1, "seed": 3}, "seed: not supported with prompt_logprobs"),
        ({"tools": []}, "tools"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        request(**given)


def test_scores_are_asked_for() -> None:
    assert request(prompt_logprobs=0, max_tokens=1, temperature=0).prompt_logprobs == 0
    found = parsed(b'{"model": "m", "prompt": [1, 2], "prompt_logprobs": 1}', TokensRequest)
    assert found.prompt == [1, 2]
    with pytest.raises(ParamsError, match="the body is not valid JSON"):
        parsed(b"{", ChatRequest)


def test_failure() -> None:
    error = {"message": "no", "type": "invalid_request_error", "param": None, "code": "busy"}
    assert failure("no", "busy") == {"error": error}
