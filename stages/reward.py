"""reward: one run of a reward model from comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from posttrain.algorithms.reward import RewardObjective
from posttrain.evaluate.intervals import calibration_error
from posttrain.evaluate.table_watch import heldout_rows, table_watch
from posttrain.files import rounded, write_json
from posttrain.formulas.reward import demonstration_bias
from posttrain.models.device import Runtime
from posttrain.models.files.loading import WHOLE_TEXT
from posttrain.models.files.save_dtype import round_weights
from posttrain.models.files.store import save_model
from posttrain.models.files.text import load_text
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import needed_model, table_of
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.reward import RewardRun
from posttrain.pipeline.runs.training import run_watched, share_run
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import metrics_path, model_path, table_path
from posttrain.train.batch_sources import EpochSource, Example
from posttrain.train.estimate import most_tokens
from posttrain.train.heldout import answer_scores, rows_of
from posttrain.train.loop import TrainingRun, adamw
from posttrain.train.model_set import ModelSet
from posttrain.train.tokenize_tables import comparisons, demonstrations, rankings
from posttrain.train.tokenize_tables import feedback as judged_answers


def main(run: str) -> None:
    """Writes models/reward/RUN, metrics/reward/RUN.json and plots/reward/RUN.csv."""
    name, section = f"reward@{run}", f"reward.runs.{run}"
    params = load(RewardRun, section)
    share_run(name, params)
    start, pairs = needed_model(params.start, f"{section}.start"), table_path(params.data)
    judged, chat = table_of(params.feedback), table_of(params.demonstrations)

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
    shown: Sequence[Example] = []
    if chat:
        rows = read_table(chat, "chat").filter(split="train").head(params.shown)
        shown = demonstrations(text, rows, params, str(chat), "last")

    objective = RewardObjective(params.objective)
    models = ModelSet.load(Runtime(params.device), start, objective.needs, params)
    vars(models.policy.config).pop("reward_shift", None)  # a reward model's, of the scores that it had

    source = EpochSource(examples, params.batch, params.epochs, params.seed)
    inputs = [start, pairs, *(table for table in (judged, chat) if table)]
    update = adamw(models.trained, params, source.steps, models.policy)
    step_tokens = most_tokens(examples.tokens, params.batch)
    training = TrainingRun(name, params, objective, source, models, update, step_tokens, ("loss", "accuracy"))
    seen = comparisons(text, watched, params, str(pairs)) if params.watch else []
    log, kept = run_watched(training, inputs, table_watch(training, objective, params.watch, seen))

    models = models.gather_on_rank_zero()
    vars(models.policy.config).pop(WHOLE_TEXT, None)  # from here on it reads answers up to their end
    round_weights(models.policy, start, params.save_dtype)  # measure the weights that are saved
    measured = _accuracy(models, heldout)
    if shown:
        measured["demonstrations_score"] = -float(demonstration_bias(answer_scores(models, shown)))
        models.policy.config.reward_shift = measured["demonstrations_score"]
    save_model(models.policy, model_path(name), start, params.save_dtype)
    write_json(metrics_path(name), {"steps": len(log.rows), "pairs": len(examples), **kept, **rounded(measured)})
    print(f"{name}: held-out accuracy {measured['heldout_accuracy']:.3f}, saved in {model_path(name)}")


def _accuracy(models: ModelSet, examples: Sequence[Example]) -> dict[str, float]:
    """Return how often the better answer scores higher, over comparisons without noise."""
    scores = answer_scores(models, examples)
    won = scores[0::2] - scores[1::2]
    return {
        "heldout_accuracy": float((won > 0).float().mean()),
        "heldout_margin": float(won.mean()),
        "heldout_calibration_error": calibration_error(torch.sigmoid(won.abs()).numpy(), (won > 0).double().numpy()),
    }


if __name__ == "__main__":
    run_named_stage(main)
