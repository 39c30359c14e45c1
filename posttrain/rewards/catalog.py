"""The rewards that params.yaml can use, and the parsing of their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from inspect import isroutine, signature
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from posttrain.errors import ParamsError, excerpt
from posttrain.rewards.reward import TERM_KEYS, WORKER_KEYS, Reward, WeightedReward, weights
from posttrain.settings.listing import Listing
from posttrain.settings.params import check, did_you_mean
from posttrain.settings.plain import NONE
from posttrain.settings.plugins import or_package
from posttrain.settings.user_code import is_import_path, load_object

LEARNED: Final = "model"
"""The name of the reward model's score."""


def reward_named(name: str, where: str) -> Reward[Any]:
    """Return the reward with this name or import path (the user's own): a Reward, or a function of all rollouts."""
    if name in REWARDS:
        return REWARDS[name]
    if not is_import_path(name):
        near = or_package(did_you_mean(name, list(REWARDS)))
        raise ValueError(f"unknown reward '{name:.80}' (your own: MODULE:NAME, docs/rewards.md). {near}")
    return _adopted(name, load_object(name, where))


def _adopted(name: str, given: Any) -> Reward[Any]:
    """Return an object of the user or a plugin as a reward. It runs in worker processes."""
    if isinstance(given, Reward):
        if given.each is None:
            return given
        _check_signature(name, given.each, ("rollout", "options"))
        return replace(given, isolated=True)
    if not isroutine(given):
        raise ValueError(f"'{name}' is neither a Reward nor a function of rollouts (docs/rewards.md)")
    _check_signature(name, given, ("rollouts",))
    return Reward(lambda options, context: given, isolated=True, compares=lambda options: True)  # noqa: ARG005


REWARDS: Final[Listing[Reward[Any]]] = Listing("posttrain.rewards", "REWARDS", group="rewards", adopt=_adopted)
"""The rewards of every file in the folder, and of plugins."""


def _check_signature(name: str, function: Callable[..., Any], wanted: Sequence[str]) -> None:
    """Reject a user's function if its signature does not fit the call that runs make."""
    try:
        accepted = signature(function)
    except ValueError:  # a function without a signature, of C
        return
    try:
        accepted.bind(*wanted)
    except TypeError as error:
        code = getattr(function, "__code__", None)
        place = f"{code.co_filename.replace(f'{Path.cwd()}/', '')} line {code.co_firstlineno}: " if code else ""
        raise ValueError(
            f"'{name}' ({place}{getattr(function, '__name__', 'it')}{accepted}): it cannot be called with "
            f"({', '.join(wanted)}): {error}. Give it these arguments (docs/own-rewards.md)"
        ) from error


def _terms(given: Any) -> Any:
    """Return weights, or settings with a weight and the reward's own options, as typed terms."""
    if not isinstance(given, Mapping):
        return given
    return {name: term(name, value) for name, value in given.items()}


def term(name: Any, value: Any) -> WeightedReward:
    """Return a reward from params.yaml with its weight and options, typed."""
    if isinstance(value, WeightedReward):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = {"weight": value}
    kind = str(value.get("type", name)) if isinstance(value, Mapping) else str(name)
    try:
        reward = reward_named(kind, "reward")
    except ParamsError as error:  # the error around it names the key: reward, metrics or another
        raise ValueError(f"'{kind}': {error.what}. {error.fix}") from error
    if not isinstance(value, Mapping):
        raise ValueError(f"'{name}' is {excerpt(value, 80)}. Give a weight, or {{weight: 1.0, OPTION: ...}}")  # noqa: TRY004
    shared = TERM_KEYS | (WORKER_KEYS if reward.isolated else frozenset())
    if taken := sorted(shared & reward.options.model_fields.keys()):
        raise ValueError(f"the options of '{kind}' have `{taken[0]}`, a key of every reward. Rename the option")
    own_options = {key: value[key] for key in value if key not in shared}
    for key in own_options.keys() - reward.options.model_fields.keys():
        if near := get_close_matches(str(key), sorted(shared), n=1):
            raise ValueError(f"{name}.{key}: unknown key. Did you mean '{near[0]}'?")
    try:
        options = check(reward.options, own_options, where=str(name))
    except ParamsError as error:
        raise ValueError(error.what) from error  # the error around it names the file and the fix
    if not reward.in_workers(options) and (unused := sorted(WORKER_KEYS & value.keys() & shared)):
        raise ValueError(f"'{name}' with these options needs no worker process, so it has no {unused[0]}. Remove it")
    return WeightedReward.model_validate(
        {"reward": reward, "options": options, **{k: value[k] for k in value if k in shared}, "type": kind}
    )


Rewards = Annotated[dict[str, WeightedReward], BeforeValidator(_terms)]
"""name -> weight, or name -> {weight, options of the reward}. With `type`, the user may choose the name."""


def metric_settings(given: Any) -> Any:
    """Return metrics as name -> options. Names in a list have no options."""
    if isinstance(given, list):
        return {name: {} for name in given} if all(isinstance(name, str) for name in given) else given
    return (
        {name: {} if value is None else value for name, value in given.items()} if isinstance(given, Mapping) else given
    )


def _metrics(given: Any) -> Any:
    """Return names, or names with options, as typed terms with weight 0."""
    named = metric_settings(given)
    if not isinstance(named, Mapping):
        return named
    for name, value in named.items():
        of_a_sum = value.keys() & _OF_A_SUM if isinstance(value, Mapping) else ()
        if not isinstance(value, Mapping | WeightedReward) or of_a_sum:
            what = f"'{name}' has {', '.join(sorted(of_a_sum))}" if of_a_sum else f"'{name}' is {excerpt(value, 80)}"
            raise ValueError(f"{what}: a metric only has options. Write [{name}], or {{{name}: {{OPTION: ...}}}}")
    return {name: value if isinstance(value, WeightedReward) else _metric(name, value) for name, value in named.items()}


def _metric(name: Any, options: Mapping[str, Any]) -> WeightedReward:
    return term(name, {**options, "weight": 0.0})


_OF_A_SUM: Final = frozenset({"weight", "gate", "normalise"})
"""Keys of a reward that describe its term in a sum."""
Metrics = Annotated[dict[str, WeightedReward], BeforeValidator(_metrics)]
"""Names of rewards that are measured but not counted: [name, ...], or name -> options of the reward."""

USUAL: Any = dict(zip(("correct", "format"), (1.0, 0.2), strict=True))
"""The default reward of a run. With a literal mapping here, every run would depend on the code of these rewards."""
SCORE: Any = dict.fromkeys(("correct",), 1.0)
"""The default score of evaluations."""
MEASURED: Any = ["format"]
"""The default metrics of evaluations."""


def need_a_weight(terms: Mapping[str, WeightedReward]) -> Mapping[str, WeightedReward]:
    """Reject rewards that all have weight 0."""
    if not weights(terms):
        raise ValueError("all rewards have weight 0. Give a reward a different weight, e.g. {correct: 1.0}")
    return terms


def refuse_metrics(terms: Mapping[str, WeightedReward]) -> Mapping[str, WeightedReward]:
    """Reject a reward with weight 0 where the settings have a separate key `metrics`."""
    if odd := [name for name, term in need_a_weight(terms).items() if not (term.counted or term.gate)]:
        raise ValueError(
            f"{', '.join(odd)}: with weight 0 it is a metric, not a part of the score. Write it under `metrics`, next "
            f"to `reward`: metrics: [{', '.join(odd)}], or with options metrics: {{{odd[0]}: {{OPTION: ...}}}}"
        )
    return terms


def with_metrics(
    terms: Mapping[str, WeightedReward], metrics: Mapping[str, WeightedReward]
) -> dict[str, WeightedReward]:
    """Return rewards and metrics together. Reject a name that occurs in both."""
    if twice := sorted(terms.keys() & metrics.keys()):
        fix = f"Remove it from metrics, or rename it: {{other: {{type: {twice[0]}}}}}"
        raise ValueError(f"'{twice[0]}' is in reward and in metrics. {fix}")
    return {**terms, **metrics}


def need_reward_model(terms: Mapping[str, WeightedReward], reward_model: str) -> None:
    """Reject a reward model without a reward that uses it, and a reward `model` without a reward model."""
    if bool(learned(terms)) != (reward_model != NONE):
        raise ValueError(
            f"reward_model = {reward_model}, reward = {', '.join(terms)}: reward_model and the reward `{LEARNED}` "
            "need each other. "
            + (
                "Set one, e.g. reward_model: reward/main"
                if reward_model == NONE
                else f"Add `{LEARNED}` to reward, or set reward_model: {NONE}"
            )
        )


def refuse_unread_model(terms: Mapping[str, WeightedReward]) -> None:
    """Reject a reward model that no reward uses."""
    if not learned(terms):
        what = f"no reward uses it; the rewards are {', '.join(terms)}"
        fix = 'Add the reward `model`, e.g. reward={"model": 1.0}, or remove reward_model'
        raise ParamsError(what=what, where="reward_model", fix=fix)


def refuse_learned(terms: Mapping[str, WeightedReward], fix: str) -> None:
    """Reject the reward `model` if the call has no reward model."""
    if named := learned(terms):
        what = f"the reward '{next(iter(named))}' needs a reward model, but none is given"
        raise ParamsError(what=what, where="reward", fix=fix)


def learned(terms: Mapping[str, WeightedReward]) -> dict[str, Any]:
    """Return the rewards that use a reward model, including parts of other rewards, with their options."""
    direct = {name: term.options for name, term in terms.items() if (term.type or name) == LEARNED}
    inner = [learned(getattr(term.options, "of", {})) for term in terms.values()]
    return {**direct, **{name: options for some in inner for name, options in some.items()}}
