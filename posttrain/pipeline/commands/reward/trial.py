"""`posttrain reward test`: print the score of each row, and where a reward fails."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.errors import ParamsError
from posttrain.pipeline.commands.reward.inputs import subject_of
from posttrain.pipeline.commands.reward.rows import file_rows, readable_file, rollouts_of
from posttrain.pipeline.tables.readers import PLAIN, CsvDialect
from posttrain.rewards.trial import reward_report


def reward_test(
    name: str, table: str, options: Sequence[str], run: str | None, count: int, dialect: CsvDialect = PLAIN
) -> str:
    """Print the score of each row and return the summary. Raise RewardError if a row failed."""
    if count < 1:
        raise ParamsError(what=f"-n = {count}", where="reward test", fix="Give the number of rows, 1 or more")
    subject, file = subject_of(name, options, run), readable_file(table)
    text = subject.context.text
    if file.stem == "rollouts":
        return reward_report(subject, rollouts_of(file, count, text))
    return reward_report(subject, file_rows(file, count, subject.examples, text, dialect))
