"""The settings of preference objectives, and the combinations of them that are rejected."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from posttrain.algorithms.objective import AlgorithmRow, typed
from posttrain.algorithms.preference.dpo import DPO
from posttrain.algorithms.preference_loss import LOSSES, PairLoss, UnaryLoss
from posttrain.settings.choices import OneOf, Options
from posttrain.settings.listing import Listing
from posttrain.settings.params import Params

LOSS: OneOf[PairLoss | UnaryLoss] = OneOf(LOSSES, DPO, own=(PairLoss, UnaryLoss))


class PreferenceConfig(Params):
    """The settings of a preference objective."""

    loss: Annotated[Options, LOSS] = Field(LOSS.chosen, description="the loss of a pair or a labelled answer")
    reference: bool = Field(True, description="use log-probs relative to the reference policy")
    reduce: Literal["sum", "mean"] = Field(
        "sum", description="combine log-probs over an answer's tokens by sum or mean"
    )
    nll: float = Field(0.0, ge=0, description="weight of the chosen answers' mean negative log-likelihood")
    parts: int = Field(
        1,
        ge=1,
        description="sDPO: number of parts of the data; each part's reference is the policy at the start of the part",
    )
    allow_unsupported: bool = Field(False, description="allow combinations that are rejected by default")

    @model_validator(mode="after")
    def _meaningful(self) -> PreferenceConfig:
        refused = refusal(self)
        if refused and not self.allow_unsupported:
            raise ValueError(f"{refused}, or allow_unsupported: true")
        return self

    @property
    def loss_entry(self) -> PairLoss | UnaryLoss:
        """The loss: an entry of LOSS, or the user's own loss."""
        return LOSS.entry(self.loss.type)

    @property
    def paired(self) -> bool:
        """True if it trains on pairs (table `pairs`), False for labelled answers (table `feedback`)."""
        return isinstance(self.loss_entry, PairLoss)


def refusal(config: PreferenceConfig) -> str | None:
    """Return the reason why a combination of valid settings is rejected, with the fix; None if it is allowed."""
    if config.loss.type == "orpo" and (config.reference or config.reduce != "mean"):
        return "orpo uses the odds of an answer's mean probability. Use reference false and reduce mean"
    if isinstance(config.loss_entry, PairLoss) and config.loss_entry.match is not None and not config.reference:
        return f"{config.loss.type} sorts log-probs relative to a reference. Use reference true"
    if not config.paired and not config.reference:
        return (
            f"{config.loss.type} compares an answer's shift from the reference with the shift elsewhere. "
            "Use reference true"
        )
    if config.parts > 1 and not config.reference:
        return "parts updates the reference, but reference is false. Use parts 1, or reference true"
    return None


PREFERENCE_ROWS: Listing[AlgorithmRow] = Listing("posttrain.algorithms.preference", "ROWS", typed(PreferenceConfig))
