"""Measure a model by the likelihoods of given texts. Stages and calls both use it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from posttrain.evaluate.likelihood import (
    Measured,
    measure_options,
    measure_pairs,
    measure_texts,
    pair_answers,
    readable_questions,
    row_logps,
)
from posttrain.models.files.store import load_policy
from posttrain.models.master_weights import frozen_on
from posttrain.sampling.engines import SampledModel

LikelihoodKind = Literal["pairs", "corpus", "prompts"]
"""The kind of table: pairs of answers, texts, or questions with options."""


def measure_likelihood(
    policy: SampledModel, rows: pl.DataFrame, kind: LikelihoodKind, *, reference: Any | Path | None, seed: int,
    source: str,
) -> Measured:  # fmt: skip
    """Return the likelihoods of the rows and their metrics.

    `reference`: for pairs, a model (or its folder) whose log-probs are subtracted. `source`: the name of the rows in
    messages.
    """
    model, text, runtime = policy.policy, policy.text, policy.runtime
    if kind == "corpus":
        return measure_texts(model, text, rows, runtime, seed)
    if kind == "prompts":
        prompts = readable_questions(rows.iter_rows(named=True), source)
        return measure_options(model, text, prompts, runtime, seed)
    answers = pair_answers(text, rows)
    tokens = [answer.row for answer in answers]
    logps = row_logps(model, tokens, runtime)
    scores = [math.fsum(values) for values in logps]
    if reference is not None:
        other = frozen_on(load_policy(reference), runtime) if isinstance(reference, Path) else reference
        before = row_logps(other, tokens, runtime)
        scores = [score - math.fsum(values) for score, values in zip(scores, before, strict=True)]
    known = [replace(answer, logps=values) for answer, values in zip(answers, logps, strict=True)]
    return measure_pairs(rows, (known, scores), odds=False, seed=seed)
