"""The settings of `distill.runs`, and the objective and batch source made from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from posttrain.algorithms.distillation import DISTILL_ROWS
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.online.distill import DistillTraining, StudentConfig, TaughtTraining
from posttrain.pipeline.params.slots import model_slot, table_of, table_slot
from posttrain.pipeline.runs.online import OnlineParams, PolicyRun
from posttrain.pipeline.tables.store import read_table
from posttrain.settings.plain import NONE
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from posttrain.train.run_config import Algorithms
from posttrain.train.tokenize_tables import demonstrations


class TaughtParams(StudentConfig, OnlineParams):
    """The settings of every run with a teacher."""

    teacher: str = model_slot(
        "the model that the student learns from, or a set of models (reward.sets)", optional=True, sets=True
    )
    demonstrations: str = table_slot("chat", description="given answers to train on, if own < 1", optional=True)

    @model_validator(mode="after")
    def _has_a_teacher(self) -> TaughtParams:
        if self.served is None and self.teacher == NONE:
            raise ValueError("no teacher is set. Set teacher to a model in models/, or served to an endpoint")
        if self.context is None and self.served is None and self.teacher == self.start:
            raise ValueError(
                f"teacher and start are both '{self.start}', so there is nothing to learn. Choose another teacher"
            )
        return self


class DistillRun(TaughtParams, DistillTraining):
    """One run of `distill.runs`: a student that learns a teacher's distribution."""

    @model_validator(mode="after")
    def _complete(self) -> DistillRun:
        if self.own < 1 and self.demonstrations == NONE:
            raise ValueError(f"own = {self.own} trains on given answers too. Set demonstrations to a table")
        return self

    def examples(self, text: ChatText) -> Sequence[Example]:
        """Return the demonstrations, if the run trains on them."""
        chat = table_of(self.demonstrations)
        if self.own == 1 or chat is None:
            return ()
        return demonstrations(text, read_table(chat, "chat").filter(split="train"), self, str(chat), "last")

    def tables(self) -> list[Path]:
        """Return the files of the demonstrations, if the run trains on them."""
        chat = table_of(self.demonstrations)
        return [] if chat is None else [chat]


class TaughtRun(TaughtParams, PolicyRun, TaughtTraining):
    """One run of `distill.runs` with a policy algorithm: the policy learns from its rewards and a teacher."""

    demonstrations: Literal["none"] = Field(description="none: a policy algorithm trains on its own samples")
    corpus: Literal["none"] = Field("none", description="none: runs with a teacher have no ptx")

    @model_validator(mode="after")
    def _starts_its_critic(self) -> TaughtRun:
        if self.critic != "start":
            raise ValueError(
                f"critic = {self.critic}: with a teacher, the critic must start from the policy. Use start"
            )
        return self


DISTILL = Algorithms((DISTILL_ROWS, lambda _: DistillRun), (POLICY_ROWS, lambda _: TaughtRun))
