"""`posttrain reward test`: the score of each row, and where a reward fails."""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from posttrain.data.shown import printable
from posttrain.errors import ParamsError, RewardError
from posttrain.pipeline.commands.reward.inputs import Subject, subject_of
from posttrain.pipeline.commands.reward.rows import Row, given_rows, readable_file, rollouts_of
from posttrain.pipeline.tables.readers import PLAIN, CsvDialect
from posttrain.rewards.score import RewardSum
from posttrain.rollout import FAILED
from posttrain.settings.user_code import CUSTOM

LEFT_OUT: Final = "left out"
"""Shown for prompts that the reward cannot judge: a run leaves them out."""
WANTED: Final = {"right": 1.0, "wrong": 0.0}
"""The scores of examples."""
SHOWN: Final = 100
"""Characters of a text on one line."""


@dataclass(frozen=True)
class Outcome:
    """What became of a row."""

    row: Row
    status: str
    value: float | None
    seconds: float
    reason: str = ""
    trace: str = ""

    @property
    def failed(self) -> bool:
        """Whether the reward gave no score, or an example another one than it has to have."""
        wanted = WANTED.get(self.row.expected, self.value)
        return self.status in FAILED or (self.status != LEFT_OUT and self.value != wanted)


def reward_test(
    name: str, table: str, options: Sequence[str], run: str | None, count: int, dialect: CsvDialect = PLAIN
) -> str:
    """Print the score of each row; the summary. RewardError if a row failed."""
    if count < 1:
        raise ParamsError(what=f"-n = {count}", where="reward test", fix="Give the number of rows, 1 or more")
    subject, file = subject_of(name, options, run), readable_file(table)
    text = subject.context.text
    if file.stem == "rollouts":
        rows = rollouts_of(file, count, text)
    else:
        rows = given_rows(file, count, subject.examples, text, dialect)
    outcomes = []
    for outcome in _outcomes(subject, rows):
        print("\n".join(_lines(outcome)), flush=True)
        outcomes.append(outcome)
    summary = _summary(outcomes)
    if failed := [outcome for outcome in outcomes if outcome.failed]:
        print(summary)
        what = f"{len(failed)} of {len(outcomes)} rows failed, the first is row {failed[0].row.number}"
        raise RewardError(what=what, where=f"reward '{name}'", fix="Fix the reward, its options or the row")
    return summary


def _outcomes(subject: Subject, rows: Sequence[Row]) -> Iterator[Outcome]:
    """Yield each row by itself; a function of all rollouts gets all rows at once."""
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
    """Return the rows as a run scores them."""
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
    """Return where the reward raises: it is called again in this process."""
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
    """Return the traceback from the user's own files on; of other code the last line."""
    frames = list(traceback.extract_tb(error.__traceback__))
    custom = CUSTOM.resolve()
    own = next((nth for nth, frame in enumerate(frames) if Path(frame.filename).resolve().is_relative_to(custom)), -1)
    return "".join(traceback.format_list(frames[own:])).replace(f"{Path.cwd()}/", "")


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
    """Return a text on one line, with its beginning and its end."""
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
    found = ", ".join(f"{count} {status}" for status, count in counts.items())
    return (
        f"{_counted(len(outcomes), 'row')}: {found}; {mean}; "
        f"slowest row {slowest.row.number} ({_time(slowest.seconds).strip()})"
    )
