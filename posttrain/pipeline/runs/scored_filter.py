"""The settings of `data.filters` runs, which can filter rows by a reward's score too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field, model_validator

from posttrain.pipeline.params.slots import model_slot
from posttrain.pipeline.tables.filters import FilterRun
from posttrain.rewards.catalog import Rewards, need_a_weight, need_reward_model
from posttrain.rewards.scorable import row_fault
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.settings.plain import NONE
from posttrain.text.chat_template import row_variables

ANSWER = {"chat": "messages", "pairs": "chosen", "feedback": "completion"}
"""Kinds of tables with answers -> the column whose last turn is the scored answer."""


EXAMPLE: Final = {"id": "example", "problem": "", "messages": [{"role": "assistant", "content": "One and two."}]}
"""An example of a row without a question."""


class ScoredFilterRun(FilterRun):
    """The settings of one run: conditions on the rows, and on the scores of their answers."""

    reward_model: str = model_slot("the reward model behind reward `model`", optional=True, scores=True)
    reward: Rewards = Field(
        {}, description="weight of each reward by name; their sum is the score of a row's last answer"
    )
    min_score: float | None = Field(None, description="minimum score of a row's answer")
    best: int | None = Field(
        None, ge=1, description="maximum number of rows per prompt; the rows with the highest scores are kept"
    )

    @model_validator(mode="after")
    def _scores_what_it_chooses_by(self) -> ScoredFilterRun:
        if bool(self.reward) != (self.min_score is not None or self.best is not None):
            raise ValueError("min_score and best need reward, and reward needs one of them. Set both, or neither")
        if self.reward and not self.data.endswith(tuple(ANSWER)):
            raise ValueError(f"data = {self.data}: its rows have no answers to score. Use {', '.join(ANSWER)}")
        need_reward_model(self.reward, self.reward_model)
        if self.reward:
            need_a_weight(self.reward)
        elif self.against == NONE and not (self.near_duplicates or self.min_chars or self.max_chars):
            raise ValueError("no filter is set, so no row would be left out. Set one, e.g. near_duplicates: 0.8")
        if self.against == NONE and "ngram" in self.model_fields_set:
            raise ValueError(f"ngram = {self.ngram}: it needs a table in against, but against is none")
        for name, term in self.reward.items():
            if fault := row_fault(name, term, answered(EXAMPLE, "messages")):
                raise ValueError(f"reward.{name}: {fault}")
        return self


def answered(row: Mapping[str, Any], column: str) -> Rollout:
    """Return a table row as a rollout for rewards, without tokens."""
    turns = [*row.get("prompt", ()), *row[column]]
    before = max(place for place, turn in enumerate(turns) if turn["role"] == "assistant")
    prompt = Prompt(row["id"], turns[:before], (), problem=row["problem"], variables=row_variables(row))
    return Rollout(prompt, 0, TokenRow((), ()), (), turns[before]["content"], "stop", turns[before : before + 1])
