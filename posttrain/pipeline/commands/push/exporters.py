"""Formats in which `posttrain push` can write a model. All are plugins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from posttrain.settings.listing import Listing, instance
from posttrain.text.chat_template import Message

Dtype = Literal["float16", "float32"]


@dataclass(frozen=True)
class Exporter:
    """Writes a model as a file of another format."""

    write: Callable[[Path, str, list[list[Message]], Path, Dtype], str]
    """(folder of the model, its name, conversations to check the file on, the file, number format) -> a line for the
    terminal. The file appears completely or not at all."""
    ending: str
    """The file name suffix, e.g. `.gguf`."""


EXPORTERS: Final[Listing[Exporter]] = Listing("", "", group="exporters", adopt=instance(Exporter))
"""Name of a format -> exporter."""
