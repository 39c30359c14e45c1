"""A run of `data.samples`: read its inputs, and make tables from the scored samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from posttrain.data.columns import Tables
from posttrain.data.splits import training_prompts
from posttrain.files import rounded, write_json
from posttrain.measure.record import note
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import model_of, needed_model
from posttrain.pipeline.runs.completion_cache import cached
from posttrain.pipeline.runs.samples import SamplesRun, sampled_tables
from posttrain.pipeline.tables.store import check_disjoint, check_table, read_table, write_tables
from posttrain.pipeline.workspace import metrics_path, table_path
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rollout import Prompt
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.frozen import OpenSampler, engine_of, load_frozen
from posttrain.sampling.sampler import encode_prompts, prompts_of
from posttrain.sampling.scored import ScoredSamples


@dataclass(frozen=True)
class SamplesStage:
    """One run of `data.samples` with its settings from params.yaml."""

    run: str
    params: SamplesRun

    @property
    def section(self) -> str:
        """The key path of its settings."""
        return f"data.samples.{self.run}"

    def policy(self) -> SampledModel:
        """Load the policy to sample."""
        return load_frozen(needed_model(self.params.policy, f"{self.section}.policy"), self.params)

    @property
    def sampler(self) -> OpenSampler:
        """The function that opens the sampler. Cached completions are not sampled again."""
        return cached(engine_of(self.params, self.section, self.params.policy), self.params.device, self.section)

    @property
    def reward_model(self) -> Path | None:
        """The folder of the model behind the reward `model`."""
        return model_of(self.params.reward_model, f"{self.section}.reward_model")

    def rows(self) -> list[dict[str, Any]]:
        """Return the first rows of each split that the rewards can judge."""
        params, table = self.params, table_path(self.params.data)
        frame = read_table(table, "prompts").filter(pl.col("split").is_in(["train", "heldout"]))
        training_prompts(frame, table)
        judged = scorable_prompts(params.reward, prompts_of(frame.iter_rows(named=True)), str(table))
        frame = frame.filter(pl.col("id").is_in([prompt.id for prompt in judged]))
        wanted = {"train": params.prompts, "heldout": params.heldout_prompts}
        return [row for split, n in wanted.items() for row in frame.filter(split=split).head(n).iter_rows(named=True)]

    def prompts(self, policy: SampledModel) -> list[Prompt]:
        """Return the prompts to sample."""
        return encode_prompts(policy.text, prompts_of(self.rows()))

    def save(self, scored: ScoredSamples) -> None:
        """Make the tables from the samples and write them."""
        prompt_ids = {prompt.id for prompt in scored.prompts}
        rows = [row for row in self.rows() if row["id"] in prompt_ids]
        tables, summary = sampled_tables(self.params, self.section, rows, scored.rollouts, scored.rewards, scored.steps)
        _write(self.run, tables, {**summary, **scored.metrics})


def samples_stage(run: str) -> SamplesStage:
    """Return a run of `data.samples`, with its settings from params.yaml."""
    params = load(SamplesRun, f"data.samples.{run}")
    note(seed=params.seed)
    return SamplesStage(run, params)


def _write(run: str, tables: Tables, figures: Mapping[str, float]) -> None:
    """Check the tables together, and write them with counts and metrics."""
    folder = Path("data") / run
    for kind, frame in tables.items():
        check_table(frame, kind, folder / f"{kind}.parquet")
    check_disjoint({str(kind): frame for kind, frame in tables.items()})
    write_tables(tables, folder)
    counts = {
        f"{kind}_{split}": tables[kind].filter(split=split).height
        for kind in ("pairs", "chat", "prompts")
        for split in ("train", "heldout")
        if kind in tables
    }
    if "feedback" in tables:
        counts["feedback"] = tables["feedback"].height
    write_json(metrics_path(f"data/{run}"), {**counts, **rounded(figures)})
    print(f"{run}: {', '.join(f'{count:,} {name}' for name, count in counts.items())}")
