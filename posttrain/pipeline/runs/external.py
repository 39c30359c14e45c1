"""The settings of `external.runs`, `external.rollouts` and `data.commands`, which run the user's own commands."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from posttrain.pipeline.params.slots import model_slot, table_slot
from posttrain.pipeline.processes.own_command import OwnCommand
from posttrain.pipeline.runs.readers import Format
from posttrain.pipeline.tables.sources import USER_KINDS, UserTables


class CommandRun(UserTables, OwnCommand):
    """One run of `data.commands`: your own command, and the table for each of its output files."""

    start: str = model_slot("a model that the command may use", optional=True)
    data: str = table_slot(*USER_KINDS, description="the table that the command reads", optional=True)


class ExternalRun(OwnCommand):
    """One run of `external.runs`: your own trainer as a command."""

    makes: Literal["model"] = Field("model", description="the files that the command writes into {out}")
    start: str = model_slot("the start model")
    data: str = table_slot(*USER_KINDS, description="the table that the command reads", optional=True)


class RolloutsRun(OwnCommand):
    """One run of `external.rollouts`: a command that writes or copies another library's rollouts into {out}."""

    format: Format = Field(
        description="format of the files: trl (completions_*.parquet), prime_rl (traces.jsonl), inspect (logs), or "
        "a plugin's"
    )
    start: str = model_slot("the model that sampled the rollouts; its tokenizer encodes them", optional=True)
    data: str = table_slot("prompts", description="the table that contains their prompts", optional=True)
    rewards: dict[str, float] = Field(
        {},
        description="weights of the rewards in the total; rewards not listed have weight 0; default: the weights in "
        "the files, or 1",
    )
