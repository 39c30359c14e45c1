"""Load a model of transformers and sample it."""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor

from posttrain.errors import DataError, ModelError, ParamsError
from posttrain.formulas.ragged import to_padded
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy, load_stop_tokens, load_tokenizer
from posttrain.models.files.text import context_of
from posttrain.models.forward.forward import register, runs_in_rows
from posttrain.models.master_weights import computing, is_trained_in_bf16
from posttrain.models.self_check import verify_forward
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Request, SamplingParams, check_capacity
from posttrain.settings.params import check
from posttrain.text.chat import DATE, ChatText

Messages = Sequence[Mapping[str, Any]]


def load_model(path: str | Path) -> tuple[Any, Any]:
    """(model, tokenizer) of a folder in the format of transformers.

    The model has float32 weights. Every tensor is checked; only safetensors are read, and no code of the folder is run.
    A model of `AutoModelForCausalLM` can be used as well, if its weights are float32.
    """
    model, tokenizer = load_policy(path), load_tokenizer(path)
    model.runs_in_rows = runs_in_rows(model)
    model.set_attn_implementation("eager")
    ends = load_stop_tokens(path)
    if ends:
        model.generation_config.eos_token_id = list(ends)
    return model, tokenizer


@dataclass(frozen=True)
class Samples:
    """Completions, padded on the right; the completions of a prompt are neighbours."""

    ids: Tensor
    """[B, T] prompt and completion."""
    mask: Tensor
    """[B, T] true at the tokens of the completion."""
    logp: Tensor
    """[B, T] of those tokens at the temperature they were drawn with, 0 elsewhere."""
    texts: list[str]
    """B completions as text, without the end token."""
    truncated: Tensor
    """[B] whether a completion has no end token."""


def sample(
    model: Any,
    tokenizer: Any,
    prompts: str | Messages | Sequence[str | Messages],
    *,
    n: int = 1,
    max_tokens: int = 64,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    stop: Sequence[str] = (),
    greedy: bool = False,
    seed: int = 0,
) -> Samples:
    """Draw n completions of each prompt: a string (one user turn) or a list of messages. One prompt needs no list.

    The same seed gives the same completions, whatever the other prompts are; those of a prompt that is there twice
    differ. stop: strings that end a completion.
    """
    values = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k, "stop": list(stop)}
    params = check(_Drawn, {**values, "n": n}, where="sample", file="arguments")
    model = own_model(model)
    text = text_of(model, tokenizer)
    asked = text.prompts([turns_of(prompt, "user") for prompt in _as_list(prompts)])
    check_room(text, asked, n * len(asked), params, "sample")
    requests = _requests(asked, n)
    runtime = Runtime(device_of(model))
    with our_attention(model), computing(model, runtime):
        completions = LocalSampler(model, text.stops, runtime).generate(requests, params, seed, greedy=greedy)
    lengths = torch.tensor(
        [len(request.ids) + len(completion.ids) for request, completion in zip(requests, completions, strict=True)]
    )
    ids, mask, logp = (
        to_padded(torch.tensor([value for row in rows for value in row]), lengths)
        for rows in (
            [[*request.ids, *completion.ids] for request, completion in zip(requests, completions, strict=True)],
            [
                [False] * len(request.ids) + [True] * len(completion.ids)
                for request, completion in zip(requests, completions, strict=True)
            ],
            [
                [0.0] * len(request.ids) + completion.logps
                for request, completion in zip(requests, completions, strict=True)
            ],
        )
    )
    truncated = torch.tensor([completion.finish == "length" for completion in completions])
    ids, mask, logp, truncated = (column.to(model.device) for column in (ids, mask, logp, truncated))
    return Samples(ids, mask, logp, [text.decode(completion.ids) for completion in completions], truncated)


class _Drawn(SamplingParams):
    """The arguments of `sample`."""

    n: int = Field(1, ge=1, description="completions of each prompt")


def _requests(prompts: Sequence[Sequence[int]], n: int) -> list[Request]:
    """Return n requests of each prompt; its tokens, not its place, and how often it was there before name them."""
    drawn: Counter[str] = Counter()
    requests = []
    for ids in prompts:
        name = hashlib.sha256(repr(list(ids)).encode()).hexdigest()
        requests += [Request(ids, f"{name}:{drawn[name] + nth}") for nth in range(n)]
        drawn[name] += n
    return requests


def check_room(
    text: ChatText, prompts: Sequence[Sequence[int]], count: int, params: SamplingParams, where: str
) -> None:
    """Refuse completions that memory or the model's context will not hold."""
    try:
        check_capacity(text.context, prompts, count, params, where)
    except ParamsError as error:
        raise ParamsError(what=error.what, where=where, fix=error.fix) from error


def check_rows(text: ChatText, lengths: Sequence[int], argument: str) -> None:
    """Refuse rows that are longer than the model's context."""
    longest = max(lengths, default=0)
    if text.context is not None and longest > text.context:
        place = lengths.index(longest)
        what = f"{longest} tokens are longer than the model's context of {text.context}"
        raise DataError(what=what, where=f"{argument}[{place}]", fix="Shorten it or leave it out")


def own_model(model: Any) -> Any:
    """Return the model itself, where it is given in peft's wrapper: its layers keep their adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def turns_of(turns: str | Messages, role: str) -> Messages:
    """Return a string as one turn of a role."""
    return [{"role": role, "content": turns}] if isinstance(turns, str) else turns


def _as_list(prompts: str | Messages | Sequence[str | Messages]) -> Sequence[str | Messages]:
    """Return several prompts as they are, and one prompt, a string or messages, as a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if not prompts:
        raise DataError(what="there are no prompts", where="prompts", fix="Give at least one")
    if all(isinstance(prompt, Mapping) for prompt in prompts):
        return [cast("Messages", prompts)]
    return cast("Sequence[str | Messages]", prompts)


def text_of(model: Any, tokenizer: Any, today: str = DATE, variables: Mapping[str, Any] | None = None) -> ChatText:
    """Return the tokenizer with the chat template and the stop tokens of the model."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return ChatText(tokenizer, "tokenizer", ends, today, context=context_of(model.config), variables=variables)


def device_of(model: Any) -> DeviceParams:
    """Return the settings of the device that the model is on; they change no setting of torch."""
    return DeviceParams(device=model.device.type, deterministic=False, threads=min(torch.get_num_threads(), 256))


@contextmanager
def our_attention(model: Any) -> Iterator[None]:
    """The model runs packed rows with our attention; afterwards it has its own again."""
    if model.dtype != torch.float32 and not is_trained_in_bf16(model):
        what, fix = (
            f"its weights are {model.dtype}",
            "Call model.float(); on a GPU it is computed in bfloat16 and updated in float32",
        )
        raise ModelError(what=what, where=type(model).__name__, fix=fix)
    own = model.config._attn_implementation
    try:
        ours = register()
        if not hasattr(model, "runs_in_rows"):
            verify_forward(model, type(model).__name__)
            model.runs_in_rows = runs_in_rows(model)
        if not model.runs_in_rows:
            model.set_attn_implementation(ours)
        yield
    finally:
        model.set_attn_implementation(own)


def frozen_of(model: Any, reference: Any | None, *, moves: bool) -> Any:
    """Return the reference of a run: the given one, or a copy of the model; a copy of the given one where it moves."""
    if reference is None:
        return copy.deepcopy(model)
    return copy.deepcopy(reference) if moves else reference
