"""The sampler interface, and rollouts of prompts: encode, check that they fit, sample, and let the task reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from pydantic import Field, field_validator

from posttrain.errors import DataError, ParamsError
from posttrain.measure.phases import phase
from posttrain.models.device import free_bytes
from posttrain.params import Params
from posttrain.rollout import Message, Prompt, Rollout, TokenRow
from posttrain.tasks.task import load_task
from posttrain.text.chat import ChatText
from posttrain.user_code import place_in_workspace

Capability = Literal["greedy", "mixture", "top_p", "top_k", "stop_strings"]
Finish = Literal["stop", "length"]


class SamplingParams(Params):
    """How completions are sampled."""

    max_tokens: int = Field(32, ge=1, description="longest completion, stop token included")
    temperature: float = Field(1.0, ge=1e-4, le=10, description="logits are divided by it; training does the same")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="sample from the fewest likeliest tokens with this much of the probability",
    )
    top_k: int | None = Field(None, ge=1, description="sample from this many likeliest tokens; null: from all")
    stop: list[str] = Field(
        default_factory=list,
        description="a completion also ends when its text contains one of these strings, which stays in it",
    )
    rows: int = Field(1024, ge=1, description="completions decoded at a time (memory, not results)")

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, stop: list[str]) -> list[str]:
        if "" in stop:
            raise ValueError("every text contains the empty string, so each completion would be empty. Remove it")
        return stop


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens to continue. The seed and the name alone decide the random numbers."""

    ids: Sequence[int]
    name: str


@dataclass(frozen=True, slots=True)
class Completion:
    """The continuation of a request."""

    ids: list[int]
    logps: list[float]
    """Of each token under the policy, at the sampling temperature."""
    finish: Finish


@dataclass(frozen=True)
class Mixture:
    """A second model to sample with: pi^(1 - share) other^share, normalised (Munos 2023)."""

    other: Any
    share: float


class Sampler(Protocol):
    """Samples completions of a policy.

    Example: `LocalSampler(model, stops, device).generate([Request([5, 6], "p1:0")], SamplingParams(), seed=0)`
    """

    can: frozenset[Capability]
    """Supported features beyond sampling from all tokens of one policy."""
    version: str
    """The weights that it samples with, e.g. `online@grpo step 12`."""

    @property
    def context(self) -> int | None:
        """The most tokens of a request with its completion; None: unknown."""

    def sync(self, model: Any, version: str) -> None:
        """Sample with these weights from now on."""

    def generate(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        seed: int,
        *,
        greedy: bool = False,
        mixture: Mixture | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """A completion of each request; `advance` is called with the number of newly finished ones."""
        ...


SAMPLE_BYTES = 500
"""Memory of the shortest completion: its ids, log-probs, text and row."""


def check_capacity(
    context: int | None, prompts: Sequence[Sequence[int]], count: int, params: SamplingParams, section: str
) -> None:
    """Refuse `count` completions that memory will not hold, or that could be longer than the model's context."""
    where = f"{section} (params.yaml)"
    free = free_bytes(torch.device("cpu"))
    if count * SAMPLE_BYTES > free:
        what = f"{count:,} completions at a time take over {count * SAMPLE_BYTES / 1e9:.3g} GB of memory, and "
        what += f"{free / 1e9:.3g} GB are free"
        raise ParamsError(what=what, where=where, fix="Lower the number of prompts or of samples of each")
    longest = max((len(ids) for ids in prompts), default=0)
    if context is not None and context < longest + params.max_tokens:
        what = f"a prompt of {longest} tokens and sampling.max_tokens = {params.max_tokens} more are longer than the "
        what += f"model's context of {context}"
        raise ParamsError(what=what, where=where, fix="Lower sampling.max_tokens, or give shorter prompts")


REPLY_ROLES = ("user", "tool")
"""The roles of a task's replies."""


def prompts_of(rows: Iterable[Mapping[str, Any]]) -> list[Prompt]:
    """Rows of a table of prompts, not tokenized yet."""
    return [
        Prompt(row["id"], row["prompt"], (), row["answer"], json.loads(row["info"]), row["task"], row["problem"])
        for row in rows
    ]


@phase("load")
def encode_prompts(text: ChatText, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with the token ids that the policy continues."""
    encoded = text.prompts([one.messages for one in prompts])
    return [replace(one, ids=ids) for one, ids in zip(prompts, encoded, strict=True)]


@phase("generate")
def generate_rollouts(
    sampler: Sampler,
    text: ChatText,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    seed: int,
    *,
    samples: int = 1,
    name: str = "",
    greedy: bool = False,
    mixture: Mixture | None = None,
    advance: Callable[[int], None] | None = None,
) -> list[Rollout]:
    """The samples of each prompt, prompt by prompt; the seed, the prompt's id and `name` decide the random numbers."""
    episodes = [(prompt, sample) for prompt in prompts for sample in range(samples)]
    names = [f"{prompt.id}:{name}:{sample}" if name else f"{prompt.id}:{sample}" for prompt, sample in episodes]
    requests = [Request(prompt.ids, one) for (prompt, _), one in zip(episodes, names, strict=True)]
    completions = sampler.generate(requests, params, seed, greedy=greedy, mixture=mixture, advance=advance)
    rollouts = [
        _first_turn(prompt, sample, one, text, sampler.version)
        for (prompt, sample), one in zip(episodes, completions, strict=True)
    ]
    unfinished, turn = list(range(len(rollouts))), 1
    context = min((one for one in (sampler.context, text.context) if one is not None), default=None)
    while unfinished := _reply_all(rollouts, unfinished, text, turn, params.max_tokens, context):
        rows = [[*rollouts[place].row.prompt, *rollouts[place].row.rest] for place in unfinished]
        requests = [Request(ids, f"{names[place]}:turn{turn}") for place, ids in zip(unfinished, rows, strict=True)]
        completions = sampler.generate(requests, params, seed, greedy=greedy, mixture=mixture)
        for place, completion in zip(unfinished, completions, strict=True):
            rollouts[place] = _with_completion(rollouts[place], completion, text)
        turn += 1
    return rollouts


def _first_turn(prompt: Prompt, sample: int, completion: Completion, text: ChatText, version: str) -> Rollout:
    content = text.decode(completion.ids)
    turns = ({"role": "assistant", "content": content},)
    row = TokenRow(prompt.ids, completion.ids)
    return Rollout(prompt, sample, row, completion.logps, content, completion.finish, turns, version)


def _reply_all(
    rollouts: list[Rollout], places: Sequence[int], text: ChatText, turn: int, max_tokens: int, context: int | None
) -> list[int]:
    """Append the tasks' replies as tokens that are not trained; returns the places of the episodes that continue.

    An episode whose next completion might not fit the model's context ends as one that was cut off.
    """
    unfinished = []
    for place in places:
        one = rollouts[place]
        if one.truncated or turn >= load_task(one.prompt.task).turns:
            continue
        reply = _reply(one)
        if not reply:
            continue
        ids = text.reply([*one.prompt.messages, *one.turns], reply, one.row.rest[-1])
        if context is not None and len(one.row) + len(ids) + max_tokens > context:
            rollouts[place] = replace(one, finish="length")
            continue
        row = replace(one.row, rest=[*one.row.rest, *ids], mask=[*_mask(one.row), *(False for _ in ids)])
        rollouts[place] = replace(one, row=row, turns=(*one.turns, *reply))
        unfinished.append(place)
    return unfinished


def _reply(rollout: Rollout) -> list[Message]:
    """The task's reply as turns for the chat template; empty: the episode ends."""
    name = rollout.prompt.task
    try:
        reply = list(load_task(name).reply(rollout) or [])
        odd = [
            one
            for one in reply
            if set(one) != {"role", "content"} or one["role"] not in REPLY_ROLES or not isinstance(one["content"], str)
        ]
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        what = f"its reply raised {type(error).__name__}: {error}{place_in_workspace(error)}"
        fix = "Fix the task; POSTTRAIN_TRACEBACK=1 shows where"
        raise DataError(what=what, where=f"task '{name}'", fix=fix) from error
    if odd:
        fix = "Reply with a list of turns {role: user or tool, content: ...}, or None to end the episode"
        raise DataError(what=f"its reply has the turn {odd[0]!r:.80}", where=f"task '{name}'", fix=fix)
    return reply


def _with_completion(rollout: Rollout, completion: Completion, text: ChatText) -> Rollout:
    """The episode with one more turn of the policy."""
    content, row = text.decode(completion.ids), rollout.row
    return replace(
        rollout,
        row=replace(row, rest=[*row.rest, *completion.ids], mask=[*_mask(row), *(True for _ in completion.ids)]),
        logps=[*rollout.logps, *completion.logps],
        text=content,
        finish=completion.finish,
        turns=(*rollout.turns, {"role": "assistant", "content": content}),
    )


def _mask(row: TokenRow) -> Sequence[bool]:
    return [True] * len(row.rest) if row.mask is None else row.mask
