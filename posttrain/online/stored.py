"""Training on stored rollouts without sampling: settings, batches and the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

import polars as pl
import torch
from pydantic import Field, model_validator

from posttrain.algorithms.objective import REWARD_PARTS
from posttrain.algorithms.policy_config import POLICY_ROWS, PolicyConfig, group_refusal
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.data.columns import DRAWN_FROM
from posttrain.errors import DataError, ParamsError
from posttrain.formulas.ragged import row_keys
from posttrain.rollout import Kept, TokenRow
from posttrain.settings.params import check
from posttrain.train.batch_sources import BatchSource, epoch_places
from posttrain.train.checkpoint import CheckpointStore
from posttrain.train.loop import TrainingParams, TrainingRun, adamw, refuse_dropout
from posttrain.train.metrics import Recorder
from posttrain.train.model_set import ModelSet
from posttrain.train.run_config import Algorithms
from posttrain.train.step import Batch, make_batch
from posttrain.train.trained import Trained, run_training

CORRECTED: Final = "recomputed_logp"
"""The column that an objective needs to correct for the sampling policy."""
UNKNOWN: Final = {
    REWARD_PARTS: "an advantage over each reward needs the weights of the rewards",
    "opponent": "an advantage over opponents needs samples of a mixture",
    "kl_old": "a KL to the sampling policy needs its weights",
    "step_start_logp": "it reads log-probs of the policy at the start of each step, which only exist while the policy "
    "samples",
    "pretrain": "ptx needs a corpus",
}
"""Columns that stored rollouts lack -> why."""


class OfflineConfig(TrainingParams, PolicyConfig):
    """The settings of a policy objective on stored rollouts."""

    rate_kind = "online"
    example: ClassVar[str] = "grpo"
    """The algorithm in error messages' examples."""
    progress: ClassVar[tuple[str, ...]] = ("reward", "length", "entropy", "loss")
    """Metrics in the progress line."""

    algorithm: str = Field(
        description="a policy preset in docs/reference/algorithms.md; all except dppo_* need a correction"
    )
    groups: int = Field(16, ge=1, description="groups (one draw of a prompt) per optimizer step")
    epochs: float = Field(1.0, gt=0, description="passes through the rollouts")

    @classmethod
    def preset(cls, algorithm: str, **settings: Any) -> OfflineConfig:
        """Return the settings of an algorithm (grpo, dapo, ...) with the given settings replaced.

        Example: `OfflineConfig.preset("grpo", correction="truncate", epochs=2)`
        """
        entry = STORED.entry(algorithm)
        merged = entry.row.merged({**settings, "algorithm": algorithm})
        return cast("OfflineConfig", check(entry.model, merged, where="settings", file="arguments"))

    @model_validator(mode="after")
    def _learns_from_rollouts(self) -> OfflineConfig:
        refuse_dropout(self)
        if self.template:
            raise ValueError("template has no effect, because stored rollouts contain tokens. Remove it")
        needs = self.objective(1).needs
        refused = [reason for column, reason in UNKNOWN.items() if column in needs]
        if CORRECTED not in needs and not self.surrogate_entry.of_sampler:
            refused.append("correction = none: the rollouts come from other policies. Set correction: truncate")
        if self.update.type == "trpo":
            refused.append("trpo bounds the KL to the sampling policy. Use update adamw")
        if self.resample or self.overlong is not None:
            refused.append("resample and overlong change how a run samples. Set resample: 0 and overlong: null")
        if refused and not self.allow_unsupported:
            raise ValueError("; ".join(refused))
        return self

    @property
    def has_critic(self) -> bool:
        """True if the advantage needs values."""
        return self.advantage_entry.valued

    @property
    def needs(self) -> frozenset[str]:
        """The columns that the objective reads."""
        return self.objective(1).needs

    def objective(self, max_length: int) -> PolicyObjective:
        """Return the objective. `max_length`: the longest completion, for the fixed-length aggregation."""
        return PolicyObjective(self, max_length)


STORED: Final = Algorithms((POLICY_ROWS, lambda _: OfflineConfig))
"""Algorithm -> its settings on stored rollouts."""


@dataclass(frozen=True)
class LoggedRollouts:
    """The scored rollouts of a run by group, and their sampling settings."""

    table: pl.DataFrame
    groups: Sequence[tuple[int, int]]
    """The first row and the size of each group."""
    temperature: float
    max_tokens: int

    @property
    def largest(self) -> int:
        """Maximum number of tokens of a group: all its rollouts are as long as the longest in the table."""
        tokens = self.table.select(pl.col("prompt_ids").list.len() + pl.col("completion_ids").list.len())
        return int(tokens.max().item()) * max(size for _, size in self.groups)

    def rows(self, places: Sequence[int]) -> list[list[dict[str, Any]]]:
        """Return the rows of some groups."""
        return [records(self.table.slice(*self.groups[place])) for place in places]


def logged_rollouts(
    table: pl.DataFrame, summary: Mapping[str, Any], vocabulary: str, where: str, *, grouped: bool
) -> LoggedRollouts:
    """Return the scored rollouts. `grouped`: also drop groups with only one rollout left.

    `summary`: run.json next to the table; `vocabulary`: the vocabulary of the policy's tokenizer.
    """
    if summary["vocabulary"] != vocabulary:
        what = "the rollouts were sampled with a different tokenizer than the start model's"
        raise DataError(what=what, where=where, fix="Start from the run's model or from its start")
    scored = table.filter(pl.col("reward").is_not_null())
    if grouped:
        scored = scored.filter(pl.len().over("draw") > 1)
    if scored.is_empty():
        what = f"none of {table.height:,} rollouts has a reward that can be compared"
        raise DataError(what=what, where=where, fix="Use the rollouts of another run")
    samplings = [json.loads(sampling) for sampling in scored["sampling"].unique().to_list()]
    if len(temperatures := {sampling["temperature"] for sampling in samplings}) > 1:
        what = f"the rollouts were sampled at temperatures {sorted(temperatures)}, but log-probs need one temperature"
        raise DataError(what=what, where=where, fix="Use rollouts of one temperature")
    cut = any(sampling["top_p"] < 1 or sampling["top_k"] for sampling in samplings)
    if cut and not set(DRAWN_FROM) <= set(scored.columns):
        what = (
            "the rollouts do not record the tokens that top_p and top_k allowed, because their algorithm does not "
            "need them"
        )
        fix = (
            "Use the rollouts of a policy algorithm (docs/reference/algorithms.md), or sample with top_p 1 and "
            "top_k null"
        )
        raise DataError(what=what, where=where, fix=fix)
    sizes = scored.group_by("draw", maintain_order=True).len()["len"]
    left = f"; {table.height - scored.height:,} without a reward are left out" if scored.height < table.height else ""
    print(f"{where}: {scored.height:,} rollouts in {len(sizes):,} groups{left}")
    groups = list(zip((sizes.cum_sum() - sizes).to_list(), sizes.to_list(), strict=True))
    longest = max(sampling["max_tokens"] for sampling in samplings)
    return LoggedRollouts(scored, groups, temperatures.pop(), longest)


def check_groups(config: OfflineConfig, logged: LoggedRollouts, where: str) -> None:
    """Raise if the groups are too small for the advantage."""
    if reason := group_refusal(config, max(size for _, size in logged.groups)):
        raise ParamsError(what=reason, where=where, fix="The rollouts contain no larger group")


class LoggedSource(BatchSource):
    """Groups of stored rollouts. Each is used once per epoch."""

    def __init__(self, logged: LoggedRollouts, groups: int, epochs: float, seed: int) -> None:
        self._logged, self._groups, self._seed = logged, groups, seed
        self._steps = max(round(-(-len(logged.groups) // groups) * epochs), 1)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
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


def run_offline(
    name: str, config: OfflineConfig, models: ModelSet, logged: LoggedRollouts, checkpoints: CheckpointStore,
    recorder: Recorder, on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> Trained:  # fmt: skip
    """Train on groups of stored rollouts, with the log-probs that their samplers recorded."""
    objective = config.objective(logged.max_tokens)
    source = LoggedSource(logged, config.groups, config.epochs, config.seed)
    update = adamw(models.trained, config, source.steps, models.policy)
    tokens = config.groups * logged.largest
    run = TrainingRun(name, config, objective, source, models, update, tokens, config.progress, on_step=on_step)
    return run_training(run, checkpoints, recorder)


def records(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return rows of the table as mappings, with the columns of kept tokens combined as `kept`."""
    rows = frame.drop(DRAWN_FROM, strict=False).to_dicts()
    stored = set(DRAWN_FROM) <= set(frame.columns)
    for index, row in enumerate(rows):
        row["kept"] = Kept(*(torch.tensor(frame[name][index].to_numpy()) for name in DRAWN_FROM)) if stored else None
    return rows
