"""What draws completions, and episodes from prompts: encode, check that they fit, sample, let the task answer."""

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
    """How completions are drawn."""

    max_tokens: int = Field(32, ge=1, description="longest completion, stop token included")
    temperature: float = Field(1.0, ge=1e-4, le=10, description="logits are divided by it; training does the same")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="draw from the fewest likeliest tokens that hold this share of the mass",
    )
    top_k: int | None = Field(None, ge=1, description="draw from this many likeliest tokens; null: from all")
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
    """What a request was continued with."""

    ids: list[int]
    logps: list[float]
    """Of each token under the policy, at the temperature that it was drawn with."""
    finish: Finish


@dataclass(frozen=True)
class Mixture:
    """A second model to sample with: pi^(1 - share) other^share, made to sum to 1 (Munos 2023)."""

    other: Any
    share: float


class Sampler(Protocol):
    """Draws completions of a policy.

    Example: `LocalSampler(model, stops, device).generate([Request([5, 6], "p1:0")], SamplingParams(), seed=0)`
    """

    can: frozenset[Capability]
    """What it can do beyond drawing from all tokens of one policy."""
    version: str
    """The weights that it draws with, e.g. `online@grpo step 12`."""

    @property
    def context(self) -> int | None:
        """The most tokens that a request and its completion can have; None: not known."""

    def sync(self, model: Any, version: str) -> None:
        """Draw with these weights from now on."""

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
        """A completion of each request; `advance` is called with how many more are finished."""
        ...


SAMPLE_BYTES = 500
"""What the shortest completion takes at least: its ids, their log-probs, its text and its row."""


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


REPLIERS = ("user", "tool")
"""The roles that a task can answer in."""


def prompts_of(rows: Iterable[Mapping[str, Any]]) -> list[Prompt]:
    """Rows of a table of prompts, not yet as ids."""
    return [
        Prompt(row["id"], row["prompt"], (), row["answer"], json.loads(row["info"]), row["task"], row["problem"])
        for row in rows
    ]


@phase("load")
def encode_prompts(text: ChatText, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with the ids that the policy is asked to continue."""
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
    asked = [(prompt, sample) for prompt in prompts for sample in range(samples)]
    names = [f"{prompt.id}:{name}:{sample}" if name else f"{prompt.id}:{sample}" for prompt, sample in asked]
    requests = [Request(prompt.ids, one) for (prompt, _), one in zip(asked, names, strict=True)]
    drawn = sampler.generate(requests, params, seed, greedy=greedy, mixture=mixture, advance=advance)
    rollouts = [
        _first(prompt, sample, one, text, sampler.version) for (prompt, sample), one in zip(asked, drawn, strict=True)
    ]
    going, turn = list(range(len(rollouts))), 1
    context = min((one for one in (sampler.context, text.context) if one is not None), default=None)
    while going := _answer(rollouts, going, text, turn, params.max_tokens, context):
        rows = [[*rollouts[place].row.prompt, *rollouts[place].row.rest] for place in going]
        requests = [Request(ids, f"{names[place]}:turn{turn}") for place, ids in zip(going, rows, strict=True)]
        drawn = sampler.generate(requests, params, seed, greedy=greedy, mixture=mixture)
        for place, completion in zip(going, drawn, strict=True):
            rollouts[place] = _continued(rollouts[place], completion, text)
        turn += 1
    return rollouts


def _first(prompt: Prompt, sample: int, drawn: Completion, text: ChatText, version: str) -> Rollout:
    said = text.decode(drawn.ids)
    turns = ({"role": "assistant", "content": said},)
    return Rollout(prompt, sample, TokenRow(prompt.ids, drawn.ids), drawn.logps, said, drawn.finish, turns, version)


def _answer(
    rollouts: list[Rollout], places: Sequence[int], text: ChatText, turn: int, max_tokens: int, context: int | None
) -> list[int]:
    """Append what the tasks answer as tokens that are not trained; the places of the episodes that continue.

    An episode whose next completion might not fit the model's context ends as one that was cut off.
    """
    going = []
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
        going.append(place)
    return going


def _reply(rollout: Rollout) -> list[Message]:
    """What the task answers, as turns that a chat template can take."""
    name = rollout.prompt.task
    try:
        reply = list(load_task(name).reply(rollout) or [])
        odd = [
            one
            for one in reply
            if set(one) != {"role", "content"} or one["role"] not in REPLIERS or not isinstance(one["content"], str)
        ]
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        what = f"its reply raised {type(error).__name__}: {error}{place_in_workspace(error)}"
        fix = "Fix the task; POSTTRAIN_TRACEBACK=1 shows where"
        raise DataError(what=what, where=f"task '{name}'", fix=fix) from error
    if odd:
        fix = "Reply with a list of turns {role: user or tool, content: ...}, or None to end the episode"
        raise DataError(what=f"its reply has the turn {odd[0]!r:.80}", where=f"task '{name}'", fix=fix)
    return reply


def _continued(rollout: Rollout, drawn: Completion, text: ChatText) -> Rollout:
    said, row = text.decode(drawn.ids), rollout.row
    return replace(
        rollout,
        row=replace(row, rest=[*row.rest, *drawn.ids], mask=[*_mask(row), *(True for _ in drawn.ids)]),
        logps=[*rollout.logps, *drawn.logps],
        text=said,
        finish=drawn.finish,
        turns=(*rollout.turns, {"role": "assistant", "content": said}),
    )


def _mask(row: TokenRow) -> Sequence[bool]:
    return [True] * len(row.rest) if row.mask is None else row.mask
