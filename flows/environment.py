"""Environment variables of a deployment's runs, from Prefect's secrets and variables, e.g. the key of a judge.

    {"OPENAI_API_KEY": "secret/judge", "HF_HOME": "variable/models"}

The server keeps the values. A deployment has only their names, which its pages may show.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from posttrain.errors import ParamsError, PipelineError
from posttrain.measure.masking import is_secret

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WHERE = "env"


def check(entries: Mapping[str, str]) -> None:
    """Reject unreadable entries, and secrets in variables that logs would not hide."""
    for name, source in entries.items():
        kind, _, stored = source.partition("/")
        if not _NAME.fullmatch(name) or kind not in ("secret", "variable") or not stored:
            fix = "Write NAME=secret/BLOCK or NAME=variable/VARIABLE, e.g. OPENAI_API_KEY=secret/judge"
            raise ParamsError(what=f"'{name}={source}' does not refer to a stored value", where=_WHERE, fix=fix)
        if kind == "secret" and not is_secret(name, ""):
            fix = (
                "Use a name that ends with _KEY, _TOKEN, _SECRET or _PASSWORD, because logs hide the values of such "
                "names"
            )
            raise ParamsError(what=f"'{name}' is not a name for a secret", where=_WHERE, fix=fix)


def require(entries: Mapping[str, str]) -> None:
    """Raise if Prefect's server has no value for an entry, before a deployment is made with it."""
    for name, source in entries.items():
        _value(name, *source.split("/", 1))


def load(entries: Mapping[str, str]) -> None:
    """Set the variables of this process, which its stages inherit."""
    check(entries)
    os.environ |= {name: _value(name, *source.split("/", 1)) for name, source in entries.items()}


def _value(name: str, kind: str, stored: str) -> str:
    from prefect.blocks.system import Secret
    from prefect.variables import Variable

    value: Any = None
    if kind == "variable":
        value = Variable.get(stored)
    else:
        try:
            block: Any = Secret.load(stored)
            value = block.get()
        except ValueError:  # Prefect's error for a block that does not exist
            value = None
    if value is None:
        what = f"Prefect's server has no {kind} '{stored}'"
        page = "Variables" if kind == "variable" else "Blocks, as a block of type Secret"
        raise PipelineError(what=what, where=f"env: {name}", fix=f"Create it at {page}")
    return value if isinstance(value, str) else str(value)
