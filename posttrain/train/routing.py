"""The load-balancing loss of a mixture of experts over one optimizer step, and the routing of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from posttrain.algorithms.objective import STEP_COLUMNS
from posttrain.distributed import world
from posttrain.errors import ParamsError
from posttrain.models.forward.forward import packed_states, runs_in_rows
from posttrain.models.forward.routers import Recording, RoutingSums, balance_loss, find_routers
from posttrain.models.sharding import gathered
from posttrain.settings.host import HOST
from posttrain.settings.params import Params
from posttrain.text.packing import PackedRows

if TYPE_CHECKING:
    from posttrain.train.model_set import ModelSet
    from posttrain.train.step import Batch


class RouterParams(Params):
    """The routers of a mixture of experts."""

    balance: float | None = Field(
        None, ge=0, description="weight of the policy's load-balancing loss; null: its config's router_aux_loss_coef"
    )

    @property
    def replays(self) -> bool | Literal["sampler"]:
        """The source of the experts if each token keeps its experts from the start of its round; false: not kept."""
        return False

    @property
    def asks(self) -> Mapping[str, Literal["experts"]]:
        """`router.replay: sampler` -> `experts`, the ability that the engine needs; empty for other values."""
        return {"router.replay = sampler": "experts"} if self.replays == "sampler" else {}


class ReplayParams(RouterParams):
    """The routers of a run that takes several steps on a round of samples."""

    replay: bool | Literal["sampler"] = Field(
        False,
        description="each token keeps its experts for all steps on a round, so that only the weights change "
        "log-probs. true: experts that the policy chose at the start of the round (routing replay, Zheng 2025). "
        "sampler: experts that the engine chose while sampling, which only vllm reports (rollout routing replay, "
        "Ma 2025)",
    )

    @property
    def replays(self) -> bool | Literal["sampler"]:
        """The source of the experts if each token keeps its experts from the start of its round; false: not kept."""
        return self.replay


class Replaying(Protocol):
    """The settings that decide whether experts can be replayed."""

    @property
    def algorithm(self) -> str: ...

    @property
    def activations(self) -> str: ...

    @property
    def compile(self) -> bool: ...


def routing_refusal(params: Replaying, needs: frozenset[str]) -> str | None:
    """Return the reason why experts cannot be replayed in a run that needs these columns; None if they can."""
    if params.activations != "keep":
        return f"activations = {params.activations}, which recomputes layers with other experts"
    if params.compile:
        return "compile = true"
    return f"{params.algorithm} reads log-probs at the start of each step" if needs & STEP_COLUMNS else None


@dataclass(frozen=True)
class Routers:
    """The routers of the policy and the weight of its load-balancing loss; empty for a dense model."""

    model: Any = None
    modules: tuple[nn.Module, ...] = ()
    balance: float = 0.0
    replays: bool = False

    def record(self, packed: PackedRows) -> Recording:
        """Return a context that records the routing of one micro-batch's forward pass."""
        return Recording(self.model, self.modules, packed)


NO_ROUTERS = Routers()


def routers_of(model: Any, params: RouterParams, name: str) -> Routers:
    """Return the model's routers with the loss weight from the run's settings or the model's config."""
    modules = find_routers(model)
    if not modules:
        if params.balance or params.replays:
            key = f"balance = {params.balance:g}" if params.balance else _setting(params)
            what = f"router.{key} is set for {name}, but its model has no routers"
            raise ParamsError(what=what, where=HOST.settings_file, fix="Remove it, or start from a mixture")
        return NO_ROUTERS
    if params.replays and runs_in_rows(model):
        what = (
            f"router.{_setting(params)} is set for {name}, but its model cannot run packed, so experts cannot be "
            f"replayed"
        )
        raise ParamsError(what=what, where=HOST.settings_file, fix="Remove it")
    coefficient = getattr(model.config.get_text_config(), "router_aux_loss_coef", None) or 0.0
    return Routers(model, modules, coefficient if params.balance is None else params.balance, bool(params.replays))


def _setting(params: RouterParams) -> str:
    return f"replay = {str(params.replays).lower()}"


@torch.no_grad()
def with_experts(models: ModelSet, batch: Batch) -> Batch:
    """Return the batch with the experts that the current policy chooses for each token.

    Rows that already have a sampler's experts keep them.
    """
    if all(row.experts is not None for row in batch.rows):
        return batch
    routers, chosen = Routers(models.policy, find_routers(models.policy)), list[Tensor]()
    for micro in models.micro_batches(batch):
        packed = models.packed(micro)
        with routers.record(packed) as recording:
            gathered(models.policy, partial(packed_states, models.policy, packed))
        experts_NLK = recording.experts().to("cpu", torch.int16)
        chosen += [
            torch.cat([experts_NLK[start : start + length], experts_NLK[first : first + count]])
            for start, length, first, count in packed.spans
        ]
    rows = [replace(row, experts=experts) for row, experts in zip(batch.rows, chosen, strict=True)]
    return replace(batch, rows=rows)


class StepRouting:
    """The routing of one optimizer step.

    f has no gradient and is computed over the whole step, so the loss is a sum over tokens and does not depend on how
    the step is cut into micro-batches. A step of several micro-batches is first routed once without gradient.
    """

    def __init__(self, routers: Routers, tokens: int) -> None:
        """`tokens`: the number of tokens in the step's rows, including prompts."""
        self._routers, self._tokens = routers, tokens
        self._load_LE: Tensor | None = None
        self._sums: RoutingSums | None = None

    @torch.no_grad()
    def look_ahead(self, parts: Sequence[tuple[PackedRows, bool]]) -> None:
        """Route the whole step in advance, if the loss needs it and there are several micro-batches.

        `parts`: those of this process, and whether each counts.
        """
        if not self._routers.balance or len(parts) * world.count() < 2:
            return
        chosen = []
        for packed, counts in parts:
            with self._routers.record(packed) as recording:
                gathered(self._routers.model, partial(packed_states, self._routers.model, packed))
            chosen.append(recording.sums().chosen_LE * counts)
        self._load_LE = world.added(torch.stack(chosen).sum(0)) / self._tokens

    def add(self, recording: Recording, *, counts: bool = True) -> Tensor | None:
        """Add a micro-batch if it counts.

        Return its part of the loss with gradient; None if there is no balancing loss.
        """
        if not self._routers.modules:
            return None
        sums = recording.sums()
        counted = sums.detach() if counts else sums.detach().times(0.0)
        self._sums = counted if self._sums is None else self._sums + counted
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
        """Return the loss, the mean entropy of the routers, and the largest and smallest load of an expert.

        A load of 1 is an even share; 0 means that no token chose the expert.
        """
        if self._sums is None:
            return {}
        sums = self._sums.of_all()
        load_LE = sums.chosen_LE / self._tokens
        relative_LE = load_LE / load_LE.mean(1, keepdim=True)
        moved = {"router_moved": sums.moved_L.sum() / sums.chosen_LE.sum()} if self._routers.replays else {}
        return moved | {
            "balance_loss": balance_loss(load_LE, sums.probability_LE / self._tokens),
            "router_entropy": sums.entropy_L.mean() / self._tokens,
            "expert_load_max": relative_LE.max(),
            "expert_load_min": relative_LE.min(),
        }
