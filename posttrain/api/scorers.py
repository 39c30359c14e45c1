"""Reward models in Python: create a reward model from a language model, train it with `train_model`, compute scores."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from posttrain.api.argument_checks import model_folder, refuse_no_rows, rename_hint
from posttrain.api.models import SHIFT
from posttrain.api.own_model import check_rows, device_of, our_attention, own_model, text_of
from posttrain.data.layouts import convert
from posttrain.data.turns import RowError, type_name
from posttrain.errors import DataError, ModelError
from posttrain.models.device import Runtime
from posttrain.models.files.loading import WHOLE_TEXT, is_scorer
from posttrain.models.files.store import load_scorer, load_tokenizer, scorer_of
from posttrain.models.forward.forward import runs_in_rows, score_rows
from posttrain.models.master_weights import computing
from posttrain.text.packing import micro_batches, pack
from posttrain.train.tokenize_tables import exchanges

ASKED: Final = ("prompt", "completion")
MICRO_TOKENS: Final = 16_384
"""Maximum number of tokens of one forward pass."""


def reward_model(model: Any) -> Any:
    """Return a reward model: a copy of the language model with a scalar head, initialised to 0.

    Example: `scorer = reward_model(model); train_model(scorer, tokenizer, pairs, "reward")`
    """
    model = own_model(model)
    if is_scorer(model):
        raise ModelError(what="it is a reward model already", where="model", fix="Train it directly")
    with our_attention(model):  # which checks that its layers can be run packed
        scorer = scorer_of(copy.deepcopy(model), type(model).__name__)
    scorer.runs_in_rows = runs_in_rows(scorer)
    scorer.set_attn_implementation("eager")
    return scorer


def load_reward_model(path: str | Path) -> tuple[Any, Any]:
    """Return (reward model, tokenizer) from a folder in transformers' format. A language model gets a new head."""
    path = model_folder(path, "path")
    scorer, tokenizer = load_scorer(path), load_tokenizer(path)
    scorer.runs_in_rows = runs_in_rows(scorer)
    scorer.set_attn_implementation("eager")
    return scorer, tokenizer


@torch.no_grad()
def score(model: Any, tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the reward model's score of each row: `prompt` and `completion`, strings or lists of messages.

    Example: `score(scorer, tokenizer, [{"prompt": "2 + 3 =", "completion": "5"}])`
    """
    model = own_model(model)
    if not is_scorer(model):
        fix = "Use posttrain.reward_model(model), or load a reward model with posttrain.load_reward_model"
        raise ModelError(what="it is a language model, which does not compute scores", where="model", fix=fix)
    if getattr(model.config, WHOLE_TEXT, False):
        what = "it scores whole conversations, since another library trained it"
        raise ModelError(what=what, where="model", fix="Use it as the reward `model` of a pipeline (docs/rewards.md)")
    text, runtime = text_of(model, tokenizer), Runtime(device_of(model))
    shift = float(getattr(model.config, SHIFT, 0.0))
    tokens = []
    refuse_no_rows(rows, "rows")
    given: Sequence[Any] = rows
    for number, row in enumerate(given):
        try:
            if not isinstance(row, Mapping):
                raise RowError(f"it is {type_name(row)}, not a row")
            read = convert({"label": True, **row}, "feedback")
            turns = {name: [{"role": role, "content": said} for role, said in read[name]] for name in ASKED}
        except RowError as error:
            hint = rename_hint({"label": True, **row}, "feedback") if isinstance(row, Mapping) else ""
            fix = f"{hint}Give each row a prompt and a completion"
            raise DataError(what=str(error), where=f"rows[{number}]", fix=fix) from error
        tokens += exchanges(text, [{**read, **turns}], "completion")
    check_rows(text, [len(row) for row in tokens], "rows")
    scores = [0.0] * len(tokens)
    with our_attention(model), computing(model, runtime):
        for places in micro_batches([len(row) for row in tokens], list(range(len(tokens))), MICRO_TOKENS):
            packed = pack([tokens[place] for place in places]).to(runtime.device)
            for place, value in zip(places, score_rows(model, packed).tolist(), strict=True):
                scores[place] = value - shift
    return scores
