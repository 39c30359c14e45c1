"""Load a transformers model and sample from it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor

from posttrain.api.argument_checks import model_folder, refuse_no_rows
from posttrain.api.own_model import Messages, device_of, our_attention, own_model, text_of, turns_of
from posttrain.data.shown import short_repr
from posttrain.errors import DataError, ParamsError
from posttrain.formulas.ragged import to_padded
from posttrain.models.device import Runtime
from posttrain.models.files.store import load_policy, load_stop_tokens, load_tokenizer
from posttrain.models.forward.forward import runs_in_rows
from posttrain.models.master_weights import computing
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Request, SamplingParams, check_capacity
from posttrain.settings.params import check
from posttrain.text.chat import ChatText


def load_model(path: str | Path) -> tuple[Any, Any]:
    """Return (model, tokenizer) from a folder in the format of transformers.

    The model has float32 weights. Every tensor is checked. Only safetensors files are read, and no code in the folder
    is run. An adapter is merged into its base. You can also use a model from `AutoModelForCausalLM` if its weights are
    float32.
    """
    path = model_folder(path, "path")
    model, tokenizer = load_policy(path), load_tokenizer(path)
    model.runs_in_rows = runs_in_rows(model)
    model.set_attn_implementation("eager")
    ends = load_stop_tokens(path)
    if ends:
        model.generation_config.eos_token_id = list(ends)
    return model, tokenizer


@dataclass(frozen=True)
class Samples:
    """Completions, padded on the right. The completions of one prompt are adjacent."""

    ids: Tensor
    """[B, T] tokens of prompt and completion."""
    mask: Tensor
    """[B, T] true at the tokens of the completion."""
    logp: Tensor
    """[B, T] log-probs of the completion's tokens at the sampling temperature; 0 elsewhere."""
    texts: list[str]
    """B completions as text, without the end token."""
    truncated: Tensor
    """[B] true if the completion has no end token."""


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
    """Draw n completions of each prompt. A prompt is a string (one user turn) or a list of messages.

    A single prompt needs no list. The same seed gives the same completions of a prompt, whatever the other prompts are.
    Completions of a repeated prompt differ. stop: strings that end a completion.
    """
    values = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k, "stop": list(stop)}
    params = check(_Drawn, {**values, "n": n}, where="sample", file="arguments")
    model = own_model(model)
    text = text_of(model, tokenizer)
    asked = text.prompts([_turns(prompt, number) for number, prompt in enumerate(_as_list(prompts))])
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

    n: int = Field(1, ge=1, description="completions per prompt")


def _turns(prompt: Any, number: int) -> Messages:
    """Return a prompt as turns. Reject anything else than text or messages, e.g. a row."""
    turns: Any = turns_of(prompt, "user")
    if isinstance(turns, Sequence) and all(isinstance(one, Mapping) and {"role", "content"} <= {*one} for one in turns):
        return turns
    fix = 'Give a text or messages. For rows, give [row["prompt"] for row in rows]'
    raise DataError(what=f"{short_repr(prompt)} is not a prompt", where=f"prompts[{number}]", fix=fix)


def _requests(prompts: Sequence[Sequence[int]], n: int) -> list[Request]:
    """Return n requests of each prompt.

    A request's seed depends on the prompt's tokens and repetitions, not on its place.
    """
    drawn: Counter[str] = Counter()
    requests = []
    for ids in prompts:
        name = hashlib.sha256(repr(list(ids)).encode()).hexdigest()
        requests += [Request(ids, f"{name}:{drawn[name] + number}") for number in range(n)]
        drawn[name] += n
    return requests


def check_room(
    text: ChatText, prompts: Sequence[Sequence[int]], count: int, params: SamplingParams, where: str
) -> None:
    """Reject completions that do not fit into memory or the model's context."""
    try:
        check_capacity(text.context, prompts, count, params, where)
    except ParamsError as error:
        raise ParamsError(what=error.what, where=where, fix=error.fix) from error


def _as_list(prompts: str | Messages | Sequence[str | Messages]) -> Sequence[str | Messages]:
    """Return several prompts as they are; wrap a single prompt (a string or messages) in a list."""
    if isinstance(prompts, str):
        return [prompts]
    refuse_no_rows(prompts, "prompts", "prompts")
    if all(isinstance(prompt, Mapping) for prompt in prompts):
        return [cast("Messages", prompts)]
    return cast("Sequence[str | Messages]", prompts)
