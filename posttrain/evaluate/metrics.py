"""Compute the metrics of an evaluation from scored rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from posttrain.data.columns import SCORE, canonical
from posttrain.errors import DataError
from posttrain.evaluate.intervals import FAILED_COUNT, best_of_k, failures_note, part_figures, prompt_figures, sizes
from posttrain.rewards.reward import weights
from posttrain.rewards.scorable import NOT_JUDGED
from posttrain.rewards.score import RewardSum
from posttrain.rewards.usage import judge_metrics
from posttrain.rollout import FAILED, Rollout, Score
from posttrain.settings.user_code import place_in_own_code
from posttrain.tasks.task import load_task

UNREAD = "no completion has an answer that can be read and compared"
NOT_MEASURED = "the score is not measured, because no reward judges these prompts"


def evaluation_metrics(
    reward: RewardSum, sampled: Sequence[Rollout], greedy: Sequence[Rollout], seed: int
) -> dict[str, float]:
    """Return the score with its interval over prompts, the parts of the reward, and the task's own metrics.

    Completions without a score are excluded everywhere; `failed` is their share.
    """
    samples, count = len(sampled) // len(greedy), len(sampled)
    by_prompt = [sampled[start : start + samples] for start in range(0, count, samples)]
    known = [[reward.total(rollout) for rollout in of_prompt if not reward.failure(rollout)] for of_prompt in by_prompt]
    sampled = [rollout for rollout in sampled if not reward.failure(rollout)]
    greedy = [rollout for rollout in greedy if not reward.failure(rollout)]
    scores = [score for of_prompt in known for score in of_prompt]
    metrics = prompt_figures(known, samples, seed)
    metrics |= _majority(reward, by_prompt, samples) | _best_of(reward, by_prompt, samples)
    if len(sampled) < count:
        metrics["failed"] = 1 - len(sampled) / count
    counted = [name for name in reward.terms if name in weights(reward.terms)]
    if all(one.scores[name].reason.startswith(NOT_JUDGED) for one in sampled for name in counted):
        metrics["judged"] = 0.0
    metrics["greedy"] = float(np.mean([reward.total(rollout) for rollout in greedy])) if greedy else math.nan
    return metrics | {
        **_parts(reward, by_prompt, seed),
        "parsed": float(np.mean([status(reward, rollout) == "ok" for rollout in sampled])),
        "truncated": float(np.mean([rollout.truncated for rollout in sampled])),
        "length": float(np.mean([len(rollout.logps) for rollout in sampled])),
        **_task_metrics(sampled, scores),
        **judge_metrics(),
    }


def _parts(reward: RewardSum, by_prompt: Sequence[Sequence[Rollout]], seed: int) -> dict[str, float]:
    """Return each part of the reward and each metric.

    If only one part has a weight, it is the score and is left out.
    """
    metrics: dict[str, float] = {}
    for name in (name for name in reward.terms if [*weights(reward.terms)] != [name]):
        scores = [
            [rollout.scores[name] for rollout in of_prompt if not reward.failure(rollout)] for of_prompt in by_prompt
        ]
        values = [[score.known for score in of_prompt] for of_prompt in scores]
        metrics |= part_figures(f"reward_{name}", values, seed)
    return metrics


def _majority(reward: RewardSum, by_prompt: Sequence[Sequence[Rollout]], samples: int) -> dict[str, float]:
    """Return the score of the most frequent answer among k samples (Wang 2023)."""
    judging = [name for name, term in reward.terms.items() if term.counted and not term.judges_form]
    if len(judging) != 1 or not any(
        rollout.scores[judging[0]].answer for of_prompt in by_prompt for rollout in of_prompt
    ):
        return {}
    metrics: dict[str, float] = {}
    scores = [[rollout.scores[judging[0]] for rollout in of_prompt] for of_prompt in by_prompt]
    for k in sizes(samples)[1:]:
        parts = [of_prompt[start : start + k] for of_prompt in scores for start in range(0, len(of_prompt) - k + 1, k)]
        votes = [_voted(part) for part in parts if any(score.status not in FAILED for score in part)]
        if votes:
            metrics[f"maj_at_{k}"] = math.fsum(votes) / len(votes)
    return metrics


def _voted(scores: Sequence[Score]) -> float:
    """Return the score of the most frequent answer; the mean if several tie.

    Right answers count as one answer; 0: no answer.
    """
    votes: dict[str, list[float]] = {}
    for score in scores:
        if score.answer and score.status not in FAILED:
            votes.setdefault("" if score.value >= 1 else score.answer, []).append(score.value)
    most = max(map(len, votes.values()), default=0)
    winners = [values for values in votes.values() if len(values) == most]
    return math.fsum(math.fsum(values) / most for values in winners) / len(winners) if winners else 0.0


def _best_of(reward: RewardSum, by_prompt: Sequence[Sequence[Rollout]], samples: int) -> dict[str, float]:
    """Return the score of the best of k samples, chosen by each score with weight 0, e.g.

    `model: 0.0`, or by context.
    """
    metrics: dict[str, float] = {}
    others = [name for name, term in reward.terms.items() if not (term.counted or term.gate or term.judges_form)]
    for name in others + [name for name in by_prompt[0][0].scores if name not in reward.terms]:
        known = [
            [
                rollout
                for rollout in of_prompt
                if not reward.failure(rollout) and rollout.scores[name].status not in FAILED
            ]
            for of_prompt in by_prompt
        ]
        for k in sizes(samples)[1:]:
            best = [
                best_of_k(
                    np.array([rollout.scores[name].value for rollout in of_prompt]),
                    np.array([reward.total(rollout) for rollout in of_prompt]),
                    k,
                )
                for of_prompt in known
                if len(of_prompt) >= k
            ]
            if best:
                metrics[f"best_of_{k}_by_{name}"] = math.fsum(best) / len(best)
    return metrics


def status(reward: RewardSum, rollout: Rollout) -> str:
    """Return ok if every counted reward scored it; else the status of a failed reward, or the first other status."""
    if failed := reward.failure(rollout):
        return failed[1].status
    statuses = [rollout.scores[name].status for name in weights(reward.terms)]
    return next((other for other in statuses if other != "ok"), "ok")


def _task_metrics(rollouts: Sequence[Rollout], scores: Sequence[float]) -> dict[str, float]:
    """Return the metrics of the task if all prompts share one; with several tasks, the score of each."""
    names = dict.fromkeys(rollout.prompt.task for rollout in rollouts)
    metrics: dict[str, float] = {}
    for name in names:
        members = [place for place, rollout in enumerate(rollouts) if rollout.prompt.task == name]
        member_scores = [scores[place] for place in members]
        figures = _figures(name, [rollouts[place] for place in members], member_scores)
        metrics |= figures if len(names) == 1 else {f"score_{name or 'other'}": float(np.mean(member_scores))}
    return metrics


def _figures(name: str, rollouts: Sequence[Rollout], scores: Sequence[float]) -> dict[str, float]:
    """Return the task's own metrics after checking that they are finite numbers."""
    try:
        metrics = {str(key): float(value) for key, value in load_task(name).metrics(rollouts, scores).items()}
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        what = f"its metrics raised {type(error).__name__}: {error}{place_in_own_code(error)}"
        fix = "Fix the task: metrics returns a mapping of names to numbers"
        raise DataError(what=what, where=f"task '{name}'", fix=fix) from error
    if odd := [key for key, value in metrics.items() if not math.isfinite(value)]:
        what = f"its metrics {', '.join(odd)} are not finite"
        raise DataError(what=what, where=f"task '{name}'", fix="Return finite numbers, or leave them out")
    return metrics


def rollouts_table(policy: str, rollouts: Sequence[Rollout], reward: RewardSum | None, *, greedy: bool) -> pl.DataFrame:
    """Return scored rollouts as a table without ids. Without a reward, each rollout only has its own `value`."""
    scores = [
        [{"name": name, "value": score.known, "status": score.status} for name, score in rollout.scores.items()]
        for rollout in rollouts
    ]
    table = pl.DataFrame(
        {
            "prompt_id": [rollout.prompt.id for rollout in rollouts],
            "problem": [rollout.prompt.problem for rollout in rollouts],
            "policy": [policy] * len(rollouts),
            "sample": [rollout.sample for rollout in rollouts],
            "greedy": [greedy] * len(rollouts),
            "prompt": [[dict(turn) for turn in rollout.prompt.messages] for rollout in rollouts],
            "answer": [rollout.prompt.answer for rollout in rollouts],
            "task": [rollout.prompt.task for rollout in rollouts],
            "completion": [rollout.transcript for rollout in rollouts],
            "completion_ids": [list(rollout.row.rest) for rollout in rollouts],
            "mask": [
                [True] * len(rollout.row.rest) if rollout.row.mask is None else list(rollout.row.mask)
                for rollout in rollouts
            ],
            "logps": pl.Series([list(rollout.logps) or None for rollout in rollouts], dtype=pl.List(pl.Float32)),
            "truncated": [rollout.truncated for rollout in rollouts],
            "reward": pl.Series([_total(reward, rollout) for rollout in rollouts], dtype=pl.Float64),
            "status": ["ok" if reward is None else status(reward, rollout) for rollout in rollouts],
            "scores": pl.Series(scores, dtype=pl.List(SCORE)),
        }
    )
    if not any(load_task(rollout.prompt.task).has_turns for rollout in rollouts):
        return table
    return table.with_columns(
        pl.Series("turn_rewards", [list(rollout.turn_rewards) for rollout in rollouts], dtype=pl.List(pl.Float64)),
        pl.Series("info", [canonical(dict(rollout.info)) for rollout in rollouts], dtype=pl.String),
    )


def _total(reward: RewardSum | None, rollout: Rollout) -> float | None:
    if reward is None:
        (score,) = rollout.scores.values()
        return score.value
    return None if reward.failure(rollout) else float(reward.total(rollout))


def summary(label: str, metrics: dict[str, float]) -> str:
    """Return the metrics as one line of text."""
    if metrics.get("judged") == 0:
        return f"{label}: {NOT_MEASURED}, length {metrics['length']:.1f}"
    name = "pass@1" if "pass_at_1" in metrics else "score"
    ends = ("_low", "_high", FAILED_COUNT)
    parts = [key for key in metrics if key.startswith(("score_", "reward_")) and not key.endswith(ends)]
    shown = "".join(f"{key.partition('_')[2]} {metrics[key]:.3f}{failures_note(metrics, key)}, " for key in parts)
    greedy = f"greedy {metrics['greedy']:.3f}, " if "greedy" in metrics else ""
    unread = "" if metrics["parsed"] else f" ({UNREAD})"
    return (
        f"{label}: {name} {metrics['score']:.3f} [{metrics['score_low']:.3f}, {metrics['score_high']:.3f}]{unread}, "
        f"{greedy}{shown}length {metrics['length']:.1f}"
    )
