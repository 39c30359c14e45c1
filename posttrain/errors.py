"""The classes of errors. Every message says what is wrong, where, and how to fix it."""

from __future__ import annotations

import errno
import re
from typing import Any, Final

"""How to fix an output that is damaged: to delete it would not do, as DVC may take it from a damaged cache again."""


FREE_MEMORY: Final = "Free memory, or raise the limits on memory and threads (`ulimit -v`, `ulimit -u`)"
DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_LACKING: Final = re.compile(
    r"allocate memory|out of memory|start new thread|Resource temporarily unavailable"
    r"|launch worker thread|ThreadPoolBuildError|WouldBlock"
)
"""Messages of Python, torch, pyarrow, polars and tokenizers when the system denies memory or a thread."""


def lacks_resources(error: BaseException) -> bool:
    """Tell whether an error means that memory or threads ran out.

    Such an error does not mean that a file is damaged.
    """
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOMEM, errno.EAGAIN)
    return _LACKING.search(str(error)) is not None


def excerpt(value: object, most: int = 60) -> str:
    """Return a value's repr, shortened. A shortened text keeps both quotes."""
    text = repr(value)
    if len(text) <= most:
        return text
    return repr(f"{value[: most - 5]}...") if isinstance(value, str) else f"{text[: most - 3]}..."


def shortened(text: str, most: int) -> str:
    """Return a text as one line of at most `most` characters. A longer text is cut before a word and ends in ` ...`.

    A number counts as one word, so it is never cut into another number.
    """
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    head, space, part = line[: most - len(_CUT) + 1].rpartition(" ")
    return f"{head if space else part[:-1].rstrip('0123456789.,')}{_CUT}"


_CUT: Final = " ..."


class PosttrainError(Exception):
    """A failure that the user can fix, printed without a traceback by the command line."""

    def __init__(self, *, what: str, where: str, fix: str) -> None:
        self.what, self.where, self.fix = what, where, fix
        self.document: dict[str, Any] = {}  # what `--json` prints next to the error
        ended = what.endswith(("?", "!", "."))
        super().__init__(f"{where}: {what}{'' if ended else '.'} {fix}")

    @property
    def code(self) -> str:
        """Return the kind of failure for programs, e.g. `params`.

        It comes from the name of the class here and does not change.
        """
        kind = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        return kind.__name__.removesuffix("Error").lower()

    def __reduce__(self) -> tuple[Any, ...]:
        """Let Ray, Dask and process pools pickle it. Exceptions are otherwise rebuilt from positional arguments."""
        return _rebuilt, (type(self), self.what, self.where, self.fix)


def _rebuilt(kind: type[PosttrainError], what: str, where: str, fix: str) -> PosttrainError:
    return kind(what=what, where=where, fix=fix)


def from_system(error: OSError, where: str) -> PipelineError:
    """Return an operating system error as a readable error.

    Re-raise an OSError without a number (raised by a library).
    """
    if error.errno is None:
        raise error
    fix = "Fix the file, its folder or their permissions and run it again"
    if error.errno in DISK_FULL:
        fix = "Free some disk space and run it again; earlier files are unchanged"
    elif lacks_resources(error):
        fix = FREE_MEMORY
    return PipelineError(what=str(error.strerror), where=str(error.filename or where), fix=fix)


class ParamsError(PosttrainError, ValueError):
    """A parameter is unknown, has the wrong type, is out of range or contradicts another parameter."""


class PluginError(ParamsError):
    """An installed plugin cannot be used. The message names its distribution."""


class TableError(PosttrainError, ValueError):
    """A table breaks its schema or a relation between tables."""


class DataError(PosttrainError, ValueError):
    """A data source cannot be read or does not contain what was requested."""


class ModelError(PosttrainError, ValueError):
    """A model folder is missing, damaged, or does not fit its tokenizer or its use."""


class TrainingError(PosttrainError, RuntimeError):
    """Training failed in a way that more steps cannot fix."""


class CheckpointError(PosttrainError, RuntimeError):
    """A checkpoint is damaged or belongs to other inputs."""


class RewardError(PosttrainError, RuntimeError):
    """A reward could not be computed."""


class PipelineError(PosttrainError, RuntimeError):
    """The pipeline's graph or its runner is in a state that a person must fix."""


class PackageError(PosttrainError, RuntimeError):
    """A package that a part of posttrain needs is not installed."""


class EngineError(PosttrainError, RuntimeError):
    """The server of an external engine did not start, died, or sent an answer that cannot be used."""
