"""A run of `evaluate.runs`: a policy on a table of its own, by its samples or by likelihoods."""

from __future__ import annotations

import math
from dataclasses import replace

from posttrain.data.splits import check_enough_prompts
from posttrain.errors import DataError
from posttrain.evaluate.completions import hide_quotes
from posttrain.evaluate.likelihood import (
    Measured,
    measure_options,
    measure_pairs,
    measure_texts,
    pair_answers,
    readable_questions,
    row_logps,
)
from posttrain.measure.record import note
from posttrain.models.device import Runtime
from posttrain.models.files.loading import is_scorer
from posttrain.models.files.store import load_model, load_policy
from posttrain.models.files.text import load_text
from posttrain.models.master_weights import frozen_on
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import model_of, needed_model
from posttrain.pipeline.runs.evaluate_samples import evaluate, write_results
from posttrain.pipeline.runs.evaluation import EvaluateRun
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import table_path
from posttrain.rewards.learned import RewardModel


def evaluate_table(run: str) -> None:
    """Measure a policy on a table of its own, and write its results."""
    section = f"evaluate.runs.{run}"
    params = load(EvaluateRun, section)
    with hide_quotes(params.completions):
        if params.by == "samples":
            evaluate(f"evaluate_runs@{run}", params.policy, params, section)
        else:
            measured = measure(params, section)
            write_results(run, [(measured.rollouts, False)], measured.metrics, params)


def measure(params: EvaluateRun, section: str) -> Measured:
    """Return the likelihoods of the rows of the table."""
    runtime, folder = Runtime(params.device), needed_model(params.policy, f"{section}.policy")
    note(seed=params.seed)
    text, kind, file = (
        load_text(folder, params.date, params.template),
        params.data.rpartition("/")[2],
        table_path(params.data),
    )
    rows = read_table(file, kind).filter(split=params.split)  # type: ignore[arg-type]
    check_enough_prompts(rows.height, params.split, file)
    rows = rows.head(params.prompts)
    model = load_model(folder)
    if is_scorer(model):
        if kind != "pairs":
            what = f"'{params.policy}' is a reward model, which gives no likelihood of a table of {kind}"
            raise DataError(what=what, where=f"{section}.policy", fix="Name a table of pairs, or a language model")
        del model  # it is loaded again, with what it was trained to read
        answers = pair_answers(text, rows)
        scores = RewardModel(folder, runtime, text)(answers)
        return measure_pairs(rows, (answers, scores), odds=True, seed=params.seed)
    model = frozen_on(runtime.suit(model), runtime)
    if kind == "corpus":
        return measure_texts(model, text, rows, runtime, params.seed)
    if kind == "prompts":
        prompts = readable_questions(rows.iter_rows(named=True), str(file))
        return measure_options(model, text, prompts, runtime, params.seed)
    answers = pair_answers(text, rows)
    logps = row_logps(model, [answer.row for answer in answers], runtime)
    scores = [math.fsum(values) for values in logps]
    if reference := model_of(params.reference, f"{section}.reference"):
        del model
        before = row_logps(frozen_on(load_policy(reference), runtime), [answer.row for answer in answers], runtime)
        scores = [score - math.fsum(values) for score, values in zip(scores, before, strict=True)]
    known = [replace(answer, logps=values) for answer, values in zip(answers, logps, strict=True)]
    return measure_pairs(rows, (known, scores), odds=False, seed=params.seed)
