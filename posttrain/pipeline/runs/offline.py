"""Offline reinforcement learning: policy objectives on the rollouts that an earlier run stored, without sampling.

The rollouts' own log-probs are those of the policies that sampled them (mu). Before each optimizer step the trainer
computes its own (pi_old), so the ratio of the surrogate is pi / pi_old, and the correction weighs by pi_old / mu.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import torch
from pydantic import Field, model_validator

from posttrain.algorithms.objective import REWARD_PARTS
from posttrain.algorithms.policy_config import POLICY_ROWS, PolicyConfig
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.data.columns import KEPT
from posttrain.errors import DataError, ParamsError
from posttrain.formulas.ragged import row_keys
from posttrain.pipeline.params.slots import model_slot, rollouts_slot
from posttrain.pipeline.runs.stored_rollouts import StoredRollouts, records
from posttrain.rollout import TokenRow
from posttrain.settings.plain import NONE
from posttrain.train.batch_sources import BatchSource, epoch_places
from posttrain.train.loop import TrainingParams, refuse_dropout
from posttrain.train.run_config import Algorithms
from posttrain.train.step import Batch, make_batch

CORRECTED: Final = "recomputed_logp"
"""The column that an objective needs if it corrects for the policy that sampled."""
UNKNOWN: Final = {
    REWARD_PARTS: "an advantage over each reward needs the weights of the rewards",
    "opponent": "an advantage over opponents needs samples of a mixture",
    "kl_old": "a KL to the sampling policy needs its weights",
    "step_start_logp": "it reads log-probs of the policy at the start of each step, which only samples of its own have",
    "pretrain": "ptx needs a corpus",
}
"""Columns that stored rollouts do not have, and why."""


class OfflineRun(TrainingParams, PolicyConfig):
    """One run of `offline.runs`: a policy objective on stored rollouts."""

    rate_kind = "online"

    algorithm: str = Field(description="a policy row of docs/reference/algorithms.md; all but dppo_* need a correction")
    start: str = model_slot("the model it starts from")
    data: str = rollouts_slot("the run whose rollouts it learns from")
    groups: int = Field(16, ge=1, description="groups of rollouts (draws of a prompt) in each optimizer step")
    epochs: float = Field(1.0, gt=0, description="times through the rollouts")

    @model_validator(mode="after")
    def _learns_from_rollouts(self) -> OfflineRun:
        refuse_dropout(self)
        if self.template:
            raise ValueError("template is not read: stored rollouts have their tokens. Remove it")
        needs = self.objective(1).needs
        refused = [reason for column, reason in UNKNOWN.items() if column in needs]
        if CORRECTED not in needs and not self.surrogate_entry.of_sampler:
            refused.append(
                "correction = none: the rollouts are of other policies than this one. Set correction: truncate"
            )
        if self.update.type == "trpo":
            refused.append("trpo bounds the KL to the sampling policy. Use update adamw")
        if self.resample or self.overlong is not None:
            refused.append("resample and overlong change how a run samples. Set resample: 0 and overlong: null")
        if refused and not self.allow_unsupported:
            raise ValueError("; ".join(refused))
        return self

    @property
    def has_critic(self) -> bool:
        """Whether the advantage needs values."""
        return self.advantage_entry.valued

    def objective(self, max_length: int) -> PolicyObjective:
        """Return the objective; `max_length`: the longest completion, for the fixed-length aggregation."""
        return PolicyObjective(self, max_length)


OFFLINE = Algorithms((POLICY_ROWS, lambda _: OfflineRun))


def need_tokens(source: Any, where: str) -> None:
    """Refuse to learn from a run whose settings store not all of its rollouts, or not whose tokens they have."""
    if (stored := getattr(source, "rollouts", "full")) != "full":
        what = f"the run stores rollouts: {stored}, and tokens of all are needed"
        raise ParamsError(what=what, where=where, fix="Set rollouts: full there")
    if getattr(source, "start", None) == NONE:
        what = "the run has start: none, so nothing says which tokenizer its tokens are of"
        raise ParamsError(what=what, where=where, fix="Name the model that sampled them there: start: base/NAME")


@dataclass(frozen=True)
class LoggedRollouts:
    """The scored rollouts of a run, group by group, and how they were sampled."""

    table: pl.DataFrame
    groups: Sequence[tuple[int, int]]
    """The first row and the number of rows of each group."""
    temperature: float
    max_tokens: int

    @property
    def largest(self) -> int:
        """The most tokens of a group, by its longest rollout."""
        tokens = self.table.select(pl.col("prompt_ids").list.len() + pl.col("completion_ids").list.len())
        return int(tokens.max().item()) * max(size for _, size in self.groups)

    def rows(self, places: Sequence[int]) -> list[list[dict[str, Any]]]:
        """Return the rows of some groups."""
        return [records(self.table.slice(*self.groups[place])) for place in places]


def logged_rollouts(stored: StoredRollouts, vocabulary: str, *, grouped: bool) -> LoggedRollouts:
    """Return the rollouts that were scored; `grouped`: groups of which one rollout is left are left out too."""
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


class LoggedSource(BatchSource):
    """Groups of stored rollouts, each once per epoch."""

    def __init__(self, logged: LoggedRollouts, groups: int, epochs: float, seed: int) -> None:
        self._logged, self._groups, self._seed = logged, groups, seed
        self._steps = max(round(-(-len(logged.groups) // groups) * epochs), 1)

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        return self._steps

    def batch(self, step: int) -> Batch:
        """Return the groups of one step, with the sampling policies' log-probs."""
        groups = self._logged.rows(epoch_places(len(self._logged.groups), self._groups, step, self._seed))
        rows = [row for group in groups for row in group]
        columns = {
            "reward": torch.tensor([row["reward"] for row in rows]),
            "truncated": torch.tensor([row["finish"] == "length" for row in rows]),
            "group": torch.tensor([number for number, group in enumerate(groups) for _ in group]),
            "sample_key": row_keys(self._seed, [row["id"] for row in rows]),
            "fresh": torch.full((len(rows),), step * self._groups < len(self._logged.groups)),
        }
        tokens = [
            TokenRow(row["prompt_ids"], row["completion_ids"], None if all(row["mask"]) else row["mask"], row["kept"])
            for row in rows
        ]
        return make_batch(tokens, columns, {"old_logp": torch.tensor([x for row in rows for x in row["logps"]])})
