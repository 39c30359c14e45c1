"""What a reward is: a function from rollouts to scores, with options of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ConfigDict, Field, SerializeAsAny

from posttrain.params import Params
from posttrain.rollout import Prompt, Rollout, Score

if TYPE_CHECKING:
    from posttrain.models.device import Device


class NoOptions(Params):
    """A reward without options."""


O = TypeVar("O", bound=Params)  # noqa: E741
Judge = Callable[[Sequence[Rollout]], Sequence[Score | float]]
"""A score for each rollout, in their order."""


@dataclass(frozen=True)
class Context:
    """What a reward may need beside its options."""

    device: Device
    where: str
    """The section of params.yaml that names the reward."""
    reward_model: Path | None = None


@dataclass(frozen=True)
class Reward(Generic[O]):
    """A reward by name in params.yaml.

    Example: `short = Reward(lambda options, context: lambda rollouts: [-len(one.text) / 100 for one in rollouts])`
    """

    judge: Callable[[O, Context], Judge]
    options: type[O] = field(default=NoOptions)  # type: ignore[assignment]
    unjudged: Callable[[Prompt, O], str | None] = lambda prompt, options: None  # noqa: ARG005
    """Why it cannot judge the answers to a prompt; None: it can."""
    form_only: bool = False
    """Whether it judges the form alone: a prompt that no other reward can judge is left out."""


def rule(
    options: type[O] = NoOptions,  # type: ignore[assignment]
    unjudged: Callable[[Prompt, O], str | None] = lambda prompt, options: None,  # noqa: ARG005
    *,
    form_only: bool = False,
) -> Callable[[Callable[[Rollout, O], Score | float]], Reward[O]]:
    """Make a reward of a function of one rollout and the options."""

    def made(function: Callable[[Rollout, O], Score | float]) -> Reward[O]:
        def judge(chosen: O, _: Context) -> Judge:
            return lambda rollouts: [function(one, chosen) for one in rollouts]

        return Reward(judge, options, unjudged, form_only)

    return made


class Term(Params):
    """A reward in a sum."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    reward: Reward[Any] = Field(exclude=True, repr=False, description="what judges")
    weight: float = Field(1.0, description="what its score is multiplied by; 0: measured, and not counted")
    options: SerializeAsAny[Params] = Field(default_factory=NoOptions, description="the reward's own options")

    def options_for(self, defaults: Mapping[str, Any]) -> Params:
        """The options, with a task's defaults where the user has set none."""
        own = {name: getattr(self.options, name) for name in self.options.model_fields_set}
        return type(self.options)(**{**defaults, **own})
