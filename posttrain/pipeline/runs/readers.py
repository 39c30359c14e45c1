"""Readers of other libraries' rollouts, by the format in a run of `external.rollouts`. All are plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator

from posttrain.settings.listing import Listing, why_unknown

Reader = Callable[[Path], Iterator[Any]]
"""(folder) -> the completions in its files, each a `posttrain.pipeline.outside.rollouts.sampled.Sampled`."""


def _callable(name: str, value: Any) -> Reader:  # noqa: ARG001
    if not callable(value):
        raise TypeError(f"it is a {type(value).__name__}, but must be a function that takes a folder")
    reader: Reader = value
    return reader


READERS: Final[Listing[Reader]] = Listing("", "", group="readers", adopt=_callable)
"""Name of a format -> reader of its files."""


def _known(name: str) -> str:
    if name not in READERS:
        raise ValueError(". ".join(why_unknown(READERS, name)))
    return name


Format = Annotated[str, AfterValidator(_known)]
