"""Classify why completions are wrong: the kind of each sample, the counts, and the missed requirements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from posttrain.errors import PosttrainError
from posttrain.pipeline.params.stage_table import Settings, group_of
from posttrain.pipeline.report.policies import Policy
from posttrain.rewards.catalog import MEASURED, REWARDS, SCORE, metric_settings, term
from posttrain.rewards.reward import Each, score_one
from posttrain.rollout import FAILED, Finish, Prompt, Rollout, TokenRow, stored_value
from posttrain.tasks.task import load_task

RIGHT, WRONG, UNREADABLE, FAILURE, SCORED = "right", "wrong answer", "no readable answer", "failed", "scored"
TITLES = ("policy", "samples", "wrong", WRONG, UNREADABLE, "of these end in the right answer", FAILURE, "cut")


def kind(*, outcomes: bool) -> pl.Expr:
    """Return the kind of a rollout. `outcomes`: whether scores are 0 or 1."""
    answered = pl.lit(WRONG if outcomes else SCORED)
    right = pl.lit(outcomes) & (pl.col("reward") > 0.5)
    unreadable = pl.col("status") == "unparseable"
    failed = pl.col("status").is_in(sorted(FAILED)) | pl.col("reward").is_null()
    chosen = pl.when(failed).then(pl.lit(FAILURE)).when(right).then(pl.lit(RIGHT))
    return chosen.when(unreadable).then(pl.lit(UNREADABLE)).otherwise(answered).alias("kind")


def wrong_rows(policies: Sequence[Policy]) -> list[list[str]]:
    """Return a row of `TITLES` for each policy about all its samples. `cut` counts only wrong samples."""
    rows = []
    for policy in policies:
        samples = policy.rollouts.filter(~pl.col("greedy")).with_columns(kind(outcomes=True))
        wrong = samples.filter(pl.col("kind") != RIGHT)
        unreadable = wrong.filter(kind=UNREADABLE)
        all_texts = unreadable["completion"].null_count() == 0
        near = sum(map(ends_with, unreadable["completion"], unreadable["answer"])) if all_texts else None
        kind_counts = [wrong.filter(kind=WRONG).height, unreadable.height, near, wrong.filter(kind=FAILURE).height]
        counts = [samples.height, wrong.height, *kind_counts, int(wrong["truncated"].sum())]
        rows.append([policy.label, *("not kept" if count is None else f"{count:,}" for count in counts)])
    return rows


def ends_with(completion: str, answer: str) -> bool:
    """Tell whether a completion ends in the right answer, in any form, as a separate word or number."""
    wanted, text = answer.rpartition("####")[2].strip(), completion.rstrip(" \n.!*$})")
    before = text.removesuffix(wanted)
    return bool(wanted) and before != text and not (before[-1:].isalnum() or before[-1:] in ("-", ".", ","))


class Asked:
    """The reasons why rollouts did not score 1, from rewards that are cheap to recompute."""

    def __init__(self, settings: Settings) -> None:
        settings_of_evaluation = group_of(settings, "evaluate.settings")
        metrics = metric_settings(
            settings_of_evaluation.get("metrics") or ([] if "reward" in settings_of_evaluation else MEASURED)
        )
        self._terms = {**(settings_of_evaluation.get("reward") or SCORE), **metrics}
        self._known: dict[tuple[str, str], tuple[Each, Any] | None] = {}

    def reason(self, row: Mapping[str, Any]) -> str:
        """Return the reason why a rollout did not score 1; empty if the recomputed reward gives no reason."""
        reasons = (self._asked(part, row) for part in row["scores"] if part["status"] != "ok" or part["value"] == 0)
        return next((reason for reason in reasons if reason), "")

    def _asked(self, part: Mapping[str, Any], row: Mapping[str, Any]) -> str:
        key = part["name"], row["task"]
        if key not in self._known:
            self._known[key] = self._function(*key)
        if (known := self._known[key]) is None:
            return ""
        prompt = Prompt(row["prompt_id"], row["prompt"], (), row["answer"], task=row["task"], problem=row["problem"])
        finish: Finish = "length" if row["truncated"] else "stop"
        again = Rollout(prompt, row["sample"], TokenRow((), ()), (), row["completion"], finish)
        score = score_one(known[0], again, known[1])
        return score.reason if (score.known, score.status) == (stored_value(part), part["status"]) else ""

    def _function(self, name: str, task: str) -> tuple[Each, Any] | None:
        """Return the function of a reward with its options.

        Return None if the reward is the user's, runs in workers, or is no longer used by evaluations.
        """
        if name not in self._terms:
            return None
        try:
            given = term(name, self._terms[name])
            options = given.options_for(load_task(task).reward_options)
        except (ValueError, PosttrainError):
            return None
        each = given.reward.each
        foreign = REWARDS.is_foreign(given.type or name)
        return None if each is None or given.reward.in_workers(options) or foreign else (each, options)
