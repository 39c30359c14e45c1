"""The settings of `distill.runs`, and the objective and source that follow from them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from posttrain.algorithms.distillation import DISTILL_ROWS
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.errors import ParamsError
from posttrain.online.distill import DistillTraining, StudentConfig, TaughtTraining
from posttrain.online.served_teacher import TeacherServer
from posttrain.pipeline.params.slots import model_slot, table_of, table_slot
from posttrain.pipeline.runs.online import OnlineParams, PolicyRun
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import ONE, SEVERAL
from posttrain.settings.plain import NONE
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import BatchSource
from posttrain.train.run_config import Algorithms
from posttrain.train.tokenize_tables import demonstrations

SERVED: Final = "served"
"""What a teacher of an endpoint is called that has no name."""


def _form(value: Any) -> str:
    """Return whether it is one endpoint, or several by name."""
    several = isinstance(value, Mapping) and all(isinstance(one, Mapping | TeacherServer) for one in value.values())
    return SEVERAL if several or not isinstance(value, Mapping | TeacherServer) else ONE


Served = Annotated[
    Annotated[TeacherServer, Tag(ONE)] | Annotated[dict[str, TeacherServer], Field(min_length=1), Tag(SEVERAL)],
    Discriminator(_form),
]


class TaughtParams(StudentConfig, OnlineParams):
    """The settings of every run that has a teacher."""

    teacher: str = model_slot(
        "the model that is learned from, or a set of them (reward.sets)", optional=True, sets=True
    )
    served: Served | None = Field(
        None, description="an endpoint that has a teacher, or several by their names; without other ones teacher: none"
    )
    demonstrations: str = table_slot("chat", description="given answers to learn from, for own below 1", optional=True)

    @model_validator(mode="after")
    def _has_a_teacher(self) -> TaughtParams:
        if self.algorithm == "context_distill" and self.context is None:
            raise ValueError("context_distill needs context: the system turn that only the teacher sees")
        if self.served is None and self.teacher == NONE:
            raise ValueError("no teacher is named. Name a model of models/ as teacher, or an endpoint as served")
        if self.served is not None and self.temperature != 1:
            raise ValueError(
                f"temperature = {self.temperature:g} needs the logits of all tokens, and served gives some "
                "log-probs. Use 1"
            )
        if self.context is None and self.served is None and self.teacher == self.start:
            raise ValueError(f"teacher and start are both '{self.start}', so there is nothing to learn. Name another")
        return self

    @property
    def servers(self) -> dict[str, TeacherServer]:
        """The endpoints by the names of their teachers."""
        return {SERVED: self.served} if isinstance(self.served, TeacherServer) else self.served or {}

    def teachers_fault(self, models: Collection[str], where: str) -> Iterator[str]:
        """Yield what is wrong with the names and weights of the teachers, of which `models` are in models/."""
        if twice := {*models} & {*self.servers}:
            yield f"{where}.served has a teacher of the name {min(twice)}, as {self.teacher} has. Rename it"
        names = [*models, *self.servers]
        if self.weights is not None and {*self.weights} != {*names}:
            known = f"the teachers are {', '.join(names)}"
            yield f"{where}.weights name {', '.join(self.weights)}, and {known}. Give each a weight"
        elif self.weights is not None and len(names) == 1:
            yield f"{where}.weights share the divergence among teachers, and {names[0]} is the only one. Remove them"

    def shares(self, models: Collection[str], where: str) -> list[float]:
        """Return the share of the divergence of each model of these names, and of each served teacher after them."""
        for fault in self.teachers_fault(models, where):
            what, fix = fault.rsplit(". ", 1)
            raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
        names = [*models, *self.servers]
        weights = self.weights or dict.fromkeys(names, 1.0)
        return [weights[name] / sum(weights.values()) for name in names]


class DistillRun(TaughtParams, DistillTraining):
    """One run of `distill.runs`: a student that learns a teacher's distribution."""

    @model_validator(mode="after")
    def _complete(self) -> DistillRun:
        if self.own < 1 and self.demonstrations == NONE:
            raise ValueError(f"own = {self.own} learns from given answers too. Name a table of demonstrations")
        return self

    def source(self, samples: BatchSource, text: ChatText) -> BatchSource:
        """Own samples, demonstrations, or steps of both."""
        chat = table_of(self.demonstrations)
        if self.own == 1 or chat is None:
            return samples
        rows = read_table(chat, "chat").filter(split="train")
        return self.mixed(samples, demonstrations(text, rows, self, str(chat), "last"))

    def tables(self) -> list[Path]:
        """Return the demonstrations, where the run learns from them."""
        chat = table_of(self.demonstrations)
        return [] if chat is None else [chat]


class TaughtRun(TaughtParams, PolicyRun, TaughtTraining):
    """One run of `distill.runs` with a policy row: a policy that learns from its rewards and from a teacher."""

    demonstrations: Literal["none"] = Field(description="none: a policy row learns from own samples")
    corpus: Literal["none"] = Field("none", description="none: with a teacher there is no ptx")

    @model_validator(mode="after")
    def _starts_its_critic(self) -> TaughtRun:
        if self.critic != "start":
            raise ValueError(f"critic = {self.critic}: with a teacher the critic starts as the policy does. Use start")
        return self


DISTILL = Algorithms((DISTILL_ROWS, lambda _: DistillRun), (POLICY_ROWS, lambda _: TaughtRun))
