"""Check the argument `config` of a call: it has the call's class, and no other settings are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.errors import ParamsError


def check_config(config: Any, kind: type[Any], call: str, others: Mapping[str, tuple[Any, Any]]) -> None:
    """Reject a config of another class, and other arguments next to it; `others`: name -> (given, default)."""
    if not isinstance(config, kind):
        what = f"it is a {type(config).__name__}, and {call} takes a {kind.__name__}"
        raise ParamsError(what=what, where="config", fix="Use the call that its class is for (docs/reference/api.md)")
    if twice := [name for name, (given, default) in others.items() if given != default]:
        what = f"config has all settings, so {', '.join(twice)} would be ignored"
        raise ParamsError(what=what, where="config", fix=f"Give config alone, or {', '.join(others)} without it")
