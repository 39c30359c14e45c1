"""The table of data sources: each turns its parameters into the tables `corpus`, `chat` and `prompts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl
from pydantic import Field, field_validator, model_validator

from posttrain.measure.record import note
from posttrain.params import Params, did_you_mean
from posttrain.tables.identity import with_ids
from posttrain.tables.two_step import TwoStepParams, two_step
from posttrain.tables.user_data import FileTable as GivenParams
from posttrain.tables.user_data import load_table

__all__ = ["SOURCES", "GivenTables", "PrepareParams", "Tables"]

Tables = dict[str, pl.DataFrame]


class GivenTables(Params):
    """The user's own data, one place per table."""

    chat: GivenParams = Field(description="Demonstrations: messages, or prompt + completion")
    prompts: GivenParams = Field(description="Prompts, with an answer where something verifies it")
    corpus: GivenParams | None = Field(
        default=None, description="Texts for the base model; by default the text of the chat"
    )


class PrepareParams(Params):
    """Where the data comes from."""

    source: str = Field(default="two_step", description="A name of the table of sources")
    two_step: TwoStepParams = Field(
        default=TwoStepParams(), description="The miniature task, read when source is two_step"
    )
    given: GivenTables | None = Field(default=None, description="Your own data, read when source is given")

    @field_validator("source")
    @classmethod
    def _known(cls, source: str) -> str:
        if source not in SOURCES:
            raise ValueError(f"there is no such source. {did_you_mean(source, list(SOURCES))}")
        return source

    @model_validator(mode="after")
    def _has_section(self) -> PrepareParams:
        if (self.source == "given") != (self.given is not None):
            raise ValueError("'source: given' and the section 'given' belong together; set both or neither")
        return self


def _two_step(params: PrepareParams) -> Tables:
    note(seed=params.two_step.seed)
    return two_step(params.two_step)


def _given(params: PrepareParams) -> Tables:
    given = params.given
    if given is None:  # the validator of PrepareParams does not let this happen
        raise ValueError("the section 'given' is missing")
    chat = load_table(given.chat, "chat", "prepare.given.chat")
    prompts = load_table(given.prompts, "prompts", "prepare.given.prompts")
    corpus = _text_of(chat) if given.corpus is None else load_table(given.corpus, "corpus", "prepare.given.corpus")
    return {"corpus": corpus, "chat": chat, "prompts": prompts}


def _text_of(chat: pl.DataFrame) -> pl.DataFrame:
    """The conversations as plain documents, turns apart by an empty line."""
    content = pl.col("messages").list.eval(pl.element().struct.field("content"))
    documents = chat.select("split", text=content.list.join("\n\n"))
    return with_ids(documents.unique("text", keep="first", maintain_order=True), "corpus")


SOURCES: Final[dict[str, Callable[[PrepareParams], Tables]]] = {"two_step": _two_step, "given": _given}
