"""Train a model on its own samples in memory: GRPO and other algorithms with prompts and rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from posttrain.api.argument_checks import check_config, model_folder
from posttrain.api.given import prompts_given
from posttrain.api.models import check_watched, for_model, opened
from posttrain.api.output import known_by, places, save
from posttrain.api.own_model import Messages
from posttrain.data.shown import short_repr
from posttrain.errors import DataError, ParamsError
from posttrain.online.config import OnlineConfig, WatchParams
from posttrain.online.rollout_log import SampleLog
from posttrain.online.run import OnlineRun, run_online
from posttrain.rewards.catalog import refuse_learned, refuse_unread_model
from posttrain.rewards.given import terms_given
from posttrain.rewards.reward import WeightedReward
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rollout import Prompt
from posttrain.sampling.sampler import Sampler
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from posttrain.train.checkpoint import CheckpointStore
from posttrain.train.metrics import Recorder
from posttrain.train.model_set import ModelSet, Teacher
from posttrain.train.tokenize_tables import windows
from posttrain.train.trained import Trained

NAME = "train_online"
ARGUMENTS = {
    "algorithm": "algorithm", "data": "prompts", "reward": "reward", "reward_model": "reward_model", "seed": "seed",
    "start": "model",
}  # fmt: skip
"""Keys of a run in params.yaml that are arguments of the function."""


def train_online(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | Messages | Mapping[str, Any] | Prompt],
    reward: Any = None,
    algorithm: str = "grpo",
    *,
    config: OnlineConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    reference: Any | None = None,
    reward_model: str | Path | None = None,
    corpus: Sequence[str] | Sequence[Example] = (),
    heldout: Sequence[str | Messages | Mapping[str, Any] | Prompt] = (),
    sampler: Sampler | None = None,
    output: str | Path | None = None,
    checkpoints: CheckpointStore | None = None,
    recorder: Recorder | None = None,
    rollouts: SampleLog | None = None,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
    name: str = NAME,
) -> Trained:
    """Train the model in place on its own samples (grpo, ppo, rloo, online_dpo, ...). Return the metrics of each step.

    model, tokenizer: from transformers; or models from `load_models`, and None, which adapters, engines and several
    processes need. prompts: strings, lists of messages, or rows with `prompt`, and with `answer` and `info` for the
    rewards. reward: a function of all rollouts of a round that returns a number for each (`rollout.text`,
    `rollout.prompt.answer`); a reward made with `posttrain.rewards.rule`; or a mapping of several: {"correct": 1.0,
    "brief": (function, 0.2)}. In a mapping, posttrain's own rewards take the same settings as in params.yaml. Functions
    run in this process without a time limit. reward_model: the folder of the model behind the reward `model`.

    settings: keys of online.runs (`posttrain params online`): {"rollout": {"rounds": 20}, "kl": "none", "optimizer":
    {"lr": 1e-5}}. config: all settings as one typed object, instead of algorithm, reward, settings and seed. reference:
    the frozen model for the KL; the default is a copy of the initial model. corpus: texts for `ptx`, which are trained
    in addition to the samples. heldout: prompts for the evaluations of the setting `watch` during training. sampler:
    the default is the engine in the settings, which is the built-in decoder by default.

    output: a folder for checkpoints, metrics.csv, rollouts/ and model/. `load_model` reads model/. A call with the same
    arguments resumes an interrupted one. For a PEFT model, model/ contains the whole model with the adapter merged, and
    adapter/ the adapter in PEFT's own format. checkpoints, recorder, rollouts: your own stores instead. on_step: a
    function that is called with each step's number and metrics. name: the run's name in messages and rollouts.
    """
    if config is None:
        params = _params(algorithm, reward, settings, seed, heldout)
    else:
        given = {"algorithm": (algorithm, "grpo"), "reward": (reward, None), "settings": (settings, None)}
        check_config(config, OnlineConfig, "train_online", {**given, "seed": (seed, 0)})
        params = config
    _check_corpus(params, corpus)
    named = [algorithm, settings]
    return online_call(
        model, tokenizer, prompts, params, named, reference=reference, reward_model=reward_model, heldout=heldout,
        sampler=sampler, output=output, checkpoints=checkpoints, recorder=recorder, rollouts=rollouts, on_step=on_step,
        name=name,
        patient=config is None, examples=lambda text: _windows(text, corpus, params),
    )  # fmt: skip


def online_call(
    model: Any, tokenizer: Any, prompts: Sequence[Any], params: OnlineConfig, given: Sequence[Any], *,
    reference: Any | None, reward_model: str | Path | None, heldout: Sequence[Any], sampler: Sampler | None,
    output: str | Path | None, checkpoints: CheckpointStore | None, recorder: Recorder | None,
    rollouts: SampleLog | None,
    on_step: Callable[[int, dict[str, float]], None] | None, name: str, patient: bool,
    teach: Callable[[ChatText, ModelSet, Sequence[Prompt]], Sequence[Teacher]] = lambda text, models, asked: (),  # noqa: ARG005
    examples: Callable[[ChatText], Sequence[Example]] = lambda text: (),  # noqa: ARG005
) -> Trained:  # fmt: skip
    """Train with typed settings. `given`: arguments that, with the settings, identify the checkpoints of an output.

    `teach`: makes the teachers of a student. `examples`: makes the rows that are trained in addition to the samples.
    """
    params, scorer = for_model(params, model), _scorer(params, reward_model)
    check_watched(params.watch, heldout)
    with opened(model, tokenizer, params, reference) as (models, text):
        asked = _scorable(text, prompts, params.learned_from, "prompts")
        models = replace(models, teachers=teach(text, models, asked))
        seen: list[Prompt] = []
        if (watch := params.watch) is not None:
            seen = _scorable(text, heldout, watch.reward, "heldout")[: watch.prompts]
        shown = examples(text)
        run = OnlineRun(name, params, text, asked, models, seen, scorer, shown)
        arguments = [*given, *_read_and_scored(text, asked, params), reference, str(type(sampler)), known_by(scorer)]
        arguments += [repr([(row.prompt, row.rest) for example in shown for row in example.rows])] if shown else []
        store, log = places(name, params, models, output, arguments, checkpoints, recorder)
        trained = run_online(run, store, log, rollouts=rollouts, sampler=sampler, on_step=on_step, patient=patient)
    save(trained, model, tokenizer, output)
    return trained


def _scorer(params: OnlineConfig, reward_model: str | Path | None) -> Path | None:
    """Return the folder of the reward model.

    Reject a reward model that no reward uses, and a reward `model` without one.
    """
    terms = {**({} if params.watch is None else params.watch.terms), **params.terms}
    if reward_model is None:
        refuse_learned(terms, "Give reward_model: the folder of a reward model")
        return None
    refuse_unread_model(terms)
    return model_folder(reward_model, "reward_model")


def _check_corpus(params: OnlineConfig, corpus: Sequence[str] | Sequence[Example]) -> None:
    """Reject pretraining text without `ptx`, and `ptx` without text."""
    if bool(getattr(params, "ptx", 0)) == bool(len(corpus)):
        return
    what = (
        "ptx trains on pretraining text, but none is given"
        if not len(corpus)
        else "only ptx trains on pretraining text"
    )
    raise ParamsError(what=what, where="corpus", fix="Give both `corpus` and the setting `ptx`, or neither")


def _windows(text: ChatText, corpus: Sequence[str] | Sequence[Example], params: OnlineConfig) -> Sequence[Example]:
    """Return pretraining text in windows for `ptx`."""
    if isinstance(corpus, str):
        raise DataError(what="this is one string, not a list", where="corpus", fix=f"Write [{short_repr(corpus)}]")
    if not len(corpus) or isinstance(corpus[0], Example):
        return corpus  # type: ignore[return-value]
    if odd := [number for number, one in enumerate(corpus) if not isinstance(one, str) or not one.strip()]:
        raise DataError(what="it is not a text", where=f"corpus[{odd[0]}]", fix="Give strings")
    frame = pl.DataFrame({"id": [str(number) for number in range(len(corpus))], "text": list(corpus)})
    return windows(text, frame, params.text.window, "corpus")  # type: ignore[attr-defined]


def _scorable(text: ChatText, given: Sequence[Any], terms: Mapping[str, WeightedReward], argument: str) -> list[Prompt]:
    """Return the prompts that the rewards can judge. Encoded prompts are returned unchanged."""
    prompts = prompts_given(text, given, argument)
    if not terms or all(isinstance(prompt, Prompt) for prompt in given):
        return prompts
    return scorable_prompts(terms, prompts, argument)


def _read_and_scored(text: ChatText, prompts: Sequence[Prompt], params: OnlineConfig) -> list[Any]:
    """Return everything that decides the tokens and rewards of a run."""
    watched = {} if params.watch is None else params.watch.terms
    rewards = [{name: term.reward for name, term in terms.items()} for terms in (params.terms, watched)]
    return [repr(prompts), text.tokenizer.get_chat_template(), text.stops.tokens, rewards]


def _params(
    algorithm: str, reward: Any, settings: Mapping[str, Any] | None, seed: int, heldout: Sequence[Any]
) -> OnlineConfig:
    """Return the settings of the run, read like a run in params.yaml."""
    given = dict(settings or {})
    if twice := [key for key in ARGUMENTS if key in given]:
        what = "it is an argument of the function, not a setting"
        raise ParamsError(what=what, where=f"settings.{twice[0]}", fix=f"Give `{ARGUMENTS[twice[0]]}`")
    if reward is None:
        raise ParamsError(what="there is no reward", where="reward", fix="Give a function of rollouts, or a config")
    values: dict[str, Any] = {"reward": terms_given(reward), "seed": seed, **given}
    if heldout and "watch" not in given:
        values["watch"] = WatchParams(reward=terms_given(reward))
    return OnlineConfig.preset(algorithm, **values)
