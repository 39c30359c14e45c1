"""Train a model on the distributions of a teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.api.argument_checks import model_folder
from posttrain.api.model import load_model
from posttrain.api.models import check_config
from posttrain.api.online import trained_on_samples
from posttrain.api.own_model import Messages, device_of, our_attention, own_model
from posttrain.api.rows import examples_of
from posttrain.errors import ParamsError
from posttrain.models.device import Runtime
from posttrain.models.master_weights import computing
from posttrain.online.distill import StudentConfig
from posttrain.rewards.given import terms_given
from posttrain.rollout import Prompt
from posttrain.sampling.sampler import Sampler
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from posttrain.train.checkpoint import CheckpointStore
from posttrain.train.metrics import Recorder
from posttrain.train.model_set import Teacher
from posttrain.train.trained import Trained

NAME = "distill"


def distill(
    model: Any,
    tokenizer: Any,
    teacher: Any,
    prompts: Sequence[str | Messages | Mapping[str, Any] | Prompt],
    algorithm: str = "reverse_kl",
    *,
    reward: Any = None,
    config: StudentConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    demonstrations: Sequence[Mapping[str, Any]] = (),
    reference: Any | None = None,
    heldout: Sequence[str | Messages | Mapping[str, Any] | Prompt] = (),
    sampler: Sampler | None = None,
    output: str | Path | None = None,
    checkpoints: CheckpointStore | None = None,
    recorder: Recorder | None = None,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
    name: str = NAME,
) -> Trained:
    """Train the model in place on a teacher's distributions; returns each step's metrics, `teacher_kl` among them.

    teacher: a model of transformers with the same tokenizer, or the folder of one. algorithm: reverse_kl (own samples),
    gkd (half of the steps on own samples), distill (demonstrations alone), or a policy algorithm, which learns from its
    rewards and, by `teacher_coef`, from the teacher. demonstrations: rows of sft, for the algorithms that learn given
    answers. reward: what is watched; a policy algorithm learns from it. Other arguments: as in `train_online`.

    Example: `distill(student, tokenizer, "models/large", prompts, settings={"rollout": {"rounds": 20}})`
    """
    if config is None:
        own = {**(settings or {}), "seed": seed, **({} if reward is None else {"reward": terms_given(reward)})}
        config = StudentConfig.preset(algorithm, **own)
    else:
        given = {"algorithm": (algorithm, "reverse_kl"), "reward": (reward, None), "settings": (settings, None)}
        check_config(config, StudentConfig, "distill", {**given, "seed": (seed, 0)})
    if config.context is not None:
        what, fix = "a call does not give the teacher other prompts", "Use a pipeline (docs/algorithms.md)"
        raise ParamsError(what=what, where="settings.context", fix=fix)
    if (share := getattr(config, "own", 1.0)) < 1 and not demonstrations:
        what = f"own = {share} learns from given answers too, and there are none"
        raise ParamsError(what=what, where="demonstrations", fix="Give rows of sft, or set own: 1")
    asked = own_model(teacher if hasattr(teacher, "config") else load_model(model_folder(teacher, "teacher"))[0])
    _check_teacher(own_model(getattr(model, "policy", model)), asked)

    def examples(text: ChatText) -> Sequence[Example]:
        objective = LikelihoodObjective(LikelihoodConfig())
        return examples_of(text, demonstrations, objective, "demonstrations") if demonstrations else ()

    with ExitStack() as stack:
        stack.enter_context(our_attention(asked))
        stack.enter_context(computing(asked, Runtime(device_of(asked))))
        return trained_on_samples(
            model, tokenizer, prompts, config, [algorithm, settings, asked], reference=reference, reward_model=None,
            heldout=heldout, sampler=sampler, output=output, checkpoints=checkpoints, recorder=recorder,
            on_step=on_step, name=name, patient=True, teachers=[Teacher(asked, config.formula())], examples=examples,
        )  # fmt: skip


def _check_teacher(student: Any, teacher: Any) -> None:
    """Refuse a teacher whose distributions are over other tokens."""
    sizes = [model.config.get_text_config().vocab_size for model in (student, teacher)]
    if sizes[0] != sizes[1]:
        what = f"it has {sizes[1]} tokens and the model has {sizes[0]}, so their distributions cannot be compared"
        raise ParamsError(what=what, where="teacher", fix="Sample it instead, and train on the samples with sft")
