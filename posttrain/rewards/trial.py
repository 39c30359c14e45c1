"""Try a reward on rows: print each score and where the reward fails."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import isroutine
from pathlib import Path
from typing import Any, Final, Literal

from posttrain.data.layouts import convert
from posttrain.data.shown import printable
from posttrain.data.turns import RowError, turns
from posttrain.errors import DataError, RewardError
from posttrain.rewards.catalog import Rewards
from posttrain.rewards.reward import Context, Examples, WeightedReward
from posttrain.rewards.scorable import known_completions, why_not_scorable
from posttrain.rewards.score import RewardSum
from posttrain.rollout import FAILED, Prompt, Rollout, TokenRow
from posttrain.settings.params import Params, check
from posttrain.settings.plain import CUSTOM
from posttrain.settings.user_code import is_import_path, load_object
from posttrain.tasks.task import load_task

LEFT_OUT: Final = "left out"
"""Shown for prompts that the reward cannot judge. A run leaves them out."""
WANTED: Final = {"right": 1.0, "wrong": 0.0}
"""The expected scores of examples."""
SHOWN: Final = 100
"""Characters of a text in one line."""


@dataclass(frozen=True)
class Row:
    """A row of the table, or an example of its prompt with its expected score."""

    number: int
    rollout: Rollout
    expected: Literal["right", "wrong", ""] = ""


class _Terms(Params):
    reward: Rewards


@dataclass(frozen=True)
class Subject:
    """A reward with its options and its context."""

    name: str
    term: WeightedReward
    context: Context

    @property
    def together(self) -> bool:
        """True if the reward is a function of all rollouts, which may compare them."""
        kind = self.term.type or self.name
        return is_import_path(kind) and isroutine(load_object(kind, "reward"))

    def sum(self) -> RewardSum:
        """Return the reward as runs use it."""
        return RewardSum({self.name: self.term}, self.context)

    def examples(self, prompt: Prompt) -> Examples:
        """Return a prompt's completions with known scores."""
        return known_completions(self.name, self.term, prompt)

    def cannot_score(self, prompt: Prompt) -> str | None:
        """Return the reason why a run would drop the prompt."""
        return why_not_scorable(self.name, self.term, prompt)

    def options(self, prompt: Prompt) -> Params:
        """Return the options for a prompt, including the defaults of its task."""
        return self.term.options_for(load_task(prompt.task).reward_options)


@dataclass(frozen=True)
class Outcome:
    """The result of a row."""

    row: Row
    status: str
    value: float | None
    seconds: float
    reason: str = ""
    trace: str = ""

    @property
    def failed(self) -> bool:
        """True if the reward gave no score, or an example got a score other than the expected score."""
        wanted = WANTED.get(self.row.expected, self.value)
        return self.status in FAILED or (self.status != LEFT_OUT and self.value != wanted)


def subject_term(name: str, given: Mapping[str, Any], where: str, file: str) -> WeightedReward:
    """Return the reward with this name and these options, checked like a run's settings."""
    return check(_Terms, {"reward": {name: given}}, where=where, file=file).reward[name]


def reward_report(subject: Subject, rows: Sequence[Row]) -> str:
    """Print the score of each row and return the summary. Raise RewardError if a row failed."""
    outcomes = []
    for outcome in _outcomes(subject, rows):
        print("\n".join(_lines(outcome)), flush=True)
        outcomes.append(outcome)
    summary = _summary(outcomes)
    if failed := [outcome for outcome in outcomes if outcome.failed]:
        print(summary)
        what = f"{len(failed)} of {len(outcomes)} rows failed, the first is row {failed[0].row.number}"
        raise RewardError(what=what, where=f"reward '{subject.name}'", fix="Fix the reward, its options or the row")
    return summary


def given_rows(rows: Iterable[tuple[int, Any]], file: str, examples: Callable[[Prompt], Examples]) -> list[Row]:
    """Return a file's rows with prompts and completions; or, for prompts without completions, their examples.

    A text instead of a row says why it cannot be read.
    """
    all_rows: list[Row] = []
    for number, row in rows:
        if isinstance(row, str):
            raise DataError(what=f"row {number}: {row}", where=file, fix="Fix the file")
        try:
            all_rows += _rows(number, row, examples)
        except RowError as error:
            raise DataError(what=f"row {number}: {error}", where=file, fix="Fix the file") from error
    if not all_rows:
        what = "it has no completions, and the reward has no examples for its prompts"
        raise DataError(what=what, where=file, fix="Add a column `completion`, or give a table of rollouts")
    return all_rows


def _rows(number: int, row: Mapping[str, Any], examples: Callable[[Prompt], Examples]) -> Iterator[Row]:
    converted = convert(row, "prompts")
    messages = [{"role": role, "content": content} for role, content in converted["prompt"]]
    name = str(row.get("id") or f"row {number}")
    prompt = Prompt(name, messages, (), converted["answer"], json.loads(converted["info"]), row.get("task") or "")
    if row.get("completion") is not None:
        yield Row(number, _rollout(prompt, turns(row, "completion")[-1][1], finish_of(row.get("truncated"))))
        return
    known = examples(prompt)
    yield from (Row(number, _rollout(prompt, text), "right") for text in known.right)
    yield from (Row(number, _rollout(prompt, text), "wrong") for text in known.wrong)


def _rollout(prompt: Prompt, text: str, finish: Literal["stop", "length"] = "stop") -> Rollout:
    """Return a rollout with unknown tokens."""
    return Rollout(prompt, 0, TokenRow((), ()), (), text, finish, ({"role": "assistant", "content": text},))


def finish_of(truncated: object) -> Literal["stop", "length"]:
    """Return how a completion ended, from its row's column `truncated`."""
    return "length" if truncated is True else "stop"


def _outcomes(subject: Subject, rows: Sequence[Row]) -> Iterator[Outcome]:
    """Yield the result of each row, scored alone. A function of all rollouts gets all rows at once."""
    reward, together = subject.sum(), []
    for row in rows:
        reason = subject.cannot_score(row.rollout.prompt)
        if reason is not None:
            yield Outcome(row, LEFT_OUT, None, 0.0, reason)
        elif subject.together:
            together.append(row)
        else:
            yield from _scored(reward, subject, [row])
    outcomes = _scored(reward, subject, together) if together else []
    # a function that fails for all is tried on each row alone, which shows the rows that it fails for
    alone = (
        [outcome for row in together for outcome in _scored(reward, subject, [row])]
        if any(outcome.failed for outcome in outcomes)
        else []
    )
    yield from alone if any(outcome.failed for outcome in alone) else outcomes


def _scored(reward: RewardSum, subject: Subject, rows: Sequence[Row]) -> list[Outcome]:
    """Return the results of the rows, scored as in a run."""
    began = time.perf_counter()
    rollouts = reward.score([row.rollout for row in rows])
    each = (time.perf_counter() - began) / len(rows)
    scores = [rollout.scores[subject.name] for rollout in rollouts]
    trace = _trace(subject, rows) if any(score.status == "error" for score in scores) else ""
    return [
        Outcome(row, score.status, None if score.status in FAILED else score.value, each, score.reason, trace)
        for row, score in zip(rows, scores, strict=True)
    ]


def _trace(subject: Subject, rows: Sequence[Row]) -> str:
    """Return where the reward raises. It is called again in this process."""
    reward, options = subject.term.reward, subject.options(rows[0].rollout.prompt)
    try:
        if reward.each is not None:
            returned: Any = reward.each(rows[0].rollout, options)
        else:
            returned = reward.score_fn(options, subject.context)([row.rollout for row in rows])
        if inspect.iscoroutine(returned):
            asyncio.run(returned)
    except Exception as error:  # noqa: BLE001  whatever the user's file raises is shown
        return _explained(error)
    return ""


def _explained(error: BaseException) -> str:
    """Return the traceback from the user's own files on; for other code, only the last line."""
    frames = list(traceback.extract_tb(error.__traceback__))
    custom = CUSTOM.resolve()
    first = next(
        (index for index, frame in enumerate(frames) if Path(frame.filename).resolve().is_relative_to(custom)), -1
    )
    return "".join(traceback.format_list(frames[first:])).replace(f"{Path.cwd()}/", "")


def _lines(result: Outcome) -> Iterator[str]:
    value = "" if result.value is None else f"{result.value:.3f}"
    wanted = f"  must be {WANTED[result.row.expected]:g}" if result.row.expected else ""
    reason = f"  {printable(result.reason)}" if result.reason else ""
    failed = "  FAILED" if result.failed else ""
    yield f"row {result.row.number:<4} {result.status:<14} {value:>7} {_time(result.seconds)}{wanted}{failed}{reason}"
    rollout = result.row.rollout
    yield f"  prompt      {_short(rollout.prompt.messages[-1]['content'])}"
    if rollout.prompt.answer:
        yield f"  answer      {_short(rollout.prompt.answer)}"
    yield f"  completion  {_short(rollout.text)}"
    if result.trace:
        yield from (f"  {line}" for line in result.trace.rstrip().splitlines())


def _short(text: str) -> str:
    """Return a text as one line, with its beginning and its end."""
    half = SHOWN // 2
    return printable(text if len(text) <= SHOWN else f"{text[:half]} ... {text[-half:]}")


def _time(seconds: float) -> str:
    return f"{seconds:7.2f} s" if seconds >= 1 else f"{1000 * seconds:6.1f} ms"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _summary(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.status for outcome in outcomes)
    values = [outcome.value for outcome in outcomes if outcome.value is not None]
    mean = f"mean {sum(values) / len(values):.3f} of {_counted(len(values), 'score')}" if values else "no score"
    slowest = max(outcomes, key=lambda outcome: outcome.seconds)
    statuses = ", ".join(f"{count} {status}" for status, count in counts.items())
    return (
        f"{_counted(len(outcomes), 'row')}: {statuses}; {mean}; "
        f"slowest row {slowest.row.number} ({_time(slowest.seconds).strip()})"
    )
