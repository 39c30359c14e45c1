"""The rewards that params.yaml can name, and how their settings are read (docs/rewards.md).

Those of the library compare the final number of a completion with the prompt's answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from inspect import isroutine
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from posttrain.params import PARAMS_FILE, Params, check, did_you_mean
from posttrain.rewards.reward import Context, Judge, NoOptions, Reward, Term, rule, weights
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.slots import NONE
from posttrain.user_code import is_import_path, load_object

_NUMBER = r"(-?)\$?((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)\.?\s*\Z"
"""A number that ends a text: a dollar sign, thousands set off by commas and a full stop after it are allowed."""
_LAST = re.compile(rf"(?:\A|(?<=[\s=:])){_NUMBER}")
_WHOLE = re.compile(rf"\s*{_NUMBER}")
_REASONS = {
    r"[0-9]\s*/\s*-?[0-9]": "a fraction",
    r"\\boxed": "a \\boxed{} answer",
    r"\A\(?[A-Za-z]\)?\Z": "a choice letter",
    r"\A\Z": "empty",
}


class NumericOptions(Params):
    """How a final number is found."""

    after: str | None = Field(
        None, min_length=1, description="the mark before the final answer, e.g. '####'; null: the number ends the text"
    )


def final_number(text: str, after: str | None) -> Decimal | None:
    """The number that ends a completion, after the mark where one is asked for; None where there is none."""
    return _decimal((_LAST if after is None else _marked(after)).search(text))


def expected_number(answer: str, after: str | None) -> Decimal | None:
    """The number that a prompt's answer is, or that comes after its last mark; None where it is no plain number."""
    return _decimal(_WHOLE.match(answer if after is None else answer.rpartition(after)[2]))


def why_no_number(answer: str, after: str | None) -> str:
    """What an answer is that `expected_number` cannot read."""
    written = (answer if after is None else answer.rpartition(after)[2]).strip()
    if after is None and (mark := re.search(r"(#{2,}|[Aa]nswer( is)?:?)\s*\S{1,20}\Z", written)):
        return f"text; set after: '{mark[1]}' if the number follows it"
    return next((reason for pattern, reason in _REASONS.items() if re.search(pattern, written)), "not a number")


def _unjudged(prompt: Prompt, options: NumericOptions) -> str | None:
    found = expected_number(prompt.answer, options.after)
    return None if found is not None else why_no_number(prompt.answer, options.after)


def _missing(options: NumericOptions) -> Score:
    wanted = "a number" if options.after is None else f"`{options.after} N`"
    return Score(0.0, "unparseable", f"it does not end with {wanted}")


@rule(NumericOptions, _unjudged)
def correct(rollout: Rollout, options: NumericOptions) -> Score:
    """1 where the final number is the expected one."""
    found = final_number(rollout.text, options.after)
    expected = expected_number(rollout.prompt.answer, options.after)
    if found is None:
        return _missing(options)
    if expected is None:
        return Score(0.0, "unparseable", "the prompt has no answer that can be read")
    return Score(float(found == expected))


@rule(NumericOptions, form_only=True)
def well_formed(rollout: Rollout, options: NumericOptions) -> Score:
    """1 where the text ends by itself with a final number, and has the mark once where one is asked for."""
    if final_number(rollout.text, options.after) is None:
        return _missing(options)
    once = options.after is None or rollout.text.count(options.after) == 1
    return Score(float(once and not rollout.truncated))


@lru_cache
def _marked(after: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(after)}\s*{_NUMBER}")


def _decimal(found: re.Match[str] | None) -> Decimal | None:
    """The matched number, exactly: as float, large numbers are equal that are not."""
    return Decimal(found.group(1) + found.group(2).replace(",", "")) if found else None


LEARNED: Final = "model"
"""The name of the reward model's score."""


def _learned(_: NoOptions, context: Context) -> Judge:
    from posttrain.rewards.learned import RewardModel  # torch, where a reward model is used only

    if context.reward_model is None:
        raise ValueError("the reward `model` has no reward model")
    return RewardModel(context.reward_model, context.device)


REWARDS: Final[dict[str, Reward[Any]]] = {
    "correct": correct,
    "format": well_formed,
    LEARNED: Reward(_learned),
}


def reward_named(name: str, where: str) -> Reward[Any]:
    """The reward of that name, or a user's own by its import path: a Reward, or a function of all rollouts."""
    if name in REWARDS:
        return REWARDS[name]
    if not is_import_path(name):
        known = ", ".join(REWARDS)
        raise ValueError(
            f"unknown reward '{name:.80}'. {did_you_mean(name, list(REWARDS))} The rewards are {known}, and your own "
            "as MODULE:NAME (docs/rewards.md)"
        )
    found = load_object(name, where)
    if isinstance(found, Reward):
        return found
    if not isroutine(found):
        raise ValueError(f"'{name}' is neither a Reward nor a function of rollouts (docs/rewards.md)")
    return Reward(lambda options, context: found)  # noqa: ARG005


def _terms(given: Any) -> Any:
    """Weights, or settings with a weight and the reward's own options, as typed terms."""
    if not isinstance(given, Mapping):
        return given
    return {name: _term(name, value) for name, value in given.items()}


def _term(name: Any, value: Any) -> Term:
    if isinstance(value, Term):
        return value
    reward = reward_named(str(name), "reward")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = {"weight": value}
    if not isinstance(value, Mapping):
        raise ValueError(f"'{name}' is {value!r:.80}. Give a weight, or {{weight: 1.0, OPTION: ...}}")  # noqa: TRY004
    own = {key: value[key] for key in value if key != "weight"}
    options = check(reward.options, own, where=str(name), file=PARAMS_FILE)
    weight = {"weight": value["weight"]} if "weight" in value else {}
    return Term.model_validate({"reward": reward, "options": options, **weight})


Rewards = Annotated[dict[str, Term], BeforeValidator(_terms)]
"""name -> weight, or name -> {weight, options of the reward}."""

USUAL: Any = {"correct": 1.0, "format": 0.2}
"""What runs learn from where params.yaml says nothing."""


def need_a_weight(terms: Mapping[str, Term]) -> Mapping[str, Term]:
    """Refuse rewards of which none counts."""
    if not weights(terms):
        raise ValueError("no reward has a weight other than 0. Name one, e.g. {correct: 1.0}")
    return terms


def need_reward_model(terms: Mapping[str, Term], reward_model: str) -> None:
    """Refuse a reward model without the reward that reads it, and the other way round."""
    if (LEARNED in terms) != (reward_model != NONE):
        raise ValueError(
            f"reward_model = {reward_model}, reward = {', '.join(terms)}: a reward model is named where the reward "
            f"`{LEARNED}` is, and only there. Add it to reward, or set reward_model: {NONE}"
        )
