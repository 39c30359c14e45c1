"""The training loop and the sampler as Python functions, on a model and a tokenizer of transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from posttrain.algorithms.objective import Objective
from posttrain.algorithms.padded import settings_of
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.sampled_config import SAMPLED_ROWS
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.errors import DataError, ModelError, ParamsError
from posttrain.formulas.ragged import to_padded
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy, load_stop_tokens, load_tokenizer
from posttrain.models.files.text import context_of
from posttrain.models.forward.forward import register, runs_in_rows
from posttrain.models.master_weights import computing, is_trained_in_bf16
from posttrain.models.self_check import verify_forward
from posttrain.params.params import check
from posttrain.rollout import TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Request, SamplingParams
from posttrain.tables.layouts import convert
from posttrain.tables.turns import RowError
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import BatchSource, ChunkedSource, EpochSource, Example, KtoSource
from posttrain.train.model_set import ModelSet
from posttrain.train.routing import RouterParams, routers_of
from posttrain.train.step import AdamW, OptimizerParams, StepClosure
from posttrain.train.tokenize_tables import conversation

__all__ = ["Samples", "load_model", "sample", "train_model"]

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

    The same seed gives the same completions, whatever the other prompts are. stop: strings that end a completion.
    """
    values = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k, "stop": list(stop)}
    params = check(SamplingParams, values, where="sample", file="arguments")
    model = _own(model)
    text = _text(model, tokenizer)
    asked = text.prompts([_turns(prompt, "user") for prompt in _as_list(prompts)])
    requests = [Request(ids, f"{place}:{nth}") for place, ids in enumerate(asked) for nth in range(n)]
    runtime = _runtime(model)
    with _our_attention(model), computing(model, runtime):
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


def train_model(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    algorithm: str = "sft",
    *,
    epochs: float = 1.0,
    batch_size: int = 16,
    seed: int = 0,
    reference: Any | None = None,
    settings: Mapping[str, Any] | None = None,
    optimizer: Mapping[str, Any] | None = None,
    micro_tokens: int = 16_384,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> list[dict[str, float]]:
    """Train the model in place on rows in memory; returns the metrics of each step. Of a peft model: its adapters.

    algorithm: sft, or a preference algorithm (dpo, simpo, kto, ...: docs/algorithms.md), with `settings` of it. rows of
    sft: `messages`, or `prompt` and `completion`; of pairs: `prompt`, `chosen`, `rejected`; of kto and bco: `prompt`,
    `completion`, `label`. A turn is a string or a list of messages.

    reference: the frozen model that preference algorithms compare with; by default a copy of the model as it is.
    optimizer: e.g. `{"lr": 1e-5}` (docs: `posttrain params sft`). micro_tokens: most tokens in one forward
    pass. on_step: is called with the number of each step and its metrics. A stage of the pipeline also checkpoints.
    """
    model = _own(model)
    objective: Objective = _objective(algorithm, settings)
    params = check(OptimizerParams, dict(optimizer or {}), where="optimizer", file="arguments")
    examples = _examples(_text(model, tokenizer), rows, objective)
    if reference is None and "ref_logp" in objective.needs:
        reference = copy.deepcopy(model)
    runtime, frozen = _runtime(model), model if reference is None else reference
    state, history, was_training = objective.initial_state(), list[dict[str, float]](), model.training
    with _our_attention(model), _our_attention(frozen), computing(model, runtime), computing(frozen, runtime):
        models = ModelSet(model, runtime, reference=reference, micro_tokens=micro_tokens)
        source = _source(objective, examples, models, batch_size, epochs, seed)
        update = AdamW({"policy": (model, params.lr)}, params, source.steps)
        routers = routers_of(model, RouterParams(), "train_model")
        for step in range(source.steps):
            batch = models.add_scored_columns(source.batch(step), objective.needs)
            prepared = objective.prepare(batch.columns, state)
            state = prepared.state
            model.train()
            closure = StepClosure(objective, models, batch.with_prepared(prepared.step), routers, prepared.state)
            metrics = update.step(closure, step / source.steps)
            history.append({**metrics, **prepared.metrics})
            if on_step:
                on_step(step, history[-1])
    model.train(was_training)
    return history


def _own(model: Any) -> Any:
    """Return the model itself, where it is given in peft's wrapper: its layers keep their adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _objective(algorithm: str, settings: Mapping[str, Any] | None) -> Objective:
    if algorithm == "sft":
        return LikelihoodObjective(check(LikelihoodConfig, dict(settings or {}), where="sft", file="settings"))
    if algorithm not in PREFERENCE_ROWS and (algorithm in POLICY_ROWS or algorithm in SAMPLED_ROWS):
        what = f"'{algorithm}' learns from its own samples, and train_model from rows in memory"
        fix = "Use online.runs in params.yaml (docs/README.md), or posttrain.losses.policy_loss in a loop of your own"
        raise ParamsError(what=what, where="algorithm", fix=fix)
    return PreferenceObjective(settings_of(PREFERENCE_ROWS, algorithm, settings))


def _source(
    objective: Objective, examples: list[Example], models: ModelSet, batch_size: int, epochs: float, seed: int
) -> BatchSource:
    if isinstance(objective, PreferenceObjective) and objective.knobs.parts > 1:
        return ChunkedSource(examples, batch_size, epochs, seed, parts=objective.knobs.parts, models=models)
    mismatched = isinstance(objective, PreferenceObjective) and objective.mismatched
    return (KtoSource if mismatched else EpochSource)(examples, batch_size, epochs, seed)


def _examples(text: ChatText, rows: Sequence[Mapping[str, Any]], objective: Objective) -> list[Example]:
    if not rows:
        raise DataError(what="there are no rows", where="rows", fix="Give at least one")
    examples = []
    for number, row in enumerate(rows):
        try:
            examples.append(_example(text, row, objective))
        except RowError as error:
            fix = "help(posttrain.train_model) lists the columns"
            raise DataError(what=str(error), where=f"rows[{number}]", fix=fix) from error
        longest = max(map(len, examples[-1].rows))
        if text.context is not None and longest > text.context:
            what = f"{longest} tokens are longer than the model's context of {text.context}"
            raise DataError(what=what, where=f"rows[{number}]", fix="Shorten it or leave it out")
    return examples


def _example(text: ChatText, row: Mapping[str, Any], objective: Objective) -> Example:
    """Return a row as training has it; it is read as a row of a file is."""
    if isinstance(objective, PreferenceObjective) and objective.knobs.paired:
        read = convert(row, "pairs")
        return Example([_answer(text, read, "chosen"), _answer(text, read, "rejected")], {"side": [1.0, -1.0]})
    if isinstance(objective, PreferenceObjective):
        read = convert(row, "feedback")
        return Example([_answer(text, read, "completion")], {"label": [1.0 if read["label"] else -1.0]})
    read = convert(row, "chat")
    whole = conversation({**read, "id": "", "messages": _messages(read["messages"])}, "rows")
    return Example(text.conversations([whole], "all" if row.get("messages") is not None else "last"))


def _answer(text: ChatText, read: Mapping[str, Any], column: str) -> TokenRow:
    return text.exchange(_messages(read["prompt"]), _messages(read[column]))


def _messages(turns: Sequence[tuple[str, str]]) -> Messages:
    return [{"role": role, "content": content} for role, content in turns]


def _turns(turns: str | Messages, role: str) -> Messages:
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


def _text(model: Any, tokenizer: Any) -> ChatText:
    ends = getattr(model.generation_config, "eos_token_id", None)
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return ChatText(tokenizer, "tokenizer", ends, context=context_of(model.config))


def _runtime(model: Any) -> Runtime:
    """Return the device that the model is on; it changes no setting of torch."""
    threads = min(torch.get_num_threads(), 256)
    return Runtime(DeviceParams(device=model.device.type, deterministic=False, threads=threads))


@contextmanager
def _our_attention(model: Any) -> Iterator[None]:
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
