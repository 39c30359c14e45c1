"""The settings of `offline.runs`, and the stored rollouts that such a run reads."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from posttrain.algorithms.policy_config import POLICY_ROWS, group_refusal
from posttrain.data.columns import KEPT
from posttrain.errors import DataError, ParamsError
from posttrain.models.files.text import load_text
from posttrain.online.stored import LoggedRollouts, OfflineConfig
from posttrain.pipeline.params.slots import model_slot, rollouts_slot
from posttrain.pipeline.runs.stored_rollouts import StoredRollouts
from posttrain.pipeline.runs.training import RunInputs
from posttrain.pipeline.workspace import rollouts_path
from posttrain.settings.plain import NONE
from posttrain.train.model_set import ModelSet
from posttrain.train.run_config import Algorithms


class OfflineRun(OfflineConfig):
    """One run of `offline.runs`: a policy objective on stored rollouts."""

    start: str = model_slot("the start model")
    data: str = rollouts_slot("the run whose stored rollouts are used")


OFFLINE = Algorithms((POLICY_ROWS, lambda _: OfflineRun))


def need_tokens(source: Any, where: str) -> None:
    """Reject a run that does not store all its rollouts, or whose tokenizer is unknown."""
    if (stored := getattr(source, "rollouts", "full")) != "full":
        what = f"the run stores rollouts: {stored}, and tokens of all are needed"
        raise ParamsError(what=what, where=where, fix="Set rollouts: full there")
    if getattr(source, "start", None) == NONE:
        what = "the run has start: none, so nothing says which tokenizer its tokens are of"
        raise ParamsError(what=what, where=where, fix="Name the model that sampled them there: start: base/NAME")


def logged_rollouts(stored: StoredRollouts, vocabulary: str, *, grouped: bool) -> LoggedRollouts:
    """Return the scored rollouts. `grouped`: also leave out groups with only one rollout left."""
    if stored.summary["vocabulary"] != vocabulary:
        what = "the rollouts were sampled with another tokenizer than that of the start model"
        raise DataError(what=what, where=str(stored.folder), fix="Start from the run's model or from its start")
    table = stored.table()
    scored = table.filter(pl.col("reward").is_not_null())
    if grouped:
        scored = scored.filter(pl.len().over("draw") > 1)
    if scored.is_empty():
        what = f"none of {table.height:,} rollouts has a reward that can be compared"
        raise DataError(what=what, where=str(stored.folder), fix="Use the rollouts of another run")
    samplings = [json.loads(sampling) for sampling in scored["sampling"].unique().to_list()]
    if len(temperatures := {sampling["temperature"] for sampling in samplings}) > 1:
        what = f"the rollouts were sampled at temperatures {sorted(temperatures)}, and log-probs are at one"
        raise DataError(what=what, where=str(stored.folder), fix="Learn from those of one temperature")
    cut = any(sampling["top_p"] < 1 or sampling["top_k"] for sampling in samplings)
    if cut and not set(KEPT) <= set(scored.columns):
        what = (
            "the rollouts do not have the tokens that top_p and top_k left to sample from: their algorithm needs none"
        )
        fix = "Use the rollouts of a policy row (docs/reference/algorithms.md), or sample with top_p 1 and top_k null"
        raise DataError(what=what, where=str(stored.folder), fix=fix)
    sizes = scored.group_by("draw", maintain_order=True).len()["len"]
    left = f"; {table.height - scored.height:,} without a reward are left out" if scored.height < table.height else ""
    print(f"{stored.folder}: {scored.height:,} rollouts in {len(sizes):,} groups{left}")
    groups = list(zip((sizes.cum_sum() - sizes).to_list(), sizes.to_list(), strict=True))
    longest = max(sampling["max_tokens"] for sampling in samplings)
    return LoggedRollouts(scored, groups, temperatures.pop(), longest)


def offline_run(reads: RunInputs[Any]) -> tuple[ModelSet, LoggedRollouts]:
    """Return the models and the stored rollouts of a run."""
    params, section = reads.params, reads.section
    start, folder = reads.start(params.start), reads.reads(rollouts_path(params.data))
    stored = StoredRollouts(folder, section)
    vocabulary = load_text(start, params.date).vocabulary
    logged = logged_rollouts(stored, vocabulary, grouped=params.advantage_entry.grouped)
    if reason := group_refusal(params, max(size for _, size in logged.groups)):
        raise ParamsError(what=reason, where=f"{section}.advantage", fix="The rollouts have no larger group")
    needs = params.objective(logged.max_tokens).needs
    return ModelSet.load(params.runtime(), start, needs, params, temperature=logged.temperature), logged
