"""Checks of a call's arguments: rows, columns, folders, a config. Each error shows what to write instead."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from posttrain.data.columns import Kind
from posttrain.data.layouts import LAYOUTS
from posttrain.data.shown import short_repr
from posttrain.errors import DataError, ModelError, ParamsError
from posttrain.settings.params import nearest

OTHER_NAMES: Final = {
    "prompt": ("question", "query", "problem", "instruction", "input", "text", "messages", "conversation"),
    "completion": ("response", "answer", "output", "target", "solution"),
    "messages": ("conversation", "dialogue", "turns", "chat"),
    "chosen": ("good", "preferred", "accepted", "winner", "better", "response_chosen"),
    "rejected": ("bad", "dispreferred", "loser", "worse", "response_rejected"),
    "label": ("good", "correct", "score", "preference"),
}
"""Our name of a column -> names that other data sets use for it."""
ON_THE_HUB: Final = re.compile(r"[\w.-]+/[\w.-]+")


def refuse_no_rows(given: Any, argument: str, what: str = "rows") -> None:
    """Reject an argument that is not a list: one text, one row, a file, a table of another library, a generator."""
    fix = f"Give a list of {what}"
    if isinstance(given, str | Path):
        raise DataError(what=f"this is one string, not {what}", where=argument, fix=fix)
    if isinstance(given, Mapping) and "train" in given:
        raise DataError(what="these are several splits", where=argument, fix=f'Give {argument}["train"]')
    if isinstance(given, Mapping):
        raise DataError(
            what=f"this is one row, not a list of {what}", where=argument, fix=f"Write [{short_repr(given)}]"
        )
    if hasattr(given, "to_dicts"):
        raise DataError(what="this is a polars table", where=argument, fix=f"Give {argument}.to_dicts()")
    if hasattr(given, "to_dict") and hasattr(given, "columns"):
        raise DataError(what="this is a pandas table", where=argument, fix=f'Give {argument}.to_dict("records")')
    if not hasattr(given, "__len__") or not hasattr(given, "__getitem__"):
        shown = "None" if given is None else f"of the type {type(given).__name__}"
        raise DataError(what=f"this is {shown}, not a list of {what}", where=argument, fix=fix)
    if not len(given):
        raise DataError(what=f"there are no {what}", where=argument, fix="Give at least one")


def rename_hint(row: Mapping[str, Any], kind: Kind) -> str:
    """Return a hint about the columns to rename if a row has a known layout under other names; else ""."""
    if any(all(row.get(name) is not None for name in layout) for layout in LAYOUTS[kind]):
        return ""
    for layout in LAYOUTS[kind]:
        free = [name for name in row if name not in layout and row[name] is not None]
        renamed: dict[str, str] = {}
        for name in layout:
            if row.get(name) is None and (other := _other_name(name, free)):
                renamed[other] = name
                free.remove(other)
        if renamed and all(row.get(name) is not None or name in renamed.values() for name in layout):
            return "".join(f"Rename '{other}' to '{name}'. " for other, name in renamed.items())
    return ""


def _other_name(name: str, free: Sequence[str]) -> str | None:
    """Return the column that is most likely ours under another name."""
    known = next((other for other in OTHER_NAMES.get(name, ()) if other in free), None)
    return known or nearest(name, free)


def model_folder(path: Any, argument: str) -> Path:
    """Return the argument as the path of a model folder; reject any other path."""
    if not isinstance(path, str | os.PathLike) or isinstance(path, bytes):
        shown = "None" if path is None else f"of the type {type(path).__name__}"
        fix = 'Give the folder of a model, e.g. "models/sft/main"'
        raise ModelError(what=f"it is {shown}, not a folder", where=argument, fix=fix)
    folder = Path(path)
    if folder.is_dir() and str(path):
        return folder
    where, fix = f"{argument} = {str(path)!r}", "Give the folder with its config.json, weights and tokenizer"
    if folder.is_file():
        raise ModelError(what="this is a file, not the folder of a model", where=where, fix=fix)
    if ON_THE_HUB.fullmatch(str(path)) and not folder.parent.is_dir():
        fix += f'. For a Hub model, give huggingface_hub.snapshot_download("{path}")'
    raise ModelError(
        what="the folder does not exist" + ("" if folder.is_absolute() else f" in {Path.cwd()}"), where=where, fix=fix
    )


def check_config(config: Any, kind: type[Any], call: str, others: Mapping[str, tuple[Any, Any]]) -> None:
    """Reject a config of the wrong class, and other arguments next to a config; `others`: name -> (given, default)."""
    if not isinstance(config, kind):
        what = f"it is a {type(config).__name__}, but {call} expects a {kind.__name__}"
        raise ParamsError(
            what=what, where="config", fix="Use the function for this config class (docs/reference/api.md)"
        )
    if twice := [name for name, (given, default) in others.items() if given != default]:
        what = f"config already contains all settings, so {', '.join(twice)} would be ignored"
        raise ParamsError(what=what, where="config", fix=f"Give config alone, or {', '.join(others)} without it")
