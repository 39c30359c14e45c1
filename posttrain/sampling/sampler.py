"""The sampler interface, and rollouts of prompts: encode, check the length, sample, and let the task reply."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, runtime_checkable

import torch
from pydantic import Field, field_validator

from posttrain.errors import ParamsError
from posttrain.measure.phases import phase
from posttrain.models.device import free_bytes
from posttrain.rollout import Kept, Prompt, Rollout
from posttrain.sampling.episodes import Episodes, first_turn
from posttrain.settings.host import HOST
from posttrain.settings.params import Params
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation, row_variables

Capability = Literal["greedy", "mixture", "top_p", "top_k", "stop_strings", "background", "exact", "experts"]
"""background: it may sample in a thread while the policy trains. exact: its log-probs equal the trainer's, and it
takes no memory while the policy trains. experts: it reports the experts that a mixture chose."""
BUILTIN_CAN: Final[frozenset[Capability]] = frozenset({"greedy", "mixture", "top_p", "top_k", "stop_strings", "exact"})
VLLM_CAN: Final[frozenset[Capability]] = frozenset({"greedy", "stop_strings", "background", "experts"})
Finish = Literal["stop", "length"]


class SamplingParams(Params):
    """How completions are sampled."""

    max_tokens: int = Field(32, ge=1, description="maximum tokens of a completion, including its stop token")
    temperature: float = Field(1.0, ge=1e-4, le=10, description="divides the logits, in training too")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="sample from the smallest set of likeliest tokens with this total probability",
    )
    top_k: int | None = Field(None, ge=1, description="sample from this many likeliest tokens; null: all")
    stop: list[str] = Field(
        default_factory=list,
        description="additional strings that end a completion; they stay in its text",
    )
    rows: int = Field(1024, ge=1, description="completions that are decoded in parallel (affects memory and rounding)")
    kv_gb: float | None = Field(
        None,
        gt=0,
        description="KV-cache size in GB; also limits the batch (affects memory and rounding); null: half of the "
        "free memory",
    )

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, stop: list[str]) -> list[str]:
        if "" in stop:
            raise ValueError("every text contains the empty string, so each completion would be empty. Remove it")
        return stop

    @property
    def truncates(self) -> bool:
        """True if only the likeliest tokens are sampled."""
        return self.top_p < 1 or self.top_k is not None


class KeptSampling(SamplingParams):
    """Sampling that returns the set of tokens that each token was drawn from. Log-probs are over this set."""


class RoutedSampling(SamplingParams):
    """Sampling that returns the experts that a mixture chose for the tokens."""


MEMORY = {"rows", "kv_gb"}
"""Keys that do not change completions."""


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens to continue. The random numbers depend only on the seed and the name."""

    ids: Sequence[int]
    name: str


@dataclass(frozen=True, slots=True)
class Completion:
    """The continuation of a request."""

    ids: list[int]
    logps: list[float]
    """The log-prob of each token under the policy at the sampling temperature. top_k and top_p count only with
    `kept`."""
    finish: Finish
    kept: Kept | None = None
    """With `KeptSampling` that excludes tokens."""
    experts: torch.Tensor | None = None
    """With `RoutedSampling`: int16 [tokens of request and completion, layers with a router, k]; -1: unknown."""


@dataclass(frozen=True)
class Mixture:
    """A second model to sample with: pi^(1 - share) other^share, normalised (Munos 2023)."""

    other: Any
    share: float


class Sampler(Protocol):
    """Samples completions from a policy.

    Example: `LocalSampler(model, stops, device).generate([Request([5, 6], "p1:0")], SamplingParams(), seed=0)`
    """

    can: frozenset[Capability]
    """Supported features beyond plain sampling from all tokens of one policy."""
    version: str
    """The weights that it samples with, e.g. `online@grpo step 12`."""

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of a request with its completion; None: unknown."""

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
        """Return a completion for each request. `advance` is called with the number of newly finished requests."""
        ...


@runtime_checkable
class Rests(Protocol):
    """A sampler that can free memory between two rounds."""

    def rest(self) -> None:
        """Free memory until the next samples are requested."""


def rest(sampler: object) -> None:
    """Tell a sampler that no more samples are needed before the next weights."""
    if isinstance(sampler, Rests):
        sampler.rest()


SAMPLE_BYTES = 500
"""The memory of the shortest completion: its ids, log-probs, text and row."""


def check_capacity(
    context: int | None, prompts: Sequence[Sequence[int]], count: int, params: SamplingParams, section: str
) -> None:
    """Reject `count` completions that do not fit into memory or may exceed the model's context."""
    where = f"{section} ({HOST.settings_file})"
    free = free_bytes(torch.device("cpu"))
    if count * SAMPLE_BYTES > free:
        what = f"{count:,} completions at a time need over {count * SAMPLE_BYTES / 1e9:.3g} GB of memory, but "
        what += f"{free / 1e9:.3g} GB are free"
        raise ParamsError(what=what, where=where, fix="Lower the number of prompts or of samples of each")
    longest = max((len(ids) for ids in prompts), default=0)
    if context is not None and context < longest + params.max_tokens:
        what = f"a prompt of {longest} tokens and sampling.max_tokens = {params.max_tokens} more are longer than the "
        what += f"model's context of {context}"
        raise ParamsError(what=what, where=where, fix="Lower sampling.max_tokens, or give shorter prompts")


def prompts_of(rows: Iterable[Mapping[str, Any]]) -> list[Prompt]:
    """Return the rows of a prompt table as prompts without tokens."""
    return [
        Prompt(
            row["id"],
            row["prompt"],
            (),
            row["answer"],
            json.loads(row["info"]),
            row["task"],
            row["problem"],
            row_variables(row),
        )
        for row in rows
    ]


@phase("load")
def encode_prompts(text: ChatText, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts with their token ids for the policy."""
    encoded = text.prompts([Conversation(prompt.messages, variables=prompt.variables) for prompt in prompts])
    return [replace(prompt, ids=ids) for prompt, ids in zip(prompts, encoded, strict=True)]


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
    """Return the samples, ordered by prompt. The random numbers depend on the seed, the prompt's id and `name`."""
    asked = [(prompt, sample) for prompt in prompts for sample in range(samples)]
    drawn: Counter[str] = Counter()
    names = []
    for prompt, _ in asked:  # a prompt may be drawn twice in a round
        label = f"{prompt.id}:{name}" if name else prompt.id
        names.append(f"{label}:{drawn[prompt.id]}")
        drawn[prompt.id] += 1
    requests = [Request(prompt.ids, request_name) for (prompt, _), request_name in zip(asked, names, strict=True)]
    completions = sampler.generate(requests, params, seed, greedy=greedy, mixture=mixture, advance=advance)
    first = [first_turn(*pair, done, text, sampler.version) for pair, done in zip(asked, completions, strict=True)]
    context = min((limit for limit in (sampler.context, text.context) if limit is not None), default=None)
    episodes, turn = Episodes(first, text, params.max_tokens, context), 1
    while places := episodes.next_turn():
        rows = [episodes.rollouts[index].row for index in places]
        ids = [[*row.prompt, *row.rest] for row in rows]
        requests = [Request(row, f"{names[index]}:turn{turn}") for index, row in zip(places, ids, strict=True)]
        episodes.add(places, sampler.generate(requests, params, seed, greedy=greedy, mixture=mixture))
        turn += 1
    return episodes.rollouts
