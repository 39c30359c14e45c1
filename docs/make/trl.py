"""The tables of docs/reference/trl.md: keys of TRL, verl and OpenRLHF, and ours. What is below them is written by hand.

python -m docs.make.trl
"""

from __future__ import annotations

import json
from pathlib import Path

from posttrain.settings.other_names import OURS
from posttrain.settings.trl_names import NONE, TRL

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/trl.md"
KEYS = Path(__file__).with_name("trl_keys.json")
REST = "## Where other libraries differ"
HEAD = """# Keys of TRL, verl and OpenRLHF, and where they differ

The guide is [coming from TRL](../trl.md). The tables of keys are made by `python -m docs.make.trl`.

## Keys of TRL

The keys of all configs of TRL 1.16, those of transformers' `TrainingArguments` among them. Several of ours in a cell:
which one depends on the section; `posttrain params online` has them with their defaults.

| TRL | default there | ours | the value |
|---|---|---|---|"""
NOWHERE = """
### Without an equivalent here

| why | keys of TRL |
|---|---|"""
OTHERS = """
## Keys of verl and OpenRLHF

| ours | there |
|---|---|"""


def page(old: str) -> str:
    """Return the page with its tables renewed."""
    defaults = json.loads(KEYS.read_text(encoding="utf-8"))
    lines = [HEAD]
    for name, (ours, note) in sorted(TRL.items()):
        if ours:
            there = json.dumps(defaults[name]["default"])
            lines.append(f"| `{name}` | `{there}` | {_code(ours)} | {note} |")
    lines += [NOWHERE, *(f"| {reason} | {_code(names.split())} |" for reason, names in NONE.items()), OTHERS]
    places: dict[tuple[str, ...], list[str]] = {}
    for name, ours in OURS.items():
        places.setdefault(ours, []).append(name)
    lines += [f"| {_code(ours)} | {_code(names)} |" for ours, names in places.items()]
    return "\n".join([*lines, "", REST]) + old.partition(REST)[2]


def _code(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} renewed")
