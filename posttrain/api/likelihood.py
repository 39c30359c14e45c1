"""Measure a model by the likelihoods of given texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import polars as pl

from posttrain.api.argument_checks import check_config, model_folder, refuse_no_rows, rename_hint
from posttrain.api.frozen_models import beside, frozen
from posttrain.api.own_model import Messages
from posttrain.data.columns import with_ids
from posttrain.data.layouts import convert, table_of
from posttrain.data.turns import RowError
from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.by_likelihood import LikelihoodKind, measure_likelihood
from posttrain.evaluate.config import EvaluateConfig
from posttrain.evaluate.likelihood import measure_pairs, pair_answers
from posttrain.evaluate.policy import Evaluation
from posttrain.models.device import Runtime
from posttrain.models.files.loading import is_scorer
from posttrain.models.files.store import load_model
from posttrain.models.files.text import load_text
from posttrain.models.master_weights import frozen_on
from posttrain.rewards.learned import RewardModel
from posttrain.sampling.engines import SampledModel

NAME = "evaluate_likelihood"


def evaluate_likelihood(
    model: Any,
    tokenizer: Any,
    rows: pl.DataFrame | Sequence[str | Messages | Mapping[str, Any]],
    kind: LikelihoodKind,
    *,
    reference: Any | None = None,
    config: EvaluateConfig | None = None,
    where: str = NAME,
) -> Evaluation:
    """Evaluate a model without samples: the likelier answer of a pair, the likelier option, or bits per byte.

    model, tokenizer: from transformers; or the policy from `load_frozen`, and None; or the folder of a language model
    (for pairs also of a reward model), and None. rows: as in `train_model`, or a table of this kind. kind: `pairs`
    (prompt, chosen, rejected), `corpus` (text), or `prompts` with their options in `info`: {"options": ["Paris",
    "Rome"]}. reference: for pairs, a model (or its folder) whose log-probs are subtracted. config: the device, the
    template and the seed of the intervals. where: the place of the settings in messages.

    Example: `evaluate_likelihood(model, tokenizer, [{"text": "a text"}], "corpus").metrics["bits_per_byte"]`
    """
    if kind not in get_args(LikelihoodKind):
        fix = f"Give one of {', '.join(get_args(LikelihoodKind))}"
        raise ParamsError(what=f"unknown kind '{kind:.80}'", where="kind", fix=fix)
    config = EvaluateConfig() if config is None else config
    check_config(config, EvaluateConfig, NAME, {})
    table = rows if isinstance(rows, pl.DataFrame) else _table(rows, kind)
    if isinstance(model, str | Path):
        model = _of_folder(model_folder(model, "model"), config)
        if is_scorer(model.policy):
            return _by_scorer(model, table, kind, config.seed, where)
    with frozen(model, tokenizer, config) as policy, beside(reference, policy.runtime) as other:
        measured = measure_likelihood(policy, table, kind, reference=other, seed=config.seed, source=f"{where}: rows")
    return Evaluation(measured.metrics, measured.rollouts, [], None)


def _of_folder(folder: Path, config: EvaluateConfig) -> SampledModel:
    """Load a language model or a reward model from its folder."""
    runtime, text = Runtime(config.device), load_text(folder, config.date, config.template)
    return SampledModel(frozen_on(runtime.suit(load_model(folder)), runtime), folder, text, runtime)


def _by_scorer(model: SampledModel, rows: pl.DataFrame, kind: LikelihoodKind, seed: int, where: str) -> Evaluation:
    """Return which answer of each pair a reward model scores higher."""
    if kind != "pairs":
        what = f"{model.folder} is a reward model, which cannot compute the likelihood of {kind}"
        raise DataError(what=what, where=f"{where}.policy", fix="Give pairs, or a language model")
    answers = pair_answers(model.text, rows)
    scores = RewardModel(model.folder, model.runtime, model.text)(answers)
    measured = measure_pairs(rows, (answers, scores), odds=True, seed=seed)
    return Evaluation(measured.metrics, measured.rollouts, [], None)


def _table(rows: Sequence[Any], kind: LikelihoodKind) -> pl.DataFrame:
    """Return rows in memory as a table of this kind."""
    refuse_no_rows(rows, "rows")
    converted = []
    for number, row in enumerate(rows):
        try:
            converted.append(convert(row if isinstance(row, Mapping) else {"prompt": row}, kind))
        except RowError as error:
            fix = (
                f"{rename_hint(row, kind) if isinstance(row, Mapping) else ''}docs/data.md lists the columns of {kind}"
            )
            raise DataError(what=str(error), where=f"rows[{number}]", fix=fix) from error
    table = table_of(converted, kind).with_columns(split=pl.lit("heldout"))
    return with_ids(table.with_columns(task=pl.lit("")) if kind == "prompts" else table, kind)
