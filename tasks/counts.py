"""The number of rows in each table and split of a generator."""

from __future__ import annotations

from pydantic import Field

from posttrain.data.columns import Kind, Split
from posttrain.settings.params import Params


class Counts(Params):
    """Base of generators with the tables `chat` and `prompts`. A mixture requests only its share of their rows."""

    demonstrations: int = Field(400, ge=0, description="training rows of `chat`")
    heldout_demonstrations: int = Field(40, ge=0, description="held-out rows of `chat`")
    prompts: int = Field(800, ge=0, description="training prompts")
    heldout_prompts: int = Field(100, ge=0, description="held-out prompts")
    test_prompts: int = Field(200, ge=0, description="test prompts")

    def sizes(self) -> dict[Kind, dict[Split, int]]:
        """Return the number of rows of each table and split."""
        return {kind: {split: getattr(self, name) for split, name in names.items()} for kind, names in COUNTED.items()}


COUNTED: dict[Kind, dict[Split, str]] = {
    "chat": {"train": "demonstrations", "heldout": "heldout_demonstrations"},
    "prompts": {"train": "prompts", "heldout": "heldout_prompts", "test": "test_prompts"},
}
"""Table -> split -> the parameter that says how many rows."""
