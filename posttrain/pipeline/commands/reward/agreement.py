"""`posttrain reward agreement`: measure how far a judge's verdicts agree with labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from posttrain.errors import DataError, ParamsError
from posttrain.pipeline.checks.named_table import table_file
from posttrain.pipeline.commands.reward.rows import infos_of
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.rewards.judge.agreement import kappa
from posttrain.rewards.judge.judge import JudgeOptions, LanguageJudge
from posttrain.rewards.reward import TERM_KEYS
from posttrain.rewards.score import CUT
from posttrain.rewards.trial import finish_of
from posttrain.rollout import FAILED, Prompt, Rollout, Score, TokenRow
from posttrain.settings.params import check


def judge_agreement(table: str, judge: str, reward: str, rows: int, threshold: float) -> str:
    """Return Cohen's kappa of labels and verdicts, its interval, and the cost of the verdicts."""
    given = at(read(), judge)
    if not isinstance(given, Mapping):
        fix = "Give the key of a judge in params.yaml, e.g. online.runs.grpo.reward.judge"
        raise ParamsError(what="this is not a judge", where=judge, fix=fix)
    options = {name: value for name, value in given.items() if name not in TERM_KEYS}
    asked = LanguageJudge(check(JudgeOptions, options, where=judge, file=PARAMS_FILE), judge)
    labelled = _labelled(table, reward, rows)
    if not labelled:
        what, fix = "no row has a text and a label", f"Give feedback, or rollouts scored by the reward '{reward}'"
        raise DataError(what=what, where=table, fix=fix)
    scores = asked([rollout for rollout, _ in labelled])
    scored = [(*pair, score) for pair, score in zip(labelled, scores, strict=True) if _ok(score)]
    known = [(label, score.value >= threshold) for _, label, score in scored]
    lost = Counter(f"{score.status}: {score.reason}".removeprefix("ok: ") for score in scores if not _ok(score))
    if not known:
        reasons = "; ".join(f"{times} times {why}" for why, times in lost.most_common(3))
        fix = "Use a judge that can follow the verdict's format, and a prompt that fits its context"
        raise DataError(what=f"no verdict ({reasons})", where=judge, fix=fix)
    labels, verdicts = [label for label, _ in known], [verdict for _, verdict in known]
    try:
        value, low, high = kappa(labels, verdicts, [rollout.prompt.problem for rollout, _, _ in scored])
        result = f"kappa {value:.3f} [{low:.3f}, {high:.3f}]"
    except ValueError as error:
        result = f"no kappa ({error})"
    equal = sum(label == verdict for label, verdict in known) / len(known)
    lines = [
        f"{result} on {len(known)} rows of {table}: {equal:.1%} agree",
        f"labels: {sum(labels)} right; verdicts of {threshold:g} or more: {sum(verdicts)}",
        *(f"left out: {times} ({why})" for why, times in lost.most_common(3)),
        ", ".join(f"{name} {number:,.6g}" for name, number in asked.counts().items()),
    ]
    return "\n".join(lines)


def _ok(score: Score) -> bool:
    """Tell whether it is a verdict of the judge."""
    return score.status == "ok" and score.reason != CUT


def _labelled(table: str, reward: str, rows: int) -> list[tuple[Rollout, bool]]:
    """Return at most `rows` labelled completions, drawn at random."""
    path = table_file(table)
    if path.stem not in ("feedback", "rollouts"):
        fix = "Give NAME/feedback, or results/NAME/rollouts.parquet"
        raise DataError(what="only feedback and rollout tables have labels", where=table, fix=fix)
    frame = read_table(path, "feedback" if path.stem == "feedback" else "rollouts")
    drawn = frame.sample(fraction=1.0, shuffle=True, seed=0).iter_rows(named=True)
    if path.stem == "feedback":
        pairs = _of_feedback(drawn)
    else:
        pairs = _of_rollouts(drawn, reward, infos_of(path, set(frame["prompt_id"])))
    return [pair for pair, _ in zip(pairs, range(rows), strict=False)]


def _of_feedback(rows: Iterator[dict[str, Any]]) -> Iterator[tuple[Rollout, bool]]:
    for row in rows:
        text = row["completion"][-1]["content"]
        prompt = Prompt(row["id"], row["prompt"], (), problem=row["problem"])
        yield _rollout(prompt, text, row["completion"]), row["label"]


def _of_rollouts(
    rows: Iterator[dict[str, Any]], reward: str, infos: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[Rollout, bool]]:
    for row in rows:
        scores = {score["name"]: score for score in row["scores"]}
        if row["completion"] is not None and reward in scores and scores[reward]["status"] not in FAILED:
            name = row["prompt_id"]
            prompt = Prompt(name, row["prompt"], (), row["answer"], infos.get(name, {}), row["task"], row["problem"])
            rollout = _rollout(prompt, row["completion"], ())
            yield replace(rollout, finish=finish_of(row["truncated"])), scores[reward]["value"] >= 0.5


def _rollout(prompt: Prompt, text: str, turns: Any) -> Rollout:
    return Rollout(prompt, 0, TokenRow((), ()), (), text, "stop", turns)
