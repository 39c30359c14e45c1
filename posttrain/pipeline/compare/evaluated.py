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
from posttrain.pipeline.compare.experiments import MANIFEST, TIMES, check_policy
from posttrain.pipeline.compare.moved import digest_of, scored_rows
from posttrain.pipeline.compare.paired import Score, is_readable, prompt_parts, prompt_scores
from posttrain.pipeline.compare.statistics import Floats
from posttrain.pipeline.params.stage_table import evaluated, section_of, stage_of
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.tables.curve import Column, read_curve
from posttrain.pipeline.tables.store import read_results, read_table
from posttrain.pipeline.workspace import PARAMS_FILE, model_path, plot_path
from posttrain.settings.params import joined, nearest
from posttrain.settings.plain import flattened


@dataclass(frozen=True)
class EvaluatedPolicy:
    """A trained policy with its scores."""

    name: str
    policy: str
    """Its label in evaluate.policies."""
    model: str
    """Folder under models/, e.g. online/grpo."""
    settings: Mapping[str, str]
    """Dotted key -> value as text, for all of params.yaml. `effective.alike` gives equal meanings the same text."""
    prompts: tuple[str, ...]
    scores_P: Floats
    """NaN if no completion of the prompt could be scored."""
    curve: Mapping[str, Column]
    seconds: float | None
    section: str
    """The section of params.yaml with the settings of the model's run."""
    parsed: bool
    """True if any completion has a readable answer. If none has, the scores are meaningless."""
    parts: Mapping[str, Floats] = field(default_factory=dict)
    """Name of a part of the reward, or of a metric -> its mean on every prompt."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Name -> the number of completions without a value."""
    metric: str = ""
    """The metric that replaces its score; empty for the score itself."""
    weights: str = ""
    """The command that fetches its model into the workspace; empty for a policy of the workspace."""
    code: Mapping[str, str] = field(default_factory=dict)
    """`online: custom/reward.py` -> digest, for all code and packages of the runs behind it; empty if not requested."""
    trained: str = ""
    """The digest of its weights; empty if the model is missing."""
    is_current: bool = True
    """False if its results are out of date for its model, settings or code."""
    unverified: tuple[str, ...] = ()
    """The runs behind it without a record, so that nobody can tell whether they ran as dvc.lock says."""
    rows: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Its completions with their scores (`scored_rows`)."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """All of params.yaml, as plain data."""

    @property
    def completions(self) -> str:
        """A digest of its completions; empty if they are not known."""
        return digest_of(self.rows)

    @property
    def run_settings(self) -> dict[str, str]:
        """The settings in the policy's own section, without its name: `kl.beta` for `online.runs.grpo.kl.beta`."""
        head = self.section + "."
        return {key.removeprefix(head): value for key, value in self.settings.items() if key.startswith(head)}

    @property
    def known_scores(self) -> Floats:
        """The known scores of the prompts."""
        return self.scores_P[np.isfinite(self.scores_P)]


def read_evaluated(folder: Path, name: str, policy: str, score: Score, tasks: Sequence[str] = ()) -> EvaluatedPolicy:
    """Return a policy from a workspace, or from a copy of an experiment's files. `tasks`: use only their prompts."""
    settings = read_yaml(folder / PARAMS_FILE)
    known_labels = evaluated(settings)
    check_policy(policy, known_labels, f"{name}: {PARAMS_FILE}")
    model, kind = known_labels[policy].model, known_labels[policy].rows
    file = folder / "results" / policy / f"{kind}.parquet"
    rollouts = as_rollouts(read_table(file, "documents")) if kind == "documents" else read_results(file, policy)
    known = rollouts["task"].unique().sort().to_list()
    for task in tasks:
        if task not in known:
            near = nearest(task, known)
            meant = f"Did you mean '{near}'? " if near else ""
            what, fix = f"{name}: no prompt has the task '{task:.80}'", f"{meant}Its tasks: {joined(known)}"
            raise DataError(what=what, where="compare --task", fix=fix)
    if tasks:
        rollouts = rollouts.filter(pl.col("task").is_in(tasks))
    result = evaluated_policy(folder, name, policy, model, rollouts, settings, score)
    if not len(result.known_scores):
        fix = "Remove --greedy" if score == "greedy" else "Evaluate it again: dvc repro"
        raise DataError(what=f"{name}: no {score} completion has a score", where=str(file), fix=fix)
    return result


def evaluated_policy(
    folder: Path,
    name: str,
    policy: str,
    model: str,
    rollouts: pl.DataFrame,
    settings: Mapping[str, Any],
    score: Score,
) -> EvaluatedPolicy:
    """Return a policy with its rollouts. `settings`: the complete params.yaml of its training."""
    scores, (parts, failed) = prompt_scores(rollouts, score), prompt_parts(rollouts, score)
    plot = folder / plot_path(model)
    return EvaluatedPolicy(
        name=name,
        policy=policy,
        model=model,
        settings=flattened(settings),
        document=settings,
        prompts=tuple(scores["prompt_id"]),
        scores_P=scores["reward"].to_numpy(),
        curve=read_curve(plot) if plot.is_file() else {},
        trained=_weights(folder / model_path(model) / MANIFEST),
        seconds=_seconds(folder, name, stage_of(settings, model)),
        section=section_of(settings, model),
        parsed=is_readable(rollouts, score),
        parts=parts,
        failed=failed,
        rows=scored_rows(rollouts),
    )


def _weights(manifest: Path) -> str:
    """Return a digest of a model's list of tensors, which contains each tensor's digest."""
    return file_digest(manifest) if manifest.is_file() else ""


def as_rollouts(documents: pl.DataFrame) -> pl.DataFrame:
    """Return lm-eval's documents with the columns of a comparison. The reward is the task's first metric.

    If a task reads answers in several ways, a document has their mean.
    """
    prompt = pl.concat_str("task", pl.col("doc").cast(pl.String), separator="/").alias("prompt_id")
    reward = pl.col("scores").list.first().struct.field("value").alias("reward")
    rows = documents.select("task", prompt, reward, status=pl.lit("ok"))
    return pl.concat([rows.with_columns(greedy=pl.lit(value)) for value in (False, True)]).sort("prompt_id")


def check_same_prompts(policies: list[EvaluatedPolicy]) -> None:
    """Reject policies that were evaluated on different prompts."""
    for policy in policies[1:]:
        if policy.prompts != policies[0].prompts:
            shared = len(set(policy.prompts) & set(policies[0].prompts))
            raise DataError(
                what=f"{policy.name} and {policies[0].name} were evaluated on different prompts ({shared} in common)",
                where=f"results/{policy.policy}",
                fix="Compare policies that have the same data and evaluate.settings, or choose one lm-eval task with "
                "--task",
            )


def scores(policies: list[EvaluatedPolicy]) -> Floats:
    """Return the scores of a setting's trainings as [seeds, prompts]."""
    return np.stack([policy.scores_P for policy in policies])


def _seconds(folder: Path, name: str, stage: str) -> float | None:
    """Return the seconds of the stage that made the model, recorded by a sweep or the stage; None if unknown."""
    here = folder == Path()
    known = (read_record(TIMES / f"{name}.json").get(stage), of_this_run(stage).get("total") if here else None)
    return next((float(seconds) for seconds in known if isinstance(seconds, int | float)), None)
