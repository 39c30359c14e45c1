"""The load-balancing loss of a mixture of experts over one optimizer step, and how its tokens were routed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from posttrain.errors import ParamsError
from posttrain.models.forward.forward import packed_states
from posttrain.models.forward.routers import Recording, RoutingSums, balance_loss, find_routers
from posttrain.models.sharding import gathered
from posttrain.params.params import Params
from posttrain.processes import world
from posttrain.text.packing import PackedRows


class RouterParams(Params):
    """The routers of a mixture of experts."""

    balance: float | None = Field(
        None, ge=0, description="weight of the policy's load-balancing loss; null: its config's router_aux_loss_coef"
    )


@dataclass(frozen=True)
class Routers:
    """The routers of the policy and the weight of its load-balancing loss; none of a dense model."""

    model: Any = None
    modules: tuple[nn.Module, ...] = ()
    balance: float = 0.0

    def record(self, packed: PackedRows) -> Recording:
        """Return a context that records one micro-batch's forward pass."""
        return Recording(self.model, self.modules, packed)


NO_ROUTERS = Routers()


def routers_of(model: Any, params: RouterParams, name: str) -> Routers:
    """Return the model's routers with the weight that the run's settings or the config give."""
    modules = find_routers(model)
    if not modules:
        if params.balance:
            what = f"router.balance = {params.balance:g} of {name}, and no routers were found in its model"
            raise ParamsError(what=what, where="params.yaml", fix="Remove it, or start from a mixture")
        return NO_ROUTERS
    own = getattr(model.config.get_text_config(), "router_aux_loss_coef", None) or 0.0
    return Routers(model, modules, own if params.balance is None else params.balance)


class StepRouting:
    """The routing of one optimizer step.

    f has no gradient and is that of the whole step, so the loss is a sum over tokens and does not depend on how the
    step is cut into micro-batches. A step of several micro-batches is routed once without gradient before.
    """

    def __init__(self, routers: Routers, tokens: int) -> None:
        """`tokens`: those of the step's rows, prompts included."""
        self._routers, self._tokens = routers, tokens
        self._load_LE: Tensor | None = None
        self._sums: RoutingSums | None = None

    @torch.no_grad()
    def look_ahead(self, parts: Sequence[PackedRows]) -> None:
        """Route the whole step, where the loss needs it and it is not all in one micro-batch."""
        if not self._routers.balance or len(parts) < 2:
            return
        chosen = []
        for packed, counts in world.split_across_ranks(parts):
            with self._routers.record(packed) as recording:
                gathered(self._routers.model, partial(packed_states, self._routers.model, packed))
            chosen.append(recording.sums().chosen_LE * counts)
        self._load_LE = world.added(torch.stack(chosen).sum(0)) / self._tokens

    def add(self, recording: Recording, *, counts: bool = True) -> Tensor | None:
        """Add a micro-batch, if it counts; its part of the loss with gradient, None where nothing is balanced."""
        if not self._routers.modules:
            return None
        sums = recording.sums()
        mine = sums.detach() if counts else sums.detach().times(0.0)
        self._sums = mine if self._sums is None else self._sums + mine
        if not self._routers.balance or not sums.probability_LE.requires_grad:
            return None
        load_LE = sums.chosen_LE / self._tokens if self._load_LE is None else self._load_LE
        return self._routers.balance * balance_loss(load_LE, sums.probability_LE / self._tokens)

    def loss(self) -> float:
        """Return the weighted loss of all micro-batches."""
        if not self._routers.modules or not self._routers.balance:
            return 0.0
        return self._routers.balance * float(self.metrics()["balance_loss"])

    def metrics(self) -> dict[str, Tensor]:
        """Return the loss, the mean entropy of the routers, and the largest and the smallest load of an expert.

        A load of 1 is the even share, 0 an expert that no token chose.
        """
        if self._sums is None:
            return {}
        sums = self._sums.of_all()
        load_LE = sums.chosen_LE / self._tokens
        relative_LE = load_LE / load_LE.mean(1, keepdim=True)
        return {
            "balance_loss": balance_loss(load_LE, sums.probability_LE / self._tokens),
            "router_entropy": sums.entropy_L.mean() / self._tokens,
            "expert_load_max": relative_LE.max(),
            "expert_load_min": relative_LE.min(),
        }
