"""Requests and replies in OpenAI's chat completions format. Keys without an effect are rejected."""

from __future__ import annotations

import json
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from posttrain.errors import ParamsError
from posttrain.pipeline.serve.policy import Answer, Answers, Job, Policy, Scored
from posttrain.sampling.sampler import SamplingParams
from posttrain.settings.params import Params, check

ROWS = 64
"""Completions that are decoded in parallel."""
SAMPLING = {"temperature", "top_p", "top_k", "max_completion_tokens", "stop", "seed", "logprobs"}
"""Keys that do not apply to log-probs of the conversation."""


class TextPart(Params):
    """A part of a turn."""

    type: Literal["text"] = Field(description="only text is supported")
    text: str = Field(description="the text")


class Turn(Params):
    """A turn of the conversation."""

    role: Literal["system", "user", "assistant", "tool"] = Field(description="role of the speaker")
    content: str | Annotated[list[TextPart], Field(max_length=10_000)] = Field(description="text of the message")


class StreamOptions(Params):
    """The additional content of a stream."""

    include_usage: bool = Field(False, description="end with a chunk that contains the token counts")


class ChatRequest(Params):
    """The body of POST /v1/chat/completions."""

    model: str = Field(description="the served model's name, as in /v1/models")
    messages: list[Turn] = Field(min_length=1, max_length=10_000, description="messages of the conversation")
    n: int = Field(1, ge=1, le=128, description="number of completions")
    temperature: float = Field(1.0, ge=0, le=10, description="0: the likeliest token at each step")
    top_p: float = Field(
        1.0, gt=0, le=1, description="sample from the smallest set of likeliest tokens with this total probability"
    )
    top_k: int | None = Field(None, ge=1, description="sample from this many likeliest tokens")
    max_tokens: int | None = Field(None, ge=1, le=100_000, description="maximum number of tokens of a completion")
    max_completion_tokens: int | None = Field(None, ge=1, le=100_000, description="alias of max_tokens")
    stop: str | list[str] | None = Field(None, description="strings that end a completion; they are not returned")
    seed: int | None = Field(None, description="the same seed gives the same completions; null: random")
    logprobs: bool | None = Field(None, description="add the log-prob of each token at the sampling temperature")
    stream: bool | None = Field(None, description="send server-sent events; each completion is one event")
    stream_options: StreamOptions | None = Field(None, description="options of a stream")
    prompt_logprobs: Literal[0] | None = Field(
        None, description="0: return the log-prob of each token of the conversation, and answer with one token"
    )
    add_generation_prompt: bool = Field(
        True, description="append the start of the assistant's turn; for prompt_logprobs"
    )
    frequency_penalty: Literal[0] | None = Field(None, description="only 0 is supported")
    presence_penalty: Literal[0] | None = Field(None, description="only 0 is supported")
    user: str | None = Field(None, description="ignored, as in OpenAI's API")

    @model_validator(mode="after")
    def _scores_or_answers(self) -> ChatRequest:
        if self.prompt_logprobs is None and not self.add_generation_prompt:
            raise ValueError("add_generation_prompt needs prompt_logprobs: 0")
        if self.prompt_logprobs is not None and (self.n != 1 or self.max_tokens != 1 or self.stream):
            raise ValueError("prompt_logprobs needs n: 1, max_tokens: 1 and no stream")
        if self.prompt_logprobs is not None and (unread := self._sampling()):
            raise ValueError(f"{', '.join(unread)}: not supported with prompt_logprobs. Remove it")
        return self

    def _sampling(self) -> list[str]:
        """Return the keys of SAMPLING that are set. temperature: 0, which our own clients send, does not count."""
        given = self.model_dump(include=SAMPLING, exclude_defaults=True)
        return [name for name in given if given[name] is not False and (name, given[name]) != ("temperature", 0)]

    @property
    def turns(self) -> list[dict[str, str]]:
        """The conversation as plain texts."""
        return [{"role": turn.role, "content": _text(turn.content)} for turn in self.messages]

    def job(self) -> Job:
        """Return the job for the policy."""
        given = {"max_tokens": self.max_tokens or self.max_completion_tokens, "top_k": self.top_k}
        sampling = {
            **{name: value for name, value in given.items() if value is not None},
            "temperature": max(self.temperature, 1e-4) if self.temperature else 1.0,
            "top_p": self.top_p,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop or [],
            "rows": ROWS,
        }
        seed = secrets.randbits(63) if self.seed is None else self.seed
        params = check(SamplingParams, sampling, where="request", file="the request")
        return Job(self.turns, params, self.n, seed, greedy=self.temperature == 0)


class TokensRequest(Params):
    """The body of POST /v1/completions, which returns the log-probs of a text's tokens in vLLM's format."""

    model: str = Field(description="the served model's name, as in /v1/models")
    prompt: list[int] = Field(min_length=2, max_length=2**20, description="token ids")
    prompt_logprobs: int = Field(
        ge=1, le=1000, description="number of likeliest tokens at each position; the text's own token is added"
    )
    max_tokens: Literal[1] = Field(1, description="only 1 is supported")
    temperature: Literal[0] = Field(0, description="only 0 is supported")


R = TypeVar("R", bound=Params)


def parsed(body: bytes, kind: type[R]) -> R:
    """Return the request. Raise a ParamsError that lists every mistake."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ParamsError(what="the body is not valid JSON", where="request", fix="Send a JSON object") from error
    return check(kind, data, where="request", file="the request")


def reply(policy: Policy, request: ChatRequest, answers: Answers) -> dict[str, Any]:
    """Return a `chat.completion` object."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer.text},
            "finish_reason": answer.finish,
            "logprobs": _logprobs(policy, answer) if request.logprobs else None,
        }
        for index, answer in enumerate(answers.answers)
    ]
    return {**_head(request, "chat.completion"), "choices": choices, "usage": _usage(answers)}


def scores(policy: Policy, request: TokensRequest, scored: Scored) -> dict[str, Any]:
    """Return a `text_completion` object with `prompt_logprobs`."""
    choice = {"index": 0, "text": policy.token(scored.following), "finish_reason": "length", "logprobs": None}
    return {
        **_head(request, "text_completion"),
        "choices": [{**choice, "prompt_logprobs": _said(policy, scored.likeliest)}],
        "usage": _scored(scored),
    }


def chat_scores(policy: Policy, request: ChatRequest, scored: Scored) -> dict[str, Any]:
    """Return a `chat.completion` object with `prompt_logprobs` in the same place as vLLM."""
    message = {"role": "assistant", "content": policy.token(scored.following)}
    choice = {"index": 0, "message": message, "finish_reason": "length", "logprobs": None}
    return {
        **_head(request, "chat.completion"),
        "choices": [choice],
        "usage": _scored(scored),
        "prompt_logprobs": _said(policy, scored.text_logps),
    }


def _said(policy: Policy, likeliest: Sequence[Mapping[int, float]]) -> list[dict[str, Any] | None]:
    return [
        None,
        *(
            {
                str(token): {"logprob": logp, "rank": rank, "decoded_token": policy.token(token)}
                for rank, (token, logp) in enumerate(one.items(), 1)
            }
            for one in likeliest
        ),
    ]


def _scored(scored: Scored) -> dict[str, int]:
    tokens = len(scored.likeliest) + 1
    return {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}


def events(policy: Policy, request: ChatRequest, answers: Answers) -> str:
    """Return the completions as server-sent events: one chunk per completion, and a final chunk."""
    head = _head(request, "chat.completion.chunk")
    chunks: list[dict[str, Any]] = []
    for index, answer in enumerate(answers.answers):
        logprobs = _logprobs(policy, answer) if request.logprobs else None
        delta = {"role": "assistant", "content": answer.text}
        chunks.append(
            {**head, "choices": [{"index": index, "delta": delta, "finish_reason": None, "logprobs": logprobs}]}
        )
        chunks.append({**head, "choices": [{"index": index, "delta": {}, "finish_reason": answer.finish}]})
    if request.stream_options and request.stream_options.include_usage:
        chunks.append({**head, "choices": [], "usage": _usage(answers)})
    return "".join(f"data: {chunk}\n\n" for chunk in [*map(json.dumps, chunks), "[DONE]"])


def failure(message: str, code: str) -> dict[str, Any]:
    """Return the body of an error reply."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def _head(request: ChatRequest | TokensRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": request.model}


def _usage(answers: Answers) -> Mapping[str, int]:
    completion = sum(len(answer.ids) for answer in answers.answers)
    total = answers.prompt_tokens + completion
    return {"prompt_tokens": answers.prompt_tokens, "completion_tokens": completion, "total_tokens": total}


def _logprobs(policy: Policy, answer: Answer) -> dict[str, Any]:
    tokens = [policy.token(token) for token in answer.ids]
    return {
        "content": [
            {"token": token, "logprob": logp, "bytes": _bytes(token), "top_logprobs": []}
            for token, logp in zip(tokens, answer.logps, strict=True)
        ]
    }


def _bytes(token: str) -> list[int] | None:
    """Return the bytes of a token's text; None for a part of a character."""
    return None if "\ufffd" in token else list(token.encode())


def _text(content: str | Sequence[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
