"""The default learning rate of a run, by its kind, the model's size and the adapter.

The sources Zephyr and SmolLM2 are recipes in huggingface/alignment-handbook.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from torch import nn

from posttrain.models.nf4 import Nf4Linear

RateKind = Literal["scratch", "sft", "reward", "preference", "online"]
"""The kind of training data. `online` also covers distillation and stored rollouts."""

ADAPTER_RATE: Final = 10
"""The factor for adapters, which learn best at about ten times the full rate (Schulman 2025, LoRA Without Regret)."""
TOY: Final = 10_000_000
"""Below this number of parameters nobody publishes rates. Such models get 1e-4 for every kind of run."""
WARNED: Final = 5
"""`check` warns if a rate exceeds the default by this factor."""


@dataclass(frozen=True)
class Rate:
    """A row of the table of learning rates."""

    kind: RateKind | None
    """None: every kind."""
    least: int
    """The smallest number of parameters of the model."""
    lr: float
    source: str


GPT3: Final = "Brown 2020, arXiv:2005.14165, table 2.1"
RATES: Final = (
    Rate("scratch", 6_000_000_000, 1.2e-4, GPT3),
    Rate("scratch", 1_000_000_000, 2e-4, GPT3),
    Rate("scratch", 300_000_000, 3e-4, GPT3),
    Rate("scratch", TOY, 6e-4, GPT3),
    Rate("sft", 1_000_000_000, 2e-5, "Zephyr (arXiv:2310.16944), Alpaca, and TRL's default"),
    Rate(
        "sft",
        TOY,
        1e-4,
        "between TRL's 2e-5 and SmolLM2's 1e-3 (135M, 360M); our runs (docs/reports/real.md)",
    ),
    Rate("reward", 1_000_000_000, 1e-5, "Llama 2 (arXiv:2307.09288), section 3.2.2"),
    Rate("reward", TOY, 1e-4, "TRL's default"),
    Rate("preference", 3_000_000_000, 5e-7, "Zephyr (arXiv:2310.16944): DPO of 7B"),
    Rate("preference", TOY, 1e-6, "SmolLM2: DPO of 135M, 360M and 1.7B"),
    Rate("online", 1_000_000_000, 1e-6, "DeepSeekMath (arXiv:2402.03300), DAPO (arXiv:2503.14476)"),
    Rate("online", 300_000_000, 5e-6, "between 1e-6 of 1B and more, and 2e-5 below"),
    Rate("online", TOY, 2e-5, "our runs with SmolLM2-135M (docs/reports/real.md)"),
    Rate(None, 0, 1e-4, "toy models, as in this project's tests"),
)


def default_rate(kind: RateKind, parameters: int, *, adapter: bool) -> Rate:
    """Return the row for a run. If the run trains an adapter, the rate is the adapter's."""
    row = next(row for row in RATES if row.kind in (kind, None) and parameters >= row.least)
    if not adapter:
        return row
    return replace(row, lr=ADAPTER_RATE * row.lr, source=f"{row.source}; 10 times that for an adapter")


def explained(kind: RateKind, parameters: int, *, adapter: bool) -> str:
    """Return the default as a line: the rate, the reason for it, and its source."""
    row = default_rate(kind, parameters, adapter=adapter)
    trained = "an adapter" if adapter else "all weights"
    size = f"{parameters / 1e6:,.0f}M" if parameters >= 1e6 else f"{parameters:,}"
    return f"{row.lr:g}, the default for {kind} with {trained} of {size} parameters ({row.source})"


def parameters_of(model: nn.Module) -> int:
    """Return the number of a model's weights. 4-bit weights are packed and are counted unpacked."""
    packed = [module for module in model.modules() if isinstance(module, Nf4Linear)]
    whole = sum(part.in_features * part.out_features - part.weight.numel() for part in packed)
    return sum(weight.numel() for weight in model.parameters()) + whole


def trained_parameters_of(model: nn.Module) -> int:
    """Return the number of trained weights of a model."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
