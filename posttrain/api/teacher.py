"""Train a model on the distributions of teachers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.api.argument_checks import check_config, model_folder
from posttrain.api.online import online_call
from posttrain.api.output import known_by
from posttrain.api.own_model import Messages, device_of, our_attention, own_model
from posttrain.api.rows import examples_of, questions_of
from posttrain.errors import ParamsError
from posttrain.models.device import Runtime
from posttrain.models.master_weights import computing
from posttrain.online.distill import StudentConfig
from posttrain.online.rollout_log import SampleLog
from posttrain.online.teachers import Student, teachers_of
from posttrain.rewards.given import terms_given
from posttrain.rollout import Prompt
from posttrain.sampling.sampler import Sampler
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from posttrain.train.checkpoint import CheckpointStore
from posttrain.train.metrics import Recorder
from posttrain.train.model_set import ModelSet, Teacher
from posttrain.train.trained import Trained

NAME = "distill"
TEACHER = "teacher"
"""The name of a teacher that is given without a name."""


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
    demonstrations: Sequence[Mapping[str, Any] | Example] = (),
    reference: Any | None = None,
    reward_model: str | Path | None = None,
    heldout: Sequence[str | Messages | Mapping[str, Any] | Prompt] = (),
    sampler: Sampler | None = None,
    output: str | Path | None = None,
    checkpoints: CheckpointStore | None = None,
    recorder: Recorder | None = None,
    rollouts: SampleLog | None = None,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
    name: str = NAME,
) -> Trained:
    """Train the model in place on its teachers' distributions. Return each step's metrics, including `teacher_kl`.

    teacher: a transformers model with the same tokenizer, or its folder; a mapping of names to several, with the
    setting `weights` for their weights; or None, if the setting `served` gives an endpoint or the models from
    `load_models` have teachers. algorithm: reverse_kl (own samples), gkd (half own samples), distill (demonstrations
    only), context_distill (only the teacher reads the setting `context`), or a policy algorithm, which also learns from
    the teacher with weight `teacher_coef`. demonstrations: rows as for sft. reward: only measured, except that a policy
    algorithm trains on it. Other arguments: as in `train_online`.

    Example: `distill(student, tokenizer, "models/large", prompts, settings={"rollout": {"rounds": 20}})`
    """
    given = {"algorithm": (algorithm, "reverse_kl"), "reward": (reward, None), "settings": (settings, None)}
    params = _config(config, algorithm, reward, settings, seed)
    check_config(params, StudentConfig, NAME, {} if config is None else {**given, "seed": (seed, 0)})
    if (share := getattr(params, "own", 1.0)) < 1 and not demonstrations:
        what = f"own = {share} also trains on given answers, but there are none"
        raise ParamsError(what=what, where="demonstrations", fix="Give sft rows, or set own: 1")
    named = _named(teacher, model, params)

    def teach(text: ChatText, models: ModelSet, asked: Sequence[Prompt]) -> Sequence[Teacher]:
        if models.teachers:
            return models.teachers
        questions = [] if params.context is None else questions_of(demonstrations)
        rows = models.policy.config.get_text_config().vocab_size
        return teachers_of(params, Student(text, rows, asked, questions), named, models.runtime)

    with _computing(named.values()):
        return online_call(
            model, tokenizer, prompts, params, [algorithm, settings, *map(known_by, named.values())],
            reference=reference, reward_model=reward_model, heldout=heldout, sampler=sampler, output=output,
            checkpoints=checkpoints, recorder=recorder, rollouts=rollouts, on_step=on_step, name=name,
            patient=config is None, teach=teach,
            examples=lambda text: _examples(text, demonstrations),
        )  # fmt: skip


def _examples(text: ChatText, demonstrations: Sequence[Mapping[str, Any] | Example]) -> Sequence[Example]:
    """Return rows of sft as examples; examples stay as they are."""
    if not demonstrations or isinstance(demonstrations[0], Example):
        return demonstrations  # type: ignore[return-value]
    return examples_of(text, demonstrations, LikelihoodObjective(LikelihoodConfig()), "demonstrations")


def _config(
    config: StudentConfig | None, algorithm: str, reward: Any, settings: Mapping[str, Any] | None, seed: int
) -> StudentConfig:
    """Return the settings of a call, read like those of a run."""
    if config is not None:
        return config
    values = {**(settings or {}), "seed": seed, **({} if reward is None else {"reward": terms_given(reward)})}
    return StudentConfig.preset(algorithm, **values)


def _named(teacher: Any, model: Any, config: StudentConfig) -> dict[str, Any]:
    """Return the teachers by name, as models or as paths of folders."""
    has_teachers = isinstance(model, ModelSet) and bool(model.teachers)
    if has_teachers and teacher is not None:
        what, fix = "the models from load_models already have teachers", "Give None"
        raise ParamsError(what=what, where="teacher", fix=fix)
    if teacher is None:
        if not has_teachers and not config.servers:
            fix = "Give a model, a folder, or the setting `served`"
            raise ParamsError(what="no teacher is given", where="teacher", fix=fix)
        return {}
    several = teacher if isinstance(teacher, Mapping) else {TEACHER: teacher}
    if not several:
        raise ParamsError(what="it contains no teachers", where="teacher", fix="Give at least one")
    teachers = {}
    for name, one in several.items():
        where = f"teacher.{name}" if isinstance(teacher, Mapping) else "teacher"
        teachers[str(name)] = own_model(one) if hasattr(one, "config") else model_folder(one, where)
    return teachers


@contextmanager
def _computing(teachers: Any) -> Iterator[None]:
    """Let the caller's teachers compute as the student does; restore them afterwards."""
    with ExitStack() as stack:
        for teacher in teachers:
            if not isinstance(teacher, Path):
                stack.enter_context(our_attention(teacher))
                stack.enter_context(computing(teacher, Runtime(device_of(teacher))))
        yield
