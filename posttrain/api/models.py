"""The models of a training run, from a folder or from the caller."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from posttrain.api.argument_checks import model_folder
from posttrain.api.own_model import device_of, frozen_of, our_attention, own_model, text_of
from posttrain.distributed import world
from posttrain.errors import DataError, ParamsError
from posttrain.models.device import Runtime
from posttrain.models.files.loading import WHOLE_TEXT
from posttrain.models.files.store import scorer_of
from posttrain.models.files.text import load_text
from posttrain.models.master_weights import computing, placed
from posttrain.text.chat import ChatText
from posttrain.train import randomness
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet, Teacher

SHIFT: Final = "reward_shift"
"""The key in a reward model's config for the mean score of demonstrations."""
MODEL_NAMES: Final = {
    "kl_old": "the old policy", "ref_logp": "a reference", "score": "a head that scores", "value": "a critic",
}  # fmt: skip
"""Column that an objective needs -> the model that computes it."""
MODEL_COLUMNS: Final = frozenset(MODEL_NAMES)
C = TypeVar("C", bound=TrainingParams)


def load_models(folder: str | Path, config: TrainingParams, *, teachers: Sequence[Teacher] = ()) -> ModelSet:
    """Return the models for a training run that starts from a model folder.

    They are the policy and the other models that the objective in `config` needs: a reference, a critic, the old
    policy. `config` also sets the adapter, the device, the precision, and how several processes divide the models. To
    use `processes` N, start the script with `torchrun --nproc-per-node N`.

    Example: `models = load_models("models/sft/main", OnlineConfig.preset("grpo", reward=reward))`
    """
    given: Any = config
    if not isinstance(given, TrainingParams):
        what = f"it is {'None' if given is None else f'of the type {type(given).__name__}'}, not a config"
        fix = 'Give the settings of the training, e.g. posttrain.SftConfig() or posttrain.OnlineConfig.preset("grpo")'
        raise ParamsError(what=what, where="config", fix=fix)
    start = model_folder(folder, "folder")
    _meet(config)
    return models_from(start, config, teachers)


def models_from(folder: Path, config: TrainingParams, teachers: Sequence[Teacher] = ()) -> ModelSet:
    """Return the same models in a process that is already connected to the others."""
    models = ModelSet.load(
        config.runtime(), folder, config.needs, config, temperature=config.logp_temperature, teachers=teachers
    )
    given = {part.name: getattr(models, part.name) for part in fields(models)}
    return LoadedModels(**given, adapter=config.adapter, needs=config.needs)


@dataclass(frozen=True)
class LoadedModels(ModelSet):
    """Models loaded from a folder, and the settings they were loaded with."""

    adapter: Any = None
    needs: frozenset[str] = frozenset()

    def check(self, config: TrainingParams) -> None:
        """Reject settings that these models do not support."""
        lacking = sorted((config.needs - self.needs) & MODEL_COLUMNS)
        if config.adapter == self.adapter and not lacking and world.count() == config.processes:
            return
        what = f"these models were loaded with adapter {self.adapter.type}, but the settings have {config.adapter.type}"
        if lacking:
            what = (
                f"the settings need models that are not loaded: {', '.join(MODEL_NAMES[column] for column in lacking)}"
            )
        fix = "Load them with the same settings: posttrain.load_models(folder, config)"
        raise ParamsError(what=what, where="model", fix=fix)


def _meet(config: TrainingParams) -> None:
    """Connect to the other processes that torchrun started."""
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if world.count() == 1 and size == config.processes > 1:
        local = int(os.environ.get("LOCAL_RANK") or 0)
        if (device := config.runtime().device).type == "cuda":
            torch.cuda.set_device(local)
        world.connect(int(os.environ["RANK"]), size, "env://", device)
    if world.count() != config.processes:
        what = f"processes = {config.processes}, but {max(size, world.count())} processes run this script"
        fix = f"Start it with torchrun --nproc-per-node {config.processes}"
        raise ParamsError(what=what, where="config", fix=fix)


def for_model(config: C, model: Any) -> C:
    """Return the settings with the device of the caller's model. Reject options that only apply to loading."""
    if isinstance(model, LoadedModels):
        model.check(config)
    if isinstance(model, ModelSet):
        return config
    if not isinstance(model, torch.nn.Module):
        what, fix = (
            f"it is a {type(model).__name__}",
            "Give a transformers model, or posttrain.load_models(folder, config)",
        )
        raise ParamsError(what=what, where="model", fix=fix)
    rollout: Any = getattr(config, "rollout", None)
    loading = {
        "adapter": config.adapter.type != "none",
        "processes": config.processes > 1,
        "shards": config.shards is not None,
        "save_dtype": config.save_dtype is not None,
        "rollout.engine": rollout is not None and rollout.engine != "builtin",
    }
    if named := [name for name, used in loading.items() if used]:
        what = "it controls how models are loaded, but this model is already loaded"
        fix = "Load the models with posttrain.load_models(folder, config), and pass the result"
        raise ParamsError(what=what, where=f"settings.{named[0]}", fix=fix)
    return config.model_copy(update={"device": device_of(own_model(model))})


@contextmanager
def opened(
    model: Any, tokenizer: Any, config: TrainingParams, reference: Any | None
) -> Iterator[tuple[ModelSet, ChatText]]:
    """Yield the models during a training run. Afterwards, only the weights of the caller's model have changed.

    `model`: models from `load_models`, complete and with their text or None; or a transformers model. Its reference,
    critic and old policy are copies of it, made if the objective needs them.
    """
    if tokenizer is None and not isinstance(model, ModelSet):
        raise ParamsError(what="a transformers model needs its tokenizer", where="tokenizer", fix="Give it")
    if isinstance(model, ModelSet) and not isinstance(tokenizer, ChatText | None):
        what, fix = "models from load_models already have a tokenizer", "Give None"
        raise ParamsError(what=what, where="tokenizer", fix=fix)
    device = (model.runtime if isinstance(model, ModelSet) else config.runtime()).device
    before = randomness.states(device)
    policy = model.policy if isinstance(model, ModelSet) else own_model(model)
    was_training = policy.training
    try:
        if isinstance(model, ModelSet):
            yield model, tokenizer or load_text(model.folder, config.date, config.template)
            return
        with _around(policy, config, reference) as models:
            yield models, text_of(policy, tokenizer, config.date, config.template)
    finally:
        randomness.restore(before, device)
        policy.train(was_training)


@contextmanager
def _around(policy: Any, config: TrainingParams, reference: Any | None) -> Iterator[ModelSet]:
    """Yield the models of a run whose policy is the caller's own model."""
    runtime, needs = config.runtime(), config.needs
    start = frozen_of(policy, reference, moves=config.reference_moves) if "ref_logp" in needs else reference
    frozen = policy if start is None else start
    critic = _critic(policy, runtime) if "value" in needs else None
    with our_attention(policy), our_attention(frozen), computing(policy, runtime), computing(frozen, runtime):
        old = copy.deepcopy(policy) if "kl_old" in needs else None
        yield ModelSet(
            policy, runtime, start, critic, old, temperature=config.logp_temperature, micro_tokens=config.micro_tokens
        )


def _critic(model: Any, runtime: Runtime) -> Any:
    """Return a copy of the model with a scalar head. Call it before the model's weights are rounded."""
    with our_attention(model):
        return placed(scorer_of(copy.deepcopy(model), type(model).__name__), runtime)


def forget_scale(model: Any) -> None:
    """Remove the record of a reward model's training texts and its mean score, because training changes both."""
    for key in (SHIFT, WHOLE_TEXT):
        vars(model.config).pop(key, None)


def check_watched(watch: Any, heldout: Sequence[Any]) -> None:
    """Reject held-out rows without a watch, a watch without rows, and a single row (an interval needs two)."""
    if bool(len(heldout)) != (watch is not None):
        what = (
            "they are only used with the setting `watch`"
            if len(heldout)
            else "watch measures held-out rows, but none are given"
        )
        raise DataError(what=what, where="heldout", fix="Give both `heldout` and the setting `watch`, or neither")
    if len(heldout) == 1:
        raise DataError(what="an interval needs at least 2 rows", where="heldout", fix="Give at least 2")
