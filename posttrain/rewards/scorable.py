"""Check that a run's rewards can judge its prompts and its first completions."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import polars as pl

from posttrain.errors import DataError, PosttrainError, RewardError, excerpt, shortened
from posttrain.rewards.reward import Examples, WeightedReward, score_one, weights
from posttrain.rollout import FAILED, Prompt, Rollout
from posttrain.settings.user_code import place_in_own_code
from posttrain.tasks.task import load_task

MOST_UNREAD = 0.3
"""The share of completions that a reward cannot read at which a warning is printed."""
MOST_ANSWERS: Final = 0.05
"""In a run that sets no reward, the largest share of training prompts whose answers `correct` cannot read."""
SHOWN: Final = 5
"""Maximum number of stored examples of unreadable answers."""
TEACH = "Train on demonstrations in this form (sft), or ask for it in the prompts (docs/rewards.md)"


def scorable_prompts(terms: Mapping[str, WeightedReward], prompts: Sequence[Prompt], where: str) -> list[Prompt]:
    """Return the prompts that all gates and a reward for more than form can judge.

    Print the number of dropped prompts.
    """
    counted = {name: terms[name] for name in weights(terms)} or dict(terms)
    judging = [name for name, term in counted.items() if term.outcome] or list(counted)
    gates = [name for name, term in terms.items() if term.gate]
    unscorable: dict[str, list[tuple[Prompt, str]]] = {}
    for name in dict.fromkeys([*judging, *gates]):
        unreadable = [
            (prompt, why) for prompt in prompts if (why := why_not_scorable(name, terms[name], prompt)) is not None
        ]
        if unreadable:
            unscorable[name] = unreadable
    if not unscorable:
        return list(prompts)
    ids = {name: {prompt.id for prompt, _ in pairs} for name, pairs in unscorable.items()}
    lost = set.intersection(*(ids.get(name, set()) for name in judging)).union(*(ids.get(name, ()) for name in gates))
    name, unreadable = next(iter(unscorable.items()))
    blank = not any(prompt.answer.strip() for prompt in prompts) and {why for _, why in unreadable} == {"empty"}
    if len(lost) == len(prompts) and blank:
        what = f"reward '{name}' compares with the prompt's answer, but no prompt has an answer"
        raise DataError(what=what, where=where, fix="Add answers, or use rewards without them, e.g. {model: 1.0}")
    first, why = next(((prompt, why) for prompt, why in unreadable if prompt.answer.strip()), unreadable[0])
    what = f"reward '{name}' cannot read {len(unreadable)} of {len(prompts)} answers, "
    what += f"the first is {excerpt(first.answer)} ({why}; prompt {first.id})"
    if len(lost) == len(prompts):
        fix = "Write answers that it can read, or remove the column and use another reward (docs/rewards.md)"
        raise DataError(what=what, where=where, fix=fix)
    rule = f"{len(lost)} prompts are left out" if lost else "only the other rewards judge them"
    print(f"{where}: {what}: {rule}", file=sys.stderr)
    return [prompt for prompt in prompts if prompt.id not in lost]


def judged_prompts(terms: Mapping[str, WeightedReward], prompts: Sequence[Prompt], where: str) -> list[Prompt]:
    """Return the same prompts; or, if prompts only lack answers, all prompts, which then have no score."""
    if any(prompt.answer.strip() for prompt in prompts) or not (unanswered := _need_answers(terms, prompts)):
        return scorable_prompts(terms, prompts, where)
    named = " and ".join(f"'{name}'" for name in unanswered)
    print(f"{where}: no prompt has an answer, so reward {named} is not measured", file=sys.stderr)
    return list(prompts)


def _need_answers(terms: Mapping[str, WeightedReward], prompts: Sequence[Prompt]) -> list[str]:
    """Return the rewards that only lack answers, for prompts without any; empty if a reward lacks something else."""
    lacking = {
        name: {why for prompt in prompts if (why := why_not_scorable(name, term, prompt)) is not None}
        for name, term in terms.items()
    }
    named = [name for name, why in lacking.items() if why]
    return named if all(lacking[name] == {"empty"} for name in named) else []


NOT_JUDGED: Final = "it does not judge this prompt"
"""The start of the reason if a reward cannot judge a prompt."""


def why_not_scorable(name: str, term: WeightedReward, prompt: Prompt) -> str | None:
    """Return the reason why a reward cannot judge the answers to a prompt; None if it can."""
    why = _said("cannot_score", name, term, prompt)
    return str(why) if why else None


def row_fault(name: str, term: WeightedReward, row: Rollout) -> str | None:
    """Return why a reward cannot score a table's answers. They have no tokens, no `answer` and no `info`.

    `row`: an example row.
    """
    if (mode := getattr(term.options, "mode", "score")) != "score":
        return f"mode {mode} compares samples of a prompt, but rows are scored separately. Use score"
    if (why := why_not_scorable(name, term, row.prompt)) is not None:
        return f"rows have no `answer` and no `info` ({why}). Use another reward"
    if term.reward.each is None or term.reward.in_workers(term.options):  # not one to be called in passing
        return None
    score = score_one(term.reward.each, row, term.options)
    return f"it does not score rows: {score.reason}. Use another reward" if score.status in FAILED else None


def known_completions(name: str, term: WeightedReward, prompt: Prompt) -> Examples:
    """Return a prompt's completions with known scores; none if the reward does not judge the prompt."""
    if why_not_scorable(name, term, prompt) is not None:
        return Examples()
    examples: Examples = _said("examples", name, term, prompt)
    return examples


def _said(what: Literal["cannot_score", "examples"], name: str, term: WeightedReward, prompt: Prompt) -> Any:
    """Return the result of one of the reward's functions for a prompt, with the options of the prompt's task."""
    options = term.options_for(load_task(prompt.task).reward_options)
    try:
        return getattr(term.reward, what)(prompt, options)
    except PosttrainError:
        raise
    except Exception as error:  # whatever a user's function raises
        raised = f"its `{what}` raised {type(error).__name__}: {shortened(str(error), 300)}"
        where, fix = f"reward '{name}', prompt {prompt.id}", "Fix it; POSTTRAIN_TRACEBACK=1 shows where"
        raise RewardError(what=f"{raised}{place_in_own_code(error)}", where=where, fix=fix) from error


def check_scorable(
    terms: Mapping[str, WeightedReward], rollouts: Sequence[Rollout], where: str, count: int | None = None
) -> None:
    """Reject completions (`count` in all) that no reward can read. Print the rewards that cannot read all or some."""
    counted = weights(terms)
    reasons = {name: _unread(name, rollouts) for name in counted}
    unread = [name for name in counted if len(reasons[name]) == len(rollouts)]
    say_unread(terms, rollouts, where)
    if not rollouts or not unread:
        return
    named = " and ".join(f"'{name}'" for name in sorted(unread))
    reason = rollouts[0].scores[unread[0]].reason
    what = f"none of {count or len(rollouts)} completions could be scored by {named}: {reason}; the first is "
    what += f"{excerpt(rollouts[0].text, 100)}"
    fix = TEACH
    cut = sum(rollout.truncated for rollout in rollouts)
    if cut > len(rollouts) / 2:
        fix = f"{cut} of {len(rollouts)} are truncated: raise sampling.max_tokens. {fix}"
    if len(unread) == len(counted):
        raise DataError(what=what, where=where, fix=fix)
    print(f"{where}: {what}. {fix}", file=sys.stderr)


def say_unread(terms: Mapping[str, WeightedReward], rollouts: Sequence[Rollout], where: str) -> None:
    """Print a line for each reward that cannot read many of the completions, with a fix."""
    for name in weights(terms):
        reasons = _unread(name, rollouts)
        if MOST_UNREAD * len(rollouts) <= len(reasons) < len(rollouts):
            what = f"'{name}' cannot read {len(reasons)} of {len(rollouts)} completions, which score 0"
            print(f"{where}: {what}: {Counter(reasons).most_common(1)[0][0]}. {TEACH}", file=sys.stderr)


def _unread(name: str, rollouts: Sequence[Rollout]) -> list[str]:
    """Return the reason for each completion that a reward cannot read."""
    return [rollout.scores[name].reason for rollout in rollouts if rollout.scores[name].status == "unparseable"]


class Unread(NamedTuple):
    """The number of training prompts whose answers cannot be read."""

    rows: int
    of: int
    examples: Sequence[str]
    """Some of their places, with the reasons."""


def unread_in(rows: pl.DataFrame, correct: WeightedReward) -> Unread:
    """Count the prompts whose answers cannot be read. Each answer is tried once. `correct`: the reward of this name."""
    examples, count = list[str](), 0
    same = rows.group_by("answer", "task", maintain_order=True).agg(pl.len().alias("rows"), pl.all().first())
    for row in same.iter_rows(named=True):
        if (why := why_unread(row, correct)) is not None:
            count += row["rows"]
            asked = row["prompt"][-1]["content"]
            examples.append(f"{excerpt(row['answer'], 60)} ({why}) of prompt {row['id']}: {excerpt(asked, 60)}")
    return Unread(count, rows.height, examples[:SHOWN])


def why_unread(row: Mapping[str, Any], correct: WeightedReward) -> str | None:
    """Return the reason why `correct` cannot read a row's answer; None if it can."""
    prompt = Prompt("", row["prompt"], (), row["answer"], json.loads(row["info"]), row["task"], row["problem"])
    return why_not_scorable("correct", correct, prompt)


def refuse_unread(unread: Unread | None, section: str, counted: str) -> None:
    """Reject a run without a reward if `correct` cannot read too many answers.

    `counted`: the rows that were counted.
    """
    if unread is None or unread.rows <= MOST_ANSWERS * unread.of:
        return
    learns = section.startswith("online.")
    what = f"it sets no reward, so {'training' if learns else 'its score'} uses `correct`, which cannot read "
    what += f"{unread.rows:,} of {unread.of:,} answers {counted}:"
    fix = (
        f"Set the reward {'to train on' if learns else 'that judges its completions'}, "
        "e.g. reward: {correct: {answer: exact}} for labels and other text, {correct: {answer: math}} for formulas "
        "(docs/rewards.md); "
        f"or write answers that it can read. At most {MOST_ANSWERS:.0%} may be left out"
    )
    raise DataError(what="\n  ".join([what, *unread.examples]), where=f"{section}.reward", fix=fix)
