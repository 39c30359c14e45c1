"""Named runs of params.yaml: a row of an algorithm table with some of its knobs replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from posttrain.errors import ParamsError
from posttrain.params import PARAMS_FILE, Params, at, check, did_you_mean, read
from posttrain.workspace import MODEL_NAME, model_path

P = TypeVar("P", bound=Params)


class Row(Protocol):
    """What every algorithm table holds."""

    def laid(self, over: Mapping[str, Any]) -> dict[str, Any]: ...


def load_run(model: type[P], section: str, rows: Mapping[str, Row]) -> P:
    """The run's own settings laid on those of its algorithm's row, typed and checked."""
    own = at(read(), section)
    if not isinstance(own, dict) or not isinstance(own.get("algorithm"), str):
        mend = f"Give it an algorithm, one of: {', '.join(rows)}"
        raise ParamsError(what=f"{section} names no algorithm", where=PARAMS_FILE, mend=mend)
    if own["algorithm"] not in rows:
        mend = did_you_mean(own["algorithm"], list(rows))
        raise ParamsError(what=f"{section}.algorithm = '{own['algorithm']}' is unknown", where=PARAMS_FILE, mend=mend)
    return check(model, rows[own["algorithm"]].laid(own), where=section)


def start_path(start: str, section: str) -> Path:
    """The folder of the model that a run starts from."""
    if not re.match(MODEL_NAME, start):
        mend = "Use a folder under models/, e.g. sft"
        raise ParamsError(what=f"{section}.start = '{start}' leaves models/", where=PARAMS_FILE, mend=mend)
    return model_path(start)
