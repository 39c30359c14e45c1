"""LoRA (Hu 2021), DoRA (Liu 2024) and QLoRA (Dettmers 2023): peft's layers on a frozen model."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model

from posttrain.errors import ModelError
from posttrain.models.adapters import LoraOptions, TrainedAdapter, linear_layers
from posttrain.models.files.loading import is_scorer, quiet
from posttrain.models.forward.adapted import fuse_adapters
from posttrain.models.nf4 import quantise_model

if torch.distributed.is_available():
    import_module("torch.distributed.tensor")  # peft's layers expect that transformers has imported it

SCORE = "score"
"""The head of a scorer, which is trained fully."""


def freeze(model: Any, options: LoraOptions) -> None:
    """Freeze the model in place. For qlora, convert its linear layers to 4 bits."""
    model.requires_grad_(requires_grad=False)
    if options.type == "qlora":
        quantise_model(model)


def add(model: Any, options: LoraOptions, base: Path, seed: int) -> Any:
    """Add adapters to a frozen model in place. A scorer's head is trained too."""
    layers = linear_layers(model, options.targets, base)
    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        target_modules=_shortened(model, layers),
        lora_dropout=options.dropout,
        use_dora=options.type == "dora",
        use_rslora=options.rslora,
    )
    torch.manual_seed(seed)
    try:
        with quiet():
            inject_adapter_in_model(config, model)
    except ValueError as error:  # peft's own refusal, e.g. of layers of a state space model
        fix = "List other layers in adapter.targets, or train all weights: adapter: none"
        raise ModelError(
            what=f"{base} cannot have an adapter ({error})", where=type(model).__name__, fix=fix
        ) from error
    fuse_adapters(model)
    if is_scorer(model):
        model.score.requires_grad_(requires_grad=True)
    model.posttrain_adapter = TrainedAdapter(base, options, _plain(config, scorer=is_scorer(model)))
    return model


def _shortened(model: Any, layers: list[str]) -> list[str]:
    """Return short names that match exactly these layers, because other programs read them more easily."""
    last = sorted({name.rpartition(".")[2] for name in layers})
    named = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in last}
    return last if named == set(layers) else layers


def _plain(config: Any, *, scorer: bool) -> dict[str, Any]:
    """Return the contents of adapter_config.json without the path of the frozen model."""
    plain: dict[str, Any] = {
        name: sorted(value) if isinstance(value, set) else value for name, value in config.to_dict().items()
    }
    plain |= {"inference_mode": True, "peft_type": "LORA", "task_type": "SEQ_CLS" if scorer else "CAUSAL_LM"}
    return plain | ({"modules_to_save": [SCORE]} if scorer else {})


ADDED = {"lora": (freeze, add), "dora": (freeze, add), "qlora": (freeze, add)}
