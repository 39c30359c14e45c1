"""The reward to test: its options from the command line, or from a run in params.yaml with its context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from posttrain.errors import ParamsError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.adapter_files import config_file
from posttrain.pipeline.params.params_file import at, load, read
from posttrain.pipeline.params.slots import model_of
from posttrain.pipeline.params.stage_table import group_of
from posttrain.pipeline.workspace import PARAMS_FILE, model_path
from posttrain.rewards.catalog import metric_settings
from posttrain.rewards.reward import Context
from posttrain.rewards.trial import Subject, subject_term
from posttrain.settings.params import did_you_mean
from posttrain.text.chat import ChatText

EVALUATION: Final = "evaluate.settings"
GROUPS: Final = ("online.runs", "distill.runs", "data.samples", "data.filters", "evaluate.runs")
"""Groups whose runs use rewards."""


def subject_of(name: str, options: Sequence[str], run: str | None) -> Subject:
    """Return the reward with this name. These options are added to the run's options."""
    from_command = dict(map(_option, options))
    if run is None:
        return Subject(
            name,
            subject_term(name, from_command, "reward test", "command line"),
            Context(Runtime(DeviceParams()), "reward test"),
        )
    settings = _settings(run)
    known = [*settings.reward, *getattr(settings, "metrics", {})]
    if name not in known:
        raise ParamsError(what=f"{run}.reward has no '{name}'", where=PARAMS_FILE, fix=did_you_mean(name, known))
    own_settings = at(read(), run)
    given = {**metric_settings(own_settings.get("metrics") or {}), **(own_settings.get("reward") or {})}.get(name)
    given = {**(given if isinstance(given, Mapping) else {}), **from_command}
    return Subject(name, subject_term(name, given, run, PARAMS_FILE), _context(run, settings))


def _option(text: str) -> tuple[str, Any]:
    """Return `KEY=VALUE` as a pair. The value is read as in params.yaml, but `#` and other marks need no quotes."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    key, equals, value = text.partition("=")
    fix = "Write KEY=VALUE, e.g. after=#### or 'tags=[think, answer]'"
    if not equals:
        raise ParamsError(what=f"'{text:.80}' has no '='", where="--options", fix=fix)
    if ("#" in value or not any(map(str.isalnum, value))) and value[:1] not in ("", '"', "'", "[", "{"):
        return key, value
    try:
        return key, YAML(typ="safe", pure=True).load(value)
    except YAMLError as error:
        raise ParamsError(what=f"'{text:.80}' is not YAML", where="--options", fix=fix) from error


def _settings(run: str) -> Any:
    """Return the typed settings of a run with rewards."""
    group, _, name = run.rpartition(".")
    if run != EVALUATION and group not in GROUPS:
        known = [EVALUATION, *(f"{group}.{name}" for group in GROUPS for name in group_of(read(), group))]
        fix = next(
            (f"Did you mean '{place}'?" for place in known if place.endswith(f".{run}")), did_you_mean(run, known)
        )
        raise ParamsError(what=f"'{run:.80}' has no rewards", where="--run", fix=fix)
    from posttrain.pipeline.runs.evaluation import EvaluateParams
    from posttrain.pipeline.runs.typed import load_settings  # knows every stage: not imported where no run is named

    at(read(), run)
    return load(EvaluateParams, run) if run == EVALUATION else load_settings(group, name)


def _context(run: str, settings: Any) -> Context:
    """Return the reward's context in the run."""
    policy = getattr(settings, "start", getattr(settings, "policy", None))
    sampling = getattr(getattr(settings, "rollout", settings), "sampling", None)  # filters sample nothing
    return Context(
        Runtime(getattr(settings, "device", DeviceParams())),
        run,
        model_of(settings.reward_model, f"{run}.reward_model"),
        _text(policy, settings) if policy else None,
        sampling and sampling.max_tokens,
    )


def _text(policy: str, settings: Any) -> ChatText | None:
    """Return the tokenizer and template of the policy; None before that model exists."""
    from posttrain.models.files.text import load_text

    folder = model_path(policy)
    made = config_file(folder).is_file()
    return load_text(folder, settings.date, settings.template) if made else None
