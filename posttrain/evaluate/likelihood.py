"""Evaluate without samples, by likelihoods: of a question's options, of a pair's two answers, and of texts.

score of a question  1 if the right option has the highest log-prob, including its stop token
score of a pair      1 if the chosen answer has the higher log-prob (minus the reference's), or the higher score
score of a text      minus its bits per byte
"""

from __future__ import annotations

import json
import math
import string
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch

from posttrain.errors import DataError, excerpt
from posttrain.evaluate.intervals import calibration_error, interval, is_outcome
from posttrain.measure.phases import phase
from posttrain.models.device import Runtime
from posttrain.models.forward.forward import score_tokens
from posttrain.rollout import Prompt, Rollout, Score, TokenRow
from posttrain.sampling.sampler import prompts_of
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation, row_variables
from posttrain.text.packing import micro_batches, pack

MICRO_TOKENS = 16_384
TIE = 1e-6
"""Log-probs that differ by less count as equal."""
LIKELIHOOD = "likelihood"
"""The name of the score."""
WITHOUT_PROMPT = [{"role": "user", "content": "(the likelihood of a text; it has no prompt)"}]


class Measured(NamedTuple):
    """The results: one row per text with its score, and metrics over all rows."""

    rollouts: list[Rollout]
    metrics: dict[str, float]


@phase("reference")
@torch.no_grad()
def row_logps(model: Any, rows: Sequence[TokenRow], runtime: Runtime) -> list[list[float]]:
    """Return the log-prob of each trained token of each row."""
    rows_logps: list[list[float]] = []
    for some in micro_batches([len(row) for row in rows], list(range(len(rows))), MICRO_TOKENS):
        logps, _ = score_tokens(model, pack([rows[place] for place in some]).to(runtime.device))
        sizes = [len(rows[place].trained) for place in some]
        rows_logps += [part.tolist() for part in torch.split(logps.float().cpu(), sizes)]
    return rows_logps


def measure_options(model: Any, text: ChatText, prompts: Sequence[Prompt], runtime: Runtime, seed: int) -> Measured:
    """Return the likeliest option of each question."""
    read = [_options(prompt) for prompt in prompts]
    asked = [(prompt, option) for prompt, (options, _) in zip(prompts, read, strict=True) for option in options]
    answers = _answers(text, asked)
    logps = row_logps(model, [answer.row for answer in answers], runtime)
    chosen, right, by_byte, probability, sure = [], [], [], [], []
    for options, gold in read:
        option_answers, answers = answers[: len(options)], answers[len(options) :]
        of_options, logps = logps[: len(options)], logps[len(options) :]
        sums = np.array([math.fsum(values) for values in of_options])
        shares = np.exp(sums - sums.max()) / np.exp(sums - sums.max()).sum()
        best = int(sums.argmax())
        per_byte = sums / [max(len(option.encode()), 1) for option in options]
        right.append(_chosen(sums, gold))
        by_byte.append(_chosen(per_byte, gold))
        probability.append(float(shares[gold]))
        sure.append(float(shares[best]))
        chosen.append(_scored(option_answers[best], right[-1], of_options[best]))
    figures = {"by_byte": _mean(by_byte), "probability": _mean(probability)}
    figures["calibration_error"] = calibration_error(np.array(sure), np.array(right))
    return Measured(chosen, _metrics(chosen, seed) | figures)


def _chosen(values: np.ndarray[Any, Any], gold: int) -> float:
    """Return 1 if the right option alone has the largest value, 1/n if it shares it with n - 1 others, else 0."""
    best = np.flatnonzero(values >= values.max() - TIE)
    return float(gold in best) / len(best)


def measure_pairs(
    rows: pl.DataFrame, scores: tuple[Sequence[Rollout], Sequence[float]], *, odds: bool, seed: int
) -> Measured:
    """Tell for each pair whether the chosen answer has the higher score. `scores`: chosen, rejected, chosen, ...

    `odds`: whether the difference of two scores is the log-odds that the first answer is better, as with reward models.
    """
    rollouts, values = scores
    gaps = np.array(values[0::2]) - np.array(values[1::2])
    right = (gaps > 0) + 0.5 * (gaps == 0)
    measured = [_scored(rollout, float(score)) for rollout, score in zip(rollouts[0::2], right, strict=True)]
    metrics = _metrics(measured, seed) | {"margin": float(gaps.mean())}
    if odds:
        sure = 1 / (1 + np.exp(-np.abs(gaps)))
        metrics["calibration_error"] = calibration_error(sure, right)
    if "subset" in rows.columns:
        for name, places in sorted(_places(rows["subset"].fill_null("other")).items()):
            metrics[f"score_{name}"] = float(right[places].mean())
    return Measured(measured, metrics)


def pair_answers(text: ChatText, rows: pl.DataFrame) -> list[Rollout]:
    """Return the answers of all pairs: chosen, rejected, chosen, ..."""
    asked = []
    for row in rows.iter_rows(named=True):
        prompt = Prompt(row["id"], row["prompt"], (), problem=row["problem"], variables=row_variables(row))
        asked += [(prompt, row[side][0]["content"]) for side in ("chosen", "rejected")]
    return _answers(text, asked)


def measure_texts(model: Any, text: ChatText, rows: pl.DataFrame, runtime: Runtime, seed: int) -> Measured:
    """Return the bits per byte of each text. A text that is longer than the context is split into parts."""
    start = text.tokenizer.bos_token_id if text.tokenizer.bos_token_id is not None else text.stop
    texts = rows["text"].to_list()
    tokens = text.plain(texts)
    parts = [list(_parts([start, *ids], text.context)) for ids in tokens]
    logps = row_logps(model, [part for text_parts in parts for part in text_parts], runtime)
    rollouts, bits = [], []
    for name, written, text_parts in zip(rows["id"], texts, parts, strict=True):
        text_logps, logps = [logp for part in logps[: len(text_parts)] for logp in part], logps[len(text_parts) :]
        bits.append(-math.fsum(text_logps) / math.log(2))
        prompt = Prompt(name, WITHOUT_PROMPT, (), problem=f"text {name}")
        row = TokenRow((), [token for part in text_parts for token in part.rest])
        rollout = Rollout(prompt, 0, row, text_logps, written, "stop")
        rollouts.append(_scored(rollout, -bits[-1] / len(written.encode())))
    tokens_in_all, size = sum(len(rollout.logps) for rollout in rollouts), sum(len(one.encode()) for one in texts)
    loss = math.fsum(bits) * math.log(2) / tokens_in_all
    figures = {"bits_per_byte": math.fsum(bits) / size, "loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    return Measured(rollouts, _metrics(rollouts, seed) | figures)


def readable_questions(rows: Iterable[Mapping[str, Any]], where: str) -> list[Prompt]:
    """Return the prompts whose options include a right option. Print the number of other prompts."""
    prompts, faults = [], []
    for prompt in prompts_of(rows):
        try:
            _options(prompt)
            prompts.append(prompt)
        except ValueError as fault:
            faults.append(f"prompt {prompt.id}: {fault}")
    if not prompts:
        fix = 'Give each prompt info: {"options": [...]} with its answer among them, or remove `by: likelihood`'
        raise DataError(what=f"no prompt has options ({faults[0] if faults else 'no rows'})", where=where, fix=fix)
    if faults:
        print(f"{where}: {len(faults)} prompts are left out; {faults[0]}", file=sys.stderr)
    return prompts


def _options(prompt: Prompt) -> tuple[list[str], int]:
    """Return the options of a question and the index of the right one, given by text, label or index."""
    options: Any = prompt.info.get("options", prompt.info.get("choices"))
    labels: Any = string.ascii_uppercase
    if isinstance(options, dict):  # as ARC has them
        options, labels = options.get("text", []), options.get("label", labels)
    if not isinstance(options, list) or len(options) < 2 or not all(isinstance(option, str) for option in options):
        raise ValueError(f"info has no list of two or more options: {excerpt(json.dumps(dict(prompt.info)), 80)}")
    answer = prompt.answer.strip()
    for known in (options, list(labels), [str(place) for place in range(len(options))]):
        if answer in known[: len(options)]:
            return options, known.index(answer)
    raise ValueError(f"its answer {excerpt(answer, 40)} is neither one of its options nor an option's letter")


def _answers(text: ChatText, asked: Sequence[tuple[Prompt, str]]) -> list[Rollout]:
    """Return given answers as rollouts without log-probs."""
    talks = [
        Conversation([*prompt.messages, {"role": "assistant", "content": answer}], variables=prompt.variables)
        for prompt, answer in asked
    ]
    rows = text.conversations(talks, "last")
    if text.context is not None and (longest := max(map(len, rows), default=0)) > text.context:
        prompt, _ = asked[max(range(len(rows)), key=lambda place: len(rows[place]))]
        what = (
            f"prompt {prompt.id} and its answer have {longest} tokens, more than the model's context of {text.context}"
        )
        raise DataError(what=what, where="evaluate.runs", fix="Remove long prompts from the table")
    return [
        Rollout(prompt, 0, row, (), answer, "stop", [{"role": "assistant", "content": answer}])
        for (prompt, answer), row in zip(asked, rows, strict=True)
    ]


def _scored(rollout: Rollout, score: float, logps: Sequence[float] = ()) -> Rollout:
    return replace(rollout, logps=logps or rollout.logps, scores={LIKELIHOOD: Score(score)})


def _parts(ids: Sequence[int], context: int | None) -> Iterable[TokenRow]:
    """Yield a text as rows that fit the context. Each row starts with the last token of the row before."""
    width = len(ids) if context is None else context - 1
    for first in range(0, len(ids) - 1, width):
        yield TokenRow([ids[first]], list(ids[first + 1 : first + 1 + width]))


def _metrics(rollouts: Sequence[Rollout], seed: int) -> dict[str, float]:
    """Return the metrics of every evaluation, and with several tasks the score of each task."""
    scores = np.array([rollout.scores[LIKELIHOOD].value for rollout in rollouts])
    low, high = interval(scores, seed=seed, shares=is_outcome(scores))
    tasks = _places(pl.Series([rollout.prompt.task or "other" for rollout in rollouts]))
    by_task = (
        {f"score_{name}": float(scores[places].mean()) for name, places in tasks.items()} if len(tasks) > 1 else {}
    )
    length = _mean([len(rollout.row.trained) for rollout in rollouts])
    metrics = {"score": float(scores.mean()), "score_low": low, "score_high": high, **by_task}
    return metrics | {"parsed": 1.0, "truncated": 0.0, "length": length}


def _places(names: pl.Series) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names.to_list()):
        places.setdefault(name, []).append(place)
    return places


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
