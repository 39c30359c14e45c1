"""Measure how another policy ranks the tokens of a policy's greedy answers (Lin 2023, arXiv:2312.01552).

unshifted: also the other policy's likeliest token; marginal: its second or third; shifted: any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
import torch

from posttrain.errors import DataError, PipelineError
from posttrain.evaluate.in_context import encode_in_context
from posttrain.evaluate.likelihood import MICRO_TOKENS
from posttrain.measure.text_table import text_table
from posttrain.models.device import Runtime
from posttrain.models.files.store import load_policy, load_tokenizer
from posttrain.models.files.text import load_text
from posttrain.models.forward.forward import packed_states
from posttrain.models.forward.logp import head_of
from posttrain.models.master_weights import frozen_on
from posttrain.pipeline.params.params_file import load, read
from posttrain.pipeline.params.slots import needed_model
from posttrain.pipeline.params.stage_table import evaluated, policies
from posttrain.pipeline.runs.evaluation import EvaluateParams, EvaluateRun
from posttrain.pipeline.tables.store import read_results, read_table
from posttrain.pipeline.workspace import PARAMS_FILE, table_path
from posttrain.rollout import TokenRow
from posttrain.sampling.sampler import prompts_of
from posttrain.settings.params import did_you_mean
from posttrain.text.packing import micro_batches, pack

MARGINAL: Final = 3
"""Ranks up to this one are marginal."""
SHOWN: Final = 10
"""The number of tokens in the output."""
TILE: Final = 64
"""The number of positions whose logits are held at a time."""


@dataclass(frozen=True)
class TokenShift:
    """Shares of positions, and the most shifted tokens: `shifted` of `written` occurrences."""

    first: str
    second: str
    answers: int
    positions: int
    unshifted: float
    marginal: float
    shifted: float
    tokens: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        """Return the result as text."""
        ranks = (
            ("its likeliest too", self.unshifted),
            (f"among its {MARGINAL}", self.marginal),
            ("lower", self.shifted),
        )
        rows = [["rank", "", "share"]]
        rows += [[name, said, f"{share:.3f}"] for name, (said, share) in zip(RANKS, ranks, strict=True)]
        named = "; ".join(f"{most['token']!r} {most['shifted']} of {most['written']}" for most in self.tokens)
        head = (
            f"{self.positions:,} tokens of {self.answers} greedy answers of {self.first}, as {self.second} ranks them"
        )
        return "\n\n".join([head, "\n".join(text_table(rows, left=(0, 1))), f"shifted most: {named or 'none'}"])


RANKS: Final = ("unshifted", "marginal", "shifted")


def token_shift(names: Sequence[str]) -> TokenShift:
    """Return the ranks that the second policy gives to the first one's tokens."""
    if len(names) != 2:
        fix = "Give first the policy whose answers are read, then the policy that ranks their tokens, e.g. grpo sft"
        raise PipelineError(what=f"expected two policies, not {len(names)}", where="compare --tokens", fix=fix)
    (first, asked), (second, ranking) = ((name, _settings(name)) for name in names)
    rows = _answers(first)
    folder = needed_model(ranking[0], second)
    text, runtime = load_text(folder, ranking[1].date, ranking[1].template), Runtime(ranking[1].device)
    if text.tokenizer.get_vocab() != load_tokenizer(needed_model(asked[0], first)).get_vocab():
        fix = "Choose two policies with the same tokenizer, e.g. a model and its start model"
        raise DataError(what=f"{first} and {second} have different tokenizers", where="compare --tokens", fix=fix)
    table = read_table(table_path(asked[1].data), "prompts").filter(pl.col("id").is_in(rows["prompt_id"].implode()))
    prompts = prompts_of(table.iter_rows(named=True))
    encoded = encode_in_context(text, prompts, ranking[1].context, f"the context of {second}")
    ids = {prompt.id: prompt.ids for prompt in encoded}
    if lost := set(rows["prompt_id"]) - set(ids):
        what, fix = f"it has no prompt {min(lost)}, which {first} has answered", "Run `dvc repro`, then compare again"
        raise DataError(what=what, where=str(table_path(asked[1].data)), fix=fix)
    answers = [
        TokenRow(ids[prompt], completion, mask)
        for prompt, completion, mask in rows.select("prompt_id", "completion_ids", "mask").iter_rows()
    ]
    ranks = token_ranks(frozen_on(runtime.suit(load_policy(folder)), runtime), answers, runtime)
    written = [answer.rest[place] for answer in answers for place in answer.trained]
    return _summary(first, second, len(answers), ranks, [text.tokenizer.decode([token]) for token in written])


@torch.no_grad()
def token_ranks(model: Any, rows: Sequence[TokenRow], runtime: Runtime) -> list[int]:
    """Return the number of tokens that the model ranks above each trained token, row by row."""
    head, rank_of = head_of(model), dict[int, list[int]]()
    for some in micro_batches([len(row) for row in rows], list(range(len(rows))), MICRO_TOKENS):
        packed = pack([rows[place] for place in some]).to(runtime.device)
        hidden_MD, ranks = packed_states(model, packed).index_select(0, packed.source_M), list[int]()
        for hidden, target in zip(torch.split(hidden_MD, TILE), torch.split(packed.target_M, TILE), strict=True):
            logits = head.logits(hidden)
            ranks += (logits > logits.gather(1, target[:, None])).sum(1).tolist()
        for place in some:
            size = len(rows[place].trained)
            rank_of[place], ranks = ranks[:size], ranks[size:]
    return [rank for place in range(len(rows)) for rank in rank_of[place]]


def _settings(name: str) -> tuple[str, EvaluateParams]:
    """Return the model of an evaluated policy, and its evaluation settings."""
    settings = read()
    runs = {label: run for label, run in evaluated(settings).items() if run.rows == "rollouts"}
    if name not in runs:
        fix = did_you_mean(name, list(runs)) or f"There are {', '.join(runs)}"
        raise PipelineError(what=f"evaluate has no policy '{name}'", where=PARAMS_FILE, fix=fix)
    if name in policies(settings):
        return runs[name].model, load(EvaluateParams, "evaluate.settings")
    return runs[name].model, load(EvaluateRun, f"evaluate.runs.{name}")


def _answers(name: str) -> pl.DataFrame:
    """Return the greedy answers of a policy that have stored tokens."""
    file = Path("results") / name / "rollouts.parquet"
    rows = read_results(file, name).filter(pl.col("greedy") & pl.col("completion_ids").is_not_null())
    if rows.is_empty():
        fix = "Evaluate it by samples, with completions: full"
        raise DataError(what="no greedy answers with tokens are stored", where=str(file), fix=fix)
    return rows


def _summary(first: str, second: str, answers: int, ranks: Sequence[int], tokens: Sequence[str]) -> TokenShift:
    count = len(ranks)
    unshifted, low = sum(rank == 0 for rank in ranks), sum(rank >= MARGINAL for rank in ranks)
    written = Counter(tokens)
    shifted = Counter(token for token, rank in zip(tokens, ranks, strict=True) if rank >= MARGINAL)
    most = sorted(shifted, key=lambda token: (-shifted[token], token))[:SHOWN]
    named = [{"token": token, "shifted": shifted[token], "written": written[token]} for token in most]
    shares = unshifted / count, (count - unshifted - low) / count, low / count
    return TokenShift(first, second, answers, count, *shares, named)
