"""The settings of `reward.runs` and `reward.sets`, the inputs of such a run, and its evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field, model_validator

from posttrain.api.models import models_from
from posttrain.evaluate.intervals import calibration_error
from posttrain.evaluate.table_watch import heldout_rows
from posttrain.files import rounded
from posttrain.formulas.reward import demonstration_bias
from posttrain.models.files.save_dtype import round_weights
from posttrain.models.files.text import load_text
from posttrain.pipeline.params.slots import model_slot, table_slot
from posttrain.pipeline.runs.training import RunInputs, TrainingRows
from posttrain.pipeline.tables.store import read_table
from posttrain.settings.params import Params
from posttrain.settings.plain import NONE
from posttrain.supervised.reward import RewardTraining
from posttrain.train.batch_sources import Example
from posttrain.train.heldout import HeldoutRows, answer_scores, rows_of
from posttrain.train.model_set import ModelSet
from posttrain.train.tokenize_tables import comparisons, demonstrations, rankings
from posttrain.train.tokenize_tables import feedback as judged_answers
from posttrain.train.trained import Trained


class RewardRun(RewardTraining, HeldoutRows):
    """One run of `reward.runs`: a reward model."""

    start: str = model_slot("the model that provides the backbone; a reward model also provides the head", scores=None)
    data: str = table_slot("pairs", description="the comparisons")
    feedback: str = table_slot("feedback", description="judged answers, for compare ranks and labels", optional=True)
    demonstrations: str = table_slot("chat", description="answers whose mean score is shifted to 0", optional=True)
    shown: int = Field(500, ge=1, description="demonstrations that are scored for the shift")

    @model_validator(mode="after")
    def _supplied(self) -> RewardRun:
        compare = self.objective.compare
        if (compare != "pairs") != (self.feedback != NONE):
            what = f"objective.compare = {compare}, feedback = {self.feedback}: only ranks and labels use feedback"
            raise ValueError(f"{what}. Set feedback to a table for ranks and labels, else to none")
        if compare == "ranks" and self.objective.margins == "column":
            raise ValueError(
                "objective.margins = column: feedback has no margins. Use compare: pairs, or margins: constant"
            )
        return self


class SetRun(Params):
    """One run of `reward.sets`: several reward models or teachers for one run."""

    first: str = model_slot("a reward model or a teacher, or a set of them", scores=None, sets=True)
    second: str = model_slot("another model or set of the same kind", scores=None, sets=True)


def reward_rows(reads: RunInputs[RewardRun]) -> tuple[TrainingRows, Sequence[Example]]:
    """Return the tokenized rows of a run, its models, and the demonstrations whose mean score becomes 0."""
    params, start, pairs = reads.params, reads.start(reads.params.start), reads.table(reads.params.data)
    judged, chat = reads.optional_table(params.feedback), reads.optional_table(params.demonstrations)

    text = load_text(start, params.date, params.template)
    frame = read_table(pairs, "pairs")
    examples, heldout = (
        comparisons(text, rows_of(frame, split, params), params, str(pairs)) for split in ("train", "heldout")
    )
    watched = heldout_rows(frame, params.watch, pairs)
    if judged:
        rows = read_table(judged, "feedback").filter(split="train")
        tokenize = rankings if params.objective.compare == "ranks" else judged_answers
        examples = tokenize(text, rows, params, str(judged))
    shown: Sequence[Example] = ()
    if chat:
        rows = read_table(chat, "chat").filter(split="train").head(params.shown)
        shown = demonstrations(text, rows, params, str(chat), "last")
    models = models_from(start, params)
    seen = comparisons(text, watched, params, str(pairs)) if params.watch else ()
    return TrainingRows(models, text, examples, heldout, seen), shown


def measure_scores(trained: Trained, heldout: Sequence[Example], shown: Sequence[Example]) -> dict[str, float]:
    """Evaluate the saved reward model. If there are demonstrations, shift its scores so that they average 0."""
    models = trained.gather()
    round_weights(models.policy, models.folder, trained.params.save_dtype)
    measured = _accuracy(models, heldout)
    if shown:
        measured["demonstrations_score"] = -float(demonstration_bias(answer_scores(models, shown)))
        models.policy.config.reward_shift = measured["demonstrations_score"]
    return rounded(measured)


def _accuracy(models: ModelSet, examples: Sequence[Example]) -> dict[str, float]:
    """Return how often the better answer scores higher, over comparisons with noise-free labels."""
    scores = answer_scores(models, examples)
    won = scores[0::2] - scores[1::2]
    return {
        "heldout_accuracy": float((won > 0).float().mean()),
        "heldout_margin": float(won.mean()),
        "heldout_calibration_error": calibration_error(torch.sigmoid(won.abs()).numpy(), (won > 0).double().numpy()),
    }
