"""Score stored rollouts again, with other rewards, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.api.argument_checks import check_config
from posttrain.api.scorer_folder import scorer_folder
from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.metrics import status
from posttrain.models.device import Runtime
from posttrain.rewards.config import ScoreConfig
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.reward import weights
from posttrain.rewards.scorable import NOT_JUDGED
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Rollout
from posttrain.settings.params import check
from posttrain.text.chat import ChatText

NAME = "regrade"
UNJUDGED = "unjudged"


@dataclass(frozen=True)
class Regraded:
    """A rollout with its new scores."""

    rollout: Rollout
    reward: float | None
    """The weighted sum of the scores; None if a reward could not score it, or none can judge its prompt."""
    status: str
    """`ok`, `unjudged` if no reward can judge its prompt, or why it has no score or no readable answer."""


def regrade(
    groups: Iterable[Sequence[Rollout]],
    reward: Any = None,
    *,
    config: ScoreConfig | None = None,
    text: ChatText | None = None,
    reward_model: str | Path | None = None,
    max_tokens: int | None = None,
    where: str = NAME,
) -> Iterator[list[Regraded]]:
    """Score groups of rollouts again. Yield each group with its new scores. Nothing is sampled.

    groups: lists of rollouts that are scored together, e.g. one list for each round; rewards may compare them.
    reward: as in `train_online`. config: all settings as one typed object, instead of `reward`. text: the policy's
    tokenizer and template, for rewards that read them. reward_model: the folder of the model behind the reward `model`.
    max_tokens: the longest completion that was sampled, for rewards that read it. where: the name of the settings in
    messages.

    Example: `list(regrade([evaluate_model(model, tokenizer, prompts, reward).rollouts], {"correct": 1.0}))`
    """
    if config is None:
        if reward is None:
            raise ParamsError(what="there is no reward", where="reward", fix="Give a function of rollouts, or a config")
        config = check(ScoreConfig, {"reward": reward}, where=NAME, file="arguments")
    else:
        check_config(config, ScoreConfig, NAME, {"reward": (reward, None)})
    folder = scorer_folder(config, reward_model)
    scorer = config.scorer_of(Runtime(config.device), text, folder, where, max_tokens)
    limit = FailureLimit(scorer, config.max_failed, where)
    return _regraded(groups, scorer, limit)


def _regraded(groups: Iterable[Sequence[Rollout]], scorer: RewardSum, limit: FailureLimit) -> Iterator[list[Regraded]]:
    counted = [name for name in weights(scorer.terms) if scorer.terms[name].outcome] or list(weights(scorer.terms))
    for group in groups:
        if isinstance(group, Rollout):
            what, fix = "this is a rollout, not a group of rollouts", "Write [rollouts] for one group"
            raise DataError(what=what, where="groups", fix=fix)
        scored = scorer.score(group)
        limit.check(scored)
        yield [
            Regraded(one, None, UNJUDGED)
            if all(one.scores[name].reason.startswith(NOT_JUDGED) for name in counted)
            else Regraded(one, None if scorer.failure(one) else float(scorer.total(one)), status(scorer, one))
            for one in scored
        ]
