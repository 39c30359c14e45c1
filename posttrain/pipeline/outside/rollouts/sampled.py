"""One rollout from a reader of another library's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.data.shown import printable
from posttrain.data.turns import RowError, Turns, turns
from posttrain.errors import DataError
from posttrain.rollout import Finish, Score, TokenRow


@dataclass
class Sampled:
    """A completion with scores. Adjacent completions with the same `group` answer one prompt."""

    group: Any
    round: int
    prompt: Turns
    completion: str
    scores: dict[str, Score]
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of the rewards, if the file has them."""
    finish: Finish | None = None
    """How it ended; None: the file does not say."""
    step: int | None = None
    """The optimizer step that trained on it; None: no step did, or the file does not say."""
    version: str = ""
    advantage: float | None = None
    length: int | None = None
    """The number of sampled tokens."""
    tokens: tuple[TokenRow, Sequence[float]] | None = None
    """The tokens, and the log-probs of the sampled tokens."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    task: str = ""


def unreadable(file: Path, row: int | str, what: str, fix: str) -> DataError:
    """Return the error for a row of a file."""
    return DataError(what=printable(what), where=f"{file}, row {row}", fix=fix)


def turns_of(value: Any, name: str, file: Path, row: int | str) -> Turns:
    """Return a text or a conversation as turns."""
    try:
        return turns({name: value}, name)
    except RowError as error:
        raise unreadable(file, row, str(error), "Fix the row, or leave it out") from error


def text_of(answer: Turns) -> str:
    """Return the text of a completion; with several turns, all turns with their roles, as in `transcript`."""
    if len(answer) == 1:
        return answer[0][1]
    return "\n\n".join(f"{role}: {content}" for role, content in answer)
