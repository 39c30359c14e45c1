"""preference: one named run of preference optimisation (DPO and its family) on the pairs or the feedback."""

from __future__ import annotations

from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.errors import ParamsError
from posttrain.evaluate.table_watch import heldout_rows, table_watch
from posttrain.files import rounded, write_json
from posttrain.models.device import Runtime
from posttrain.models.files.store import save_model
from posttrain.models.files.text import load_text
from posttrain.pipeline.params.named_runs import load_run
from posttrain.pipeline.params.slots import needed_model
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.preference import PREFERENCE, PreferenceRun, needed_kind, preference_source
from posttrain.pipeline.runs.training import run_watched, share_run
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import PARAMS_FILE, metrics_path, model_path, table_path
from posttrain.train.estimate import most_tokens
from posttrain.train.loop import TrainingRun, adamw
from posttrain.train.model_set import ModelSet
from posttrain.train.tokenize_tables import comparisons, feedback


def main(run: str) -> None:
    """Writes models/preference/RUN, metrics/preference/RUN.json and plots/preference/RUN.csv."""
    name, section = f"preference@{run}", f"preference.runs.{run}"
    params: PreferenceRun = load_run(section, PREFERENCE)
    share_run(name, params)
    start, table = needed_model(params.start, f"{section}.start"), table_path(params.data)
    objective, kind = PreferenceObjective(params), needed_kind(params, section)

    text = load_text(start, params.date, params.template)
    frame = read_table(table, kind)
    tokenize = feedback if kind == "feedback" else comparisons
    examples = tokenize(text, frame.filter(split="train"), params, str(table))
    watched = heldout_rows(frame, params.watch, table)
    if params.parts > len(examples):
        what = f"{section}.parts = {params.parts} parts cannot be made of {len(examples)} rows"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Use fewer")

    if objective.mismatched and text.context is not None and examples.longest_mismatched > text.context:
        what = f"{params.algorithm} also answers prompts with other rows' answers, which makes rows of up to "
        what += f"{examples.longest_mismatched} tokens, more than the model's context of {text.context}"
        fix = f"Set {section}.max_tokens: {text.context // 2}"
        raise ParamsError(what=what, where=str(table), fix=fix)

    models = ModelSet.load(Runtime(params.device), start, objective.needs, params)

    source = preference_source(objective, examples, params.batch, params.epochs, params.seed, models)
    update = adamw(models.trained, params, source.steps, models.policy)
    step_tokens = most_tokens(examples.tokens, params.batch) * (2 if objective.mismatched else 1)
    shown = ("loss", "accuracy")
    training = TrainingRun(name, params, objective, source, models, update, step_tokens, shown)
    seen = tokenize(text, watched, params, str(table)) if params.watch else []
    log, measured = run_watched(training, [start, table], table_watch(training, objective, params.watch, seen))

    save_model(models.gather_on_rank_zero().policy, model_path(name), start, params.save_dtype)
    results: dict[str, float] = {key: log.tail(key, 10) for key in shown if key in log.rows[-1]}
    write_json(
        metrics_path(name), {"algorithm": params.algorithm, "steps": len(log.rows), **rounded(results), **measured}
    )


if __name__ == "__main__":
    run_named_stage(main)
