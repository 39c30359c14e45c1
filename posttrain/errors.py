"""One small tree of errors; every message says what is wrong, where, and how to mend it."""

from __future__ import annotations

from typing import Final

VERIFY: Final = "Run `python -m posttrain verify`, which finds and removes what is damaged, then `dvc repro`"
"""How to fix an output that is damaged: to delete it would not do, as DVC may take it from a damaged cache again."""


class PosttrainError(Exception):
    """A failure that the user can mend, printed without a traceback by the command line."""

    def __init__(self, *, what: str, where: str, mend: str) -> None:
        self.what, self.where, self.mend = what, where, mend
        ended = what.endswith(("?", "!", "."))
        super().__init__(f"{where}: {what}{'' if ended else '.'} {mend}")


class ParamsError(PosttrainError):
    """A parameter is unknown, of the wrong type, out of range or contradicts another."""


class TableError(PosttrainError):
    """A table breaks its schema or a relation between tables."""


class DataError(PosttrainError):
    """A data source cannot be read or cannot give what was asked of it."""


class ModelError(PosttrainError):
    """A model directory is missing, damaged or does not fit its tokenizer or its use."""


class TrainingError(PosttrainError):
    """Training went wrong in a way that more steps cannot mend."""


class CheckpointError(PosttrainError):
    """A checkpoint is damaged or belongs to other inputs."""


class RewardError(PosttrainError):
    """A reward could not be computed."""


class PipelineError(PosttrainError):
    """The pipeline's graph or its runner is in a state that needs a person."""
