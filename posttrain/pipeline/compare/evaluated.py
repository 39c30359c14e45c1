"""An evaluated policy: its settings, its score on every held-out prompt, and its learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from posttrain.errors import DataError
from posttrain.files import file_digest
from posttrain.measure.record import read_record
from posttrain.measure.timings import of_this_run
from posttrain.pipeline.compare.experiments import MANIFEST, TIMES
from posttrain.pipeline.compare.paired import Score, is_readable, prompt_parts, prompt_scores
from posttrain.pipeline.compare.statistics import Floats
from posttrain.pipeline.params.stage_table import evaluated, section_of, stage_of
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.tables.curve import Column, read_curve
from posttrain.pipeline.tables.store import read_results, read_table
from posttrain.pipeline.workspace import PARAMS_FILE, model_path, plot_path
from posttrain.settings.params import did_you_mean
from posttrain.settings.plain import flattened


@dataclass(frozen=True)
class EvaluatedPolicy:
    """One trained policy with its scores."""

    name: str
    policy: str
    """Its label in evaluate.policies."""
    model: str
    """Folder under models/, e.g. online/grpo."""
    settings: Mapping[str, str]
    """Dotted key -> value as text, of all of params.yaml."""
    prompts: tuple[str, ...]
    scores_P: Floats
    """NaN where no completion of the prompt could be scored."""
    curve: Mapping[str, Column]
    seconds: float | None
    section: str
    """The section of params.yaml with the settings of the run that made the model."""
    parsed: bool
    """Whether any completion has an answer that could be read; if none has, the scores mean nothing."""
    parts: Mapping[str, Floats] = field(default_factory=dict)
    """Name -> the mean of a part of the reward, or of a metric, on every prompt."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Name -> how many completions have no value of it."""
    metric: str = ""
    """The metric that stands in place of its score; empty for the score itself."""
    weights: str = ""
    """The command that brings its model into the workspace; empty for a policy of the workspace."""
    code: Mapping[str, str] = field(default_factory=dict)
    """`online: custom/reward.py` -> digest, of all code and packages of the runs behind it; empty if not asked for."""
    trained: str = ""
    """The digest of its weights; empty where the model is not there."""
    unverified: tuple[str, ...] = ()
    """The runs behind it whose record is missing, so that nobody can say whether they ran as dvc.lock has it."""

    @property
    def own(self) -> dict[str, str]:
        """The settings under the policy's own section, without its name: `kl.beta` of `online.runs.grpo.kl.beta`."""
        head = self.section + "."
        return {key.removeprefix(head): value for key, value in self.settings.items() if key.startswith(head)}

    @property
    def known_scores(self) -> Floats:
        """The scores of the prompts that have one."""
        return self.scores_P[np.isfinite(self.scores_P)]


def read_evaluated(folder: Path, name: str, policy: str, score: Score, tasks: Sequence[str] = ()) -> EvaluatedPolicy:
    """Return a policy of a workspace, or of a copy of an experiment's files; `tasks`: only prompts of these count."""
    settings = read_yaml(folder / PARAMS_FILE)
    known_labels = evaluated(settings)
    if policy not in known_labels:
        fix = f"It has {', '.join(known_labels)}"
        raise DataError(what=f"evaluate has no '{policy}'", where=f"{name}: {PARAMS_FILE}", fix=fix)
    model, kind = known_labels[policy].model, known_labels[policy].rows
    file = folder / "results" / policy / f"{kind}.parquet"
    rollouts = as_rollouts(read_table(file, "documents")) if kind == "documents" else read_results(file, policy)
    known = rollouts["task"].unique().sort().to_list()
    for task in tasks:
        if task not in known:
            what, fix = f"{name}: no prompt has the task '{task:.80}'", did_you_mean(task, known)
            raise DataError(what=what, where=str(file), fix=fix)
    if tasks:
        rollouts = rollouts.filter(pl.col("task").is_in(tasks))
    found = evaluated_policy(folder, name, policy, model, rollouts, settings, score)
    if not len(found.known_scores):
        fix = "Remove --greedy" if score == "greedy" else "Evaluate it again: dvc repro"
        raise DataError(what=f"{name}: no {score} completion has a score", where=str(file), fix=fix)
    return found


def evaluated_policy(
    folder: Path,
    name: str,
    policy: str,
    model: str,
    rollouts: pl.DataFrame,
    settings: Mapping[str, Any],
    score: Score,
) -> EvaluatedPolicy:
    """Return a policy by its rollouts; `settings`: the whole of the params.yaml that it was made with."""
    scores, (parts, failed) = prompt_scores(rollouts, score), prompt_parts(rollouts, score)
    plot = folder / plot_path(model)
    return EvaluatedPolicy(
        name=name,
        policy=policy,
        model=model,
        settings=flattened(settings),
        prompts=tuple(scores["prompt_id"]),
        scores_P=scores["reward"].to_numpy(),
        curve=read_curve(plot) if plot.is_file() else {},
        trained=_weights(folder / model_path(model) / MANIFEST),
        seconds=_seconds(folder, name, stage_of(settings, model)),
        section=section_of(settings, model),
        parsed=is_readable(rollouts, score),
        parts=parts,
        failed=failed,
    )


def _weights(manifest: Path) -> str:
    """Return the digest of a model's list of tensors, which has the digest of each."""
    return file_digest(manifest) if manifest.is_file() else ""


def as_rollouts(documents: pl.DataFrame) -> pl.DataFrame:
    """Return the documents of lm-eval with the columns that a comparison reads; the reward is the task's first metric.

    Where a task reads answers in several ways, a document has their mean.
    """
    prompt = pl.concat_str("task", pl.col("doc").cast(pl.String), separator="/").alias("prompt_id")
    reward = pl.col("scores").list.first().struct.field("value").alias("reward")
    rows = documents.select("task", prompt, reward, status=pl.lit("ok"))
    return pl.concat([rows.with_columns(greedy=pl.lit(value)) for value in (False, True)]).sort("prompt_id")


def check_same_prompts(found: list[EvaluatedPolicy]) -> None:
    """Refuse policies that were evaluated on different prompts."""
    for policy in found[1:]:
        if policy.prompts != found[0].prompts:
            shared = len(set(policy.prompts) & set(found[0].prompts))
            raise DataError(
                what=f"{policy.name} and {found[0].name} were evaluated on different prompts ({shared} are the same)",
                where=f"results/{policy.policy}",
                fix="Compare policies with the same data and evaluate.settings, or one task of lm-eval: --task",
            )


def scores(found: list[EvaluatedPolicy]) -> Floats:
    """Return the scores of one setting's trainings as [seeds, prompts]."""
    return np.stack([policy.scores_P for policy in found])


def _seconds(folder: Path, name: str, stage: str) -> float | None:
    """How long the stage that made the model took, if a sweep recorded it, or the stage itself in the workspace."""
    here = folder == Path()
    found = (read_record(TIMES / f"{name}.json").get(stage), of_this_run(stage).get("total") if here else None)
    return next((float(seconds) for seconds in found if isinstance(seconds, int | float)), None)
