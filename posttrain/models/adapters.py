"""Adapters: small trained matrices next to a frozen model's matrices, in PEFT's layers. This file works without peft.

y = x W^T + (alpha / rank) (x A^T) B^T     LoRA; B starts at 0, so training starts from the frozen model
y = x (m / |W'| W')^T, W' = W + (alpha / rank) B A     DoRA; |.| of each row, m starts at |W|
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from posttrain.errors import ModelError
from posttrain.models.forward.forward import backbone
from posttrain.models.nf4 import Nf4Linear
from posttrain.settings.choices import OneOf, Options
from posttrain.settings.listing import Listing

INSTALL = "Install the extra `lora`: python -m pip install -c constraints.txt peft accelerate"
ADAPTER = "default"
"""The adapter's name in peft's layers."""


ALL_LINEAR = "all-linear"


class NoAdapter(Options):
    """All weights are trained."""

    type: Literal["none"] = "none"


class LoraOptions(Options):
    """A low-rank adapter on linear layers."""

    type: Literal["lora", "dora", "qlora"] = "lora"
    rank: int = Field(32, ge=1, le=4096, description="rank of each matrix's update")
    alpha: int = Field(32, ge=1, description="the update is multiplied by alpha / rank")
    rslora: bool = Field(False, description="scale by alpha / sqrt(rank) instead: ranks above 64 learn as much")
    targets: str | list[str] = Field(
        ALL_LINEAR,
        min_length=1,
        description="linear layers with an adapter: all, except the head and a mixture's routers and experts; or "
        "names such as q_proj",
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout on the adapter's input; not allowed in runs that sample"
    )
    merge: bool = Field(False, description="save the whole model with the adapter merged")


@dataclass(frozen=True)
class AdapterRow:
    """A kind of adapter: its options and its formula. ADDED has the module that adds it to a model."""

    options: type[Options]
    formula: str


ADAPTERS: Mapping[str, AdapterRow] = {
    "none": AdapterRow(NoAdapter, "all weights are trained"),
    "lora": AdapterRow(LoraOptions, "W + (alpha / rank) B A"),
    "dora": AdapterRow(LoraOptions, "m / |W'| W', W' = W + (alpha / rank) B A"),
    "qlora": AdapterRow(LoraOptions, "Q + (alpha / rank) B A, Q: W in 4 bits"),
}
ADAPTER_CHOICE: OneOf[AdapterRow] = OneOf(ADAPTERS, "none")
AdapterChoice = Annotated[Options, ADAPTER_CHOICE]
ADDED: Listing[Any] = Listing("posttrain.models.lora", "ADDED")
"""Kind of adapter -> the module that freezes a model and adds the adapter. peft is imported with it."""

EXPERTS = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Names that peft treats as a mixture's experts. They are one tensor each and get no adapter here."""


class Attach(NamedTuple):
    """Adds adapters to models, in place."""

    freeze: Callable[[Any], None]
    """Freeze a model, in 4 bits for qlora. Later copies share its tensors."""
    add: Callable[[Any], Any]
    """Add an adapter to a frozen model."""


@dataclass(frozen=True)
class TrainedAdapter:
    """The stored parts of a model with an adapter: the frozen model's folder, the options and peft's config."""

    base: Path
    options: LoraOptions
    config: dict[str, Any]


def attach_of(options: Options, base: Path, seed: int) -> Attach | None:
    """Return a function that adds the adapter to a model loaded from `base`; None if all weights are trained."""
    if options.type not in ADDED:
        return None
    try:
        freeze, add = ADDED[options.type]
    except ImportError as error:
        raise ModelError(what=f"it needs the package peft ({error})", where="adapter", fix=INSTALL) from error
    return Attach(lambda model: freeze(model, options), lambda model: add(model, options, base, seed))


def adapter_of(model: Any) -> TrainedAdapter | None:
    """Return the adapter that is trained in the model; None if there is none."""
    adapter: TrainedAdapter | None = getattr(model, "posttrain_adapter", None)
    return adapter


def share_tensors(model: Any) -> Any:
    """Return another model with the same tensors.

    It needs no extra memory, and additions to one model do not affect the other.
    """
    shared: dict[int, Any] = {id(part): part for part in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def linear_of(layer: Any) -> Any:
    """Return the layer itself, or the frozen layer that an adapter wraps."""
    return layer.base_layer if hasattr(layer, "lora_A") else layer


def is_plain(layer: Any) -> bool:
    """Tell whether the layer is a matrix, optionally with one adapter that `merged_weight` supports."""
    if type(linear_of(layer)) not in (nn.Linear, Nf4Linear) or not hasattr(layer, "lora_A"):
        return type(layer) in (nn.Linear, Nf4Linear)
    known = all(type(variant).__name__ == "DoraLinearVariant" for variant in layer.lora_variant.values())
    return known and len(layer.active_adapters) == 1 and not layer.merged


@torch.no_grad()
def merged_weight(layer: Any) -> Tensor:
    """Return the layer's effective weight: its own weight, or a new tensor with the adapter merged."""
    linear = linear_of(layer)
    weight: Tensor = linear.dense_weight() if isinstance(linear, Nf4Linear) else linear.weight
    if not hasattr(layer, "lora_A") or layer.disable_adapters:
        return weight
    [name] = layer.active_adapters
    vectors = layer.lora_magnitude_vector
    magnitude = vectors[name].weight if name in vectors else None
    return merged(weight, layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name], magnitude)


def merged(weight: Tensor, a: Tensor, b: Tensor, scaling: float, magnitude: Tensor | None = None) -> Tensor:
    """Return the weight with a merged adapter [out, in], in float32."""
    whole = torch.addmm(weight.float(), b.float(), a.float(), alpha=scaling)
    return whole if magnitude is None else whole * (magnitude / whole.norm(dim=1))[:, None]


def weight_counts(model: nn.Module) -> tuple[int, int]:
    """Return (trained weights, frozen weights), including weights in 4 bits."""
    trained = sum(part.numel() for part in model.parameters() if part.requires_grad)
    packed = [layer for layer in model.modules() if isinstance(layer, Nf4Linear)]
    four_bit = {part for layer in packed for part in (layer.weight, layer.scales)}
    frozen = sum(part.numel() for part in model.parameters() if not part.requires_grad and part not in four_bit)
    return trained, frozen + sum(layer.in_features * layer.out_features for layer in packed)


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Return the layers with an adapter, by name."""
    return ((name, layer) for name, layer in model.named_modules() if hasattr(layer, "lora_A"))


def linear_layers(model: Any, targets: str | list[str], base: Path) -> list[str]:
    """Return the names of the target linear layers below the head."""
    core = backbone(model)
    prefix = next(name for name, part in model.named_modules() if part is core)
    linear = [name for name, part in core.named_modules() if isinstance(part, nn.Linear)]
    mixture = any(parameter.dim() > 2 for parameter in core.parameters())
    if mixture:
        linear = [name for name in linear if name.rpartition(".")[2] not in EXPERTS]
    named = [] if targets == ALL_LINEAR else [targets] if isinstance(targets, str) else targets
    wanted = [name for name in linear if not named or _is_target(name, named)]
    unknown = [target for target in named if not any(_is_target(name, [target]) for name in linear)]
    if unknown or not wanted:
        known = sorted({name.rpartition(".")[2] for name in linear})
        named_so = f"{base} has no linear layer for an adapter with the name {', '.join(unknown)}"
        what = named_so if unknown else f"{base} has no linear layers that can have an adapter"
        none = "The head, routers and experts cannot have one" if mixture else "The head cannot have one"
        fix = f"Use some of: {', '.join(known)}. {none}" if known else "Train all of its weights: adapter: none"
        raise ModelError(what=what, where="adapter.targets", fix=fix)
    return [f"{prefix}.{name}" for name in wanted]


def _is_target(name: str, targets: list[str]) -> bool:
    return any(name == target or name.endswith(f".{target}") for target in targets)
