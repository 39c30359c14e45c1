"""Train a model on its own samples: GRPO and others on prompts and rewards in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.algorithms.padded import entry
from posttrain.api.given import prompts_given, refuse_learned, terms_given
from posttrain.api.model import Messages, check_room, device_of, frozen_of, our_attention, own_model, text_of
from posttrain.api.output import run_loop, save
from posttrain.errors import ParamsError
from posttrain.models.device import Runtime
from posttrain.models.files.store import scorer_of
from posttrain.models.master_weights import computing, placed
from posttrain.online.collect import PolicyGroups
from posttrain.online.config import CONFIGS, OnlineConfig
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.run import Loaded, rewards_of, training_run
from posttrain.rewards.canaries import check_canaries
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rollout import Prompt
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Sampler
from posttrain.settings.params import check
from posttrain.text.chat import ChatText
from posttrain.train.callback import NoWatch
from posttrain.train.model_set import ModelSet

NAME = "train_online"
FIXED = {
    "adapter": "Give a model of peft",
    "compile": "It is not read here",
    "corpus": "It is a table of a pipeline",
    "data": "Give `prompts`",
    "device": "The model's device is used",
    "limits.memory": "Memory is not estimated here",
    "processes": "Use a pipeline (docs/processes.md)",
    "reward": "Give `reward`",
    "reward_model": "Write a reward that calls it",
    "rollout.engine": "Give `sampler`",
    "rollout.engine_args": "Give `sampler`",
    "rollout.engine_servers": "Give `sampler`",
    "save_dtype": "The model is saved in its own dtype",
    "seed": "Give `seed`, which seeds all of the run",
    "shards": "Use a pipeline (docs/processes.md)",
    "start": "Give `model`",
    "watch": "Use a pipeline (docs/watching.md)",
}
"""Settings of online.runs that have no effect here, and what to do."""


def train_online(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | Messages | Mapping[str, Any]],
    reward: Any,
    algorithm: str = "grpo",
    *,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    reference: Any | None = None,
    sampler: Sampler | None = None,
    output: str | Path | None = None,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> list[dict[str, float]]:
    """Train the model in place on its own samples (grpo, ppo, rloo, online_dpo, ...); returns each step's metrics.

    prompts: strings, lists of messages, or rows with `prompt`, and `answer` and `info` for the rewards. reward: a
    function of all rollouts of a round that returns a number for each (`rollout.text`, `rollout.prompt.answer`), a
    reward made with `posttrain.rewards.rule`, or a mapping of several: {"correct": 1.0, "brief": (function, 0.2)}, in
    which a reward of posttrain has its settings as in params.yaml. Functions run in this process without a time limit.

    settings: keys of online.runs (`posttrain params online`) but those of pipelines: {"rollout": {"rounds": 20}, "kl":
    "none", "optimizer": {"lr": 1e-5}}. reference: the frozen model of the KL; by default a copy of the model as it is.
    sampler: by default the built-in decoder (posttrain.sampling.sampler.Sampler).
    output: a folder for checkpoints, metrics.csv, rollouts/ and model/, which `load_model` reads; a call with the same
    arguments resumes a killed one. on_step: is called with the number of each step and its metrics.
    """
    given, model = model, own_model(model)
    params = _params(algorithm, reward, settings, seed).model_copy(update={"device": device_of(model)})
    text, runtime = text_of(model, tokenizer, params.date, params.template), params.runtime()
    asked = scorable_prompts(params.terms, prompts_given(text, prompts), "prompts")
    rollout, needs, lengths = params.rollout, params.needs, [prompt.ids for prompt in asked]
    check_room(text, lengths, rollout.prompts * rollout.group_size, rollout.sampling, "settings.rollout")
    start = frozen_of(model, reference, moves=bool(params.renew_reference)) if "ref_logp" in needs else reference
    frozen = model if start is None else start
    critic = _critic(model, runtime) if "value" in needs else None
    with our_attention(model), our_attention(frozen), computing(model, runtime), computing(frozen, runtime):
        old = copy.deepcopy(model) if "kl_old" in needs else None
        models = ModelSet(
            model, runtime, start, critic, old,
            temperature=rollout.sampling.temperature, micro_tokens=params.micro_tokens,
        )  # fmt: skip
        loaded = Loaded(text, asked, models, [])
        groups = PolicyGroups(
            sampler or LocalSampler(model, text.stops, runtime), text, models, rollout, seed=seed, name=NAME,
            mixture=params.mixture_share, opponents=params.has_opponents, sampling=params.sampling,
        )  # fmt: skip
        rewards, monitor = rewards_of(NAME, params, loaded), params.monitor(NAME)
        check_canaries(rewards, asked[: params.canaries], NAME)
        rewards.load(asked)
        log = None if output is None else params.rollout_log(NAME, text, max(map(len, lengths)))
        run = training_run(NAME, params, loaded, groups, rewards, monitor, log)
        run = replace(run, on_step=on_step, watch=_Patience(monitor))
        asks = _read_and_scored(text, asked, params)
        history = run_loop(run, output, [algorithm, settings, *asks, reference, str(type(sampler))])
        monitor.close()
        if log is not None and output is not None:
            log.finish(Path(output, "rollouts"), history)
    save(given, tokenizer, output)
    return history


class _Patience(NoWatch):
    """Ends the loop when the monitor's patience has ended."""

    def __init__(self, monitor: RewardMonitor) -> None:
        self._monitor = monitor
        monitor.raises = False  # the metrics of a run that ends early are worth more than an error

    @property
    def ended(self) -> bool:  # type: ignore[override]
        """Whether the run has to end."""
        return self._monitor.ended


def _read_and_scored(text: ChatText, prompts: Sequence[Prompt], params: OnlineConfig) -> list[Any]:
    """Return what decides the tokens and the rewards of a run."""
    rewards = {name: term.reward for name, term in params.terms.items()}
    return [repr(prompts), text.tokenizer.get_chat_template(), text.stops.tokens, rewards]


def _critic(model: Any, runtime: Runtime) -> Any:
    """Return a scalar head on a copy of the model, which is not rounded yet."""
    with our_attention(model):
        return placed(scorer_of(copy.deepcopy(model), type(model).__name__), runtime)


def _params(algorithm: str, reward: Any, settings: Mapping[str, Any] | None, seed: int) -> OnlineConfig:
    """Return the settings of the run, as those of a run of params.yaml are read."""
    given = dict(settings or {})
    inner = [f"{key}.{name}" for key, part in given.items() if isinstance(part, Mapping) for name in part]
    if fixed := next((key for key in [*given, *inner] if key in FIXED), None):
        raise ParamsError(what="this setting belongs to a pipeline", where=f"settings.{fixed}", fix=FIXED[fixed])
    found = entry(CONFIGS, algorithm, "algorithm")
    own: dict[str, Any] = {"algorithm": algorithm, "reward": terms_given(reward), "seed": seed, **given}
    params: OnlineConfig = check(found.model, found.row.merged(own), where="settings", file="arguments")
    refuse_learned(params.terms)
    if getattr(params, "ptx", 0):
        what, fix = "ptx learns pretraining text, which a call does not take", "Use a pipeline (docs/algorithms.md)"
        raise ParamsError(what=what, where="settings.ptx", fix=fix)
    return params
