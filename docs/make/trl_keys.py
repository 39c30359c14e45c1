"""docs/make/trl_keys.json: every key of the config dataclasses of the TRL in .trl (`make env-trl`), with its default.

PYTHONPATH=.trl python -m docs.make.trl_keys
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("trl_keys.json")
Keys = dict[str, dict[str, Any]]


def keys() -> Keys:
    """Return for each key its default, and the classes that have it where these are not all trainers'."""
    import trl
    from transformers import TrainingArguments

    found: dict[str, Any] = {}
    own: dict[str, set[str]] = {}
    common = {field.name for field in fields(TrainingArguments)}
    for path in sorted(Path(trl.__path__[0]).glob("**/*_config.py")):
        module = import_module(".".join(("trl", *path.relative_to(trl.__path__[0]).with_suffix("").parts)))
        for kind in vars(module).values():
            if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__:
                for field in fields(kind):
                    found.setdefault(field.name, _default(field))
                    own.setdefault(field.name, set()).add(kind.__name__)
    return {
        name: {"default": found[name], "of": ["TrainingArguments"] if name in common else sorted(own[name])}
        for name in sorted(found)
    }


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return f"{field.default_factory.__name__}()" if hasattr(field.default_factory, "__name__") else "..."
    value = None if field.default is MISSING else field.default
    value = value.value if isinstance(value, Enum) else value
    return value if isinstance(value, bool | int | float | str | None) else str(value)


if __name__ == "__main__":
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(of)}" for name, of in keys().items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{FILE.name} renewed")
