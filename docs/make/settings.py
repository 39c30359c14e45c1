"""The description of all settings that `posttrain params` reads: `python -m docs.make.settings` writes it."""

from __future__ import annotations

import json

from posttrain.pipeline.commands.params.describe import description
from posttrain.pipeline.commands.params.stored import FILE


def text() -> str:
    """Return the description as JSON."""
    return json.dumps(description(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"{FILE} written")
