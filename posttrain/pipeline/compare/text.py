"""A comparison as text with tables, and as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from posttrain.measure.text_table import text_table
from posttrain.pipeline.compare.budgets import BUDGETS
from posttrain.pipeline.compare.comparison import Comparison, Mean, Pair, Training, verdict
from posttrain.pipeline.compare.moved import moved_lines
from posttrain.pipeline.compare.paired import Score
from posttrain.pipeline.compare.words import ABOUT_ONE_SEED, ONE_SEED

MOST_PAIRS, MOST_FALLS = 15, 3
UNITS = {"steps": "steps", "tokens": "tokens", "seconds": "s"}


def as_text(comparison: Comparison, score: Score, named: str | None = None) -> str:
    """Return the whole comparison for the terminal, with the conclusion last. `named`: the compared metric."""
    metric = score_title(score, named)
    parts = [f"{metric} on the same {comparison.prompts} held-out prompts", _means(comparison.means, metric)]
    labels = [mean.label for mean in comparison.means]
    if comparison.held_out:
        how = _how(comparison.held_out, seeds=any(mean.seeds > 1 for mean in comparison.means))
        pairs = _pairs(comparison.held_out, labels)
        parts.append(f"{metric}, first minus second. {how}\n{pairs}")
        parts += [ABOUT_ONE_SEED] * (ONE_SEED in pairs)
    parts += moved_lines(comparison.moved)
    if comparison.held_out:
        parts += _in_training(comparison.training, labels)
    return "\n\n".join([*parts, *(f"note: {note}" for note in comparison.notes), conclusion(comparison)])


def score_title(score: Score, named: str | None = None) -> str:
    """Return the title of a score, or of the metric with this name."""
    return named or "score" if score == "sampled" else f"greedy {named or 'score'}"


def conclusion(comparison: Comparison) -> str:
    """Return the conclusion as one line, with the guarded metrics that fell."""
    fallen = [f" But {fall}." for pair in comparison.held_out for fall in pair.falls]
    more = f" And {len(fallen) - MOST_FALLS} more." if len(fallen) > MOST_FALLS else ""
    return f"{_conclusion(comparison)}{''.join(fallen[:MOST_FALLS])}{more}"


def _conclusion(comparison: Comparison) -> str:
    labels = [mean.label for mean in comparison.means]
    if len(labels) == 1:
        return _only(comparison.means[0])
    if comparison.held_out and all(pair.same for pair in comparison.held_out):
        same = "completions" if all(pair.same == "completions" for pair in comparison.held_out) else "weights"
        if not any(pair.finding.mean for pair in comparison.held_out):
            return f"{' and '.join(labels)} are the same result: their {same} and scores are equal."
        return f"All have the same {same}, so a difference comes from the scoring, not from the settings."
    clear = [pair for pair in comparison.held_out if pair.finding.significant and not pair.same]
    beaten = {_loser(pair) for pair in clear if pair.finding.over_seeds}
    one_training = {_loser(pair) for pair in clear if not pair.finding.over_seeds} - beaten
    if not beaten:
        return _of_trainings(comparison, labels, one_training)
    rest = [place for place in range(len(labels)) if place not in beaten]
    unknown, worse = (_listed(labels, some) for some in (one_training, beaten))
    also = f" Worse in a single training, which does not judge the setting: {unknown}." if unknown else ""
    if len(rest) == 1:
        weights = comparison.means[rest[0]].weights
        brought = f" To fetch the weights of its best seed: `{weights}`." if weights else ""
        return f"Best on the held-out prompts: {labels[rest[0]]}.{brought}{also}"
    met = {frozenset((pair.left, pair.right)) for pair in comparison.held_out}
    apart = any(frozenset(pair) not in met for pair in combinations(rest, 2))
    head = (
        "Not worse than any compared setting, but not all were compared with each other" if apart else "Among the best"
    )
    clearly = "" if apart else ", with no clear difference"
    return f"{head}{clearly}: {_listed(labels, rest)}. Worse than another one: {worse}.{also}"


def _of_trainings(comparison: Comparison, labels: Sequence[str], beaten: set[int]) -> str:
    """Return the conclusion if no setting is worse over seeds. `beaten`: worse in a single training."""
    seeds = min(mean.seeds for mean in comparison.means)
    if not beaten:
        fix = "with one seed no setting can be judged" if seeds == 1 else f"there are {seeds} seeds per setting"
        return f"Cannot tell which setting is better: {fix}; run more seeds (docs/results.md)."
    rest = [place for place in range(len(labels)) if place not in beaten]
    best = f"Best training: {labels[rest[0]]}" if len(rest) == 1 else f"Best trainings: {_listed(labels, rest)}"
    return f"{best}. One training does not judge a setting, so run three to five seeds (docs/results.md)."


def _only(mean: Mean) -> str:
    """Return the conclusion about a single setting."""
    if mean.same:
        names = f"{', '.join(mean.names[:-1])} and {mean.names[-1]}"
        return f"{names} are the same result: their settings and {mean.same} are equal."
    return "There is only one setting: nothing to compare."


def _loser(pair: Pair) -> int:
    return pair.right if pair.finding.mean > 0 else pair.left


def _listed(labels: Sequence[str], places: Iterable[int]) -> str:
    return "; ".join(labels[place] for place in sorted(places))


def as_data(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data."""
    labels = [mean.label for mean in comparison.means]
    return {
        "prompts": comparison.prompts,
        "settings": [asdict(mean) for mean in comparison.means],
        "held_out": [_pair_data(pair, labels) for pair in comparison.held_out],
        "training": {
            training.at.budget: {
                "metric": training.at.metric,
                "amount": training.at.amount,
                "pairs": [
                    *(_pair_data(pair, labels) for pair in training.pairs),
                    *(_single(labels[left], labels[right]) for left, right in training.single),
                ],
            }
            if not training.at.why_not
            else {"cannot_tell": training.at.why_not}
            for training in comparison.training
        },
        "notes": comparison.notes,
        "moved": [asdict(pair) for pair in comparison.moved],
        "conclusion": conclusion(comparison),
    }


def _pair_data(pair: Pair, labels: Sequence[str]) -> dict[str, Any]:
    return {
        "left": labels[pair.left],
        "right": labels[pair.right],
        **asdict(pair.finding),
        "must_not_fall": [asdict(fall) for fall in pair.falls],
        "verdict": verdict(pair, labels),
    }


def _single(left: str, right: str) -> dict[str, str]:
    """Return a pair in which one side has one seed, so that its difference has no interval."""
    return {"left": left, "right": right, "verdict": f"cannot tell {ONE_SEED}"}


def _means(means: Sequence[Mean], metric: str) -> str:
    over = "prompts and seeds" if any(mean.seeds > 1 for mean in means) else "prompts"
    rows = [["setting", "seeds", metric, f"95 % over {over}", *BUDGETS]]
    for mean in means:
        interval = f"[{mean.low:.3f}, {mean.high:.3f}]"
        spent = [_amount(mean.spent[budget]) for budget in BUDGETS]
        rows.append([mean.label, str(mean.seeds), f"{mean.value:.3f}", interval, *spent])
    return "\n".join(text_table(rows))


def _how(pairs: Sequence[Pair], over: str = "", *, seeds: bool = False) -> str:
    over = over or ("prompts, and other seeds if a setting has several" if seeds else "prompts")
    corrected = f"corrected for {len(pairs)} comparison{'s' * (len(pairs) > 1)} (Holm)"
    return f"The intervals cover other {over}, not other test sets or start models. They are {corrected}"


def _pairs(pairs: Sequence[Pair], labels: Sequence[str]) -> str:
    ranked = sorted(pairs, key=lambda pair: pair.finding.p_value)
    rows = [["first", "second", "difference", "interval", "p", ""]]
    for pair in ranked[:MOST_PAIRS]:
        finding = pair.finding
        interval, p = (
            f"[{finding.low:+z.3f}, {finding.high:+z.3f}]",
            f"{finding.p_value:.3f}" if finding.p_value >= 0.001 else "<.001",
        )
        sides, mean = (labels[pair.left], labels[pair.right]), f"{finding.mean:+z.3f}"
        rows.append([*sides, mean, interval, p, verdict(pair, labels)])
    text = "\n".join(text_table(rows, left=(0, 1, 5)))
    hidden = len(ranked) - MOST_PAIRS
    return text if hidden <= 0 else f"{text}\n({hidden} more, less clear; --against NAME or --json shows them)"


def _in_training(trainings: Sequence[Training], labels: Sequence[str]) -> list[str]:
    """Return lines about the training metric; empty if the runs share none, e.g. sft and grpo."""
    return [_training(training, labels) for training in trainings if training.at.metric]


def _training(training: Training, labels: Sequence[str]) -> str:
    at = training.at
    if at.why_not:
        return f"In training at equal {at.budget}: cannot tell, {at.why_not}"
    head = f"In training at equal {at.budget} ({_amount(at.amount)} {UNITS[at.budget]})"
    if not training.pairs:
        return f"{head}: cannot tell, because each setting has one seed"
    about = f"{at.metric}, first minus second. {_how(training.pairs, 'seeds')}"
    single = f"\n({len(training.single)} more: cannot tell {ONE_SEED})" if training.single else ""
    return f"{head}: {about}\n{_pairs(training.pairs, labels)}{single}"


def _amount(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
