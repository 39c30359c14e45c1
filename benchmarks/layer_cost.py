"""Operators of one decoder layer in a training step on CUDA, and the bytes that their kernels read and write.

python -m benchmarks.layer_cost [full|lora|sharded] [--activations recompute]        needs no GPU (tests/second_device)

The layer has Qwen3-0.6B's widths, bf16 weights and float32 masters. A step with three layers minus one with two gives
one layer. Bytes grow linearly with the tokens, so two short steps give those of any step.
"""

from __future__ import annotations

from tests.second_device.device import NAME as DEVICE  # first: it takes CUDA's place before torch is imported

# isort: split

import argparse
import dataclasses
import math
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.distributed import world
from posttrain.models.adapters import LoraOptions, attach_of
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import new_model
from posttrain.models.forward.activations import Activations, set_activations
from posttrain.models.master_weights import placed
from posttrain.models.sharding import mesh_of
from posttrain.rollout import TokenRow
from posttrain.train.model_set import ModelSet
from posttrain.train.step import StepClosure, make_batch
from tests.second_device.test_ranks import in_ranks

KINDS = ("full", "lora", "sharded")
TOKENS = (32, 64)
"""The tokens of the two measured steps, in rows of 16."""
STEP_TOKENS = 13_944
"""The tokens of the printed step: that of the GPU measurements."""
WIDTH = 1024
PRODUCTS = ("addmm", "addmm_", "bmm", "mm")
ATTENTION = ("_varlen_attn", "_varlen_attn_backward")
NO_KERNEL = ("_unsafe_view", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty", "set_")
SUMMED = ("add_norm_backward", "norm_backward")
"""Operators with partial sums of a weight's gradient."""


class Cost(TorchDispatchMode):
    """The operators with a kernel on the device, and the bytes that they move."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: dict[str, Counter[str]] = {"forward": Counter(), "backward": Counter()}
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        read, written = _moved(func, args, kwargs or {}, out)
        if read or written:
            # autograd's own threads run no Python frame of the forward pass
            part = "backward" if torch._C._current_graph_task_id() != -1 else "forward"
            copies = _copied(name, args, out)
            self.operators[part][name] += 1 + bool(copies) + _sums(name, out)
            kind = "products" if name in PRODUCTS else "attention" if name in ATTENTION else "others"
            self.bytes[kind] += read + written
            self.bytes["others"] += copies
        return out


def _sums(name: str, out: Any) -> int:
    """Return how many more kernels add up and round the partial sums of a norm's weight."""
    if name not in SUMMED or out.numel() == 0:
        return 0
    return 1 if out.dtype == torch.float32 else 2


def _moved(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[int, int]:
    """Return the bytes that an operator's kernel reads and writes on the device; none if it has no kernel."""
    schema = func._schema
    name = schema.name.partition("::")[2]
    changed = [one.alias_info is not None and one.alias_info.is_write for one in schema.arguments]
    views = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
    if views or name in NO_KERNEL:
        return 0, 0
    given = [*args, *(kwargs.get(one.name) for one in schema.arguments[len(args) :])]
    if name in ("zero_", "fill_", "copy_"):
        read = tree_leaves(given[1:])
    else:
        read = tree_leaves([one for one, way in zip(given, schema.arguments, strict=True) if not way.is_out])
    in_place = [one for one, written in zip(given, changed, strict=True) if written]
    made = [] if in_place and not any(one.alias_info is None for one in schema.returns) else tree_leaves(out)
    return sum(map(_size, read)), sum(map(_size, [*tree_leaves(in_place), *made]))


def _copied(name: str, args: Any, out: Any) -> int:
    """Return the bytes of the copy that CUDA's addmm makes of a whole matrix before it adds to the copy."""
    whole = name == "addmm" and isinstance(out, Tensor) and args[0].dim() == 2
    return 2 * _size(out) if whole and out.data_ptr() != args[0].data_ptr() else 0


def _size(part: Any) -> int:
    """Return the bytes of a tensor on the device, without those that an expanded dimension repeats."""
    if not isinstance(part, Tensor) or not part.is_cuda:
        return 0
    sizes = (size for size, stride in zip(part.shape, part.stride(), strict=True) if stride)
    return math.prod(sizes) * part.element_size()


def models_of(kind: str, layers: int, activations: Activations, width: int = WIDTH) -> ModelSet:
    """Return a model with the ratios of Qwen3-0.6B's widths, ready to be trained."""
    config = Qwen3Config(
        vocab_size=64, hidden_size=width, num_hidden_layers=layers, num_attention_heads=16, num_key_value_heads=8,
        head_dim=width // 8, intermediate_size=3 * width, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    runtime = Runtime(DeviceParams(device="cuda"))

    def start(*, scores: bool = False, empty: bool = False) -> Any:
        assert not scores
        model = new_model(config, 0)
        if empty:
            model.to("meta").tie_weights()
        return model

    attach = attach_of(LoraOptions(rank=width // 32, alpha=width // 32), Path(), 0) if kind == "lora" else None
    place = partial(placed, runtime=runtime)
    mesh = mesh_of(runtime.device, None) if kind == "sharded" else None
    models = ModelSet.of(start, runtime, frozenset(), attach, reference_moves=False, mesh=mesh, place=place)
    set_activations(models.policy.train(), activations)
    return models


def step_of(models: ModelSet, tokens: int) -> Cost:
    """Return the cost of one forward and backward pass over so many tokens of each process."""
    count = world.count() * tokens // 16
    rows = [TokenRow([nth % 64], [(nth + place) % 64 for place in range(15)]) for nth in range(count)]
    batch, objective = make_batch(rows), LikelihoodObjective(LikelihoodConfig())
    prepared = objective.prepare(batch.columns, {})
    step = StepClosure(objective, models, batch.with_prepared(prepared.step))
    step()  # a first step puts weights in place
    for part in models.policy.parameters():
        part.grad = None
    with Cost() as cost:
        step()
    return cost


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """What one layer costs."""

    operators: dict[str, Counter[str]]
    per_token: dict[str, float]
    fixed: dict[str, float]
    width: int

    @property
    def count(self) -> int:
        """The number of operators, forward and backward."""
        return sum(sum(part.values()) for part in self.operators.values())

    def units(self, kind: str, tokens: int = STEP_TOKENS) -> float:
        """Return the bytes in units of the hidden states: tokens x width x 2 bytes."""
        return (self.per_token[kind] * tokens + self.fixed[kind]) / (tokens * self.width * 2)


def layer_cost(kind: str, activations: Activations = "keep", width: int = WIDTH) -> LayerCost:
    """Return the cost of one layer: three layers minus two, at two numbers of tokens."""

    def measured() -> list[list[Cost]]:
        made = (models_of(kind, layers, activations, width) for layers in (2, 3))
        return [[step_of(models, tokens) for tokens in TOKENS] for models in made]

    try:
        few, more = in_ranks(measured)[0] if kind == "sharded" else measured()
    finally:
        torch.use_deterministic_algorithms(mode=False)
    per_token, fixed = {}, {}
    for name in ("products", "attention", "others"):
        first, second = (b.bytes[name] - a.bytes[name] for a, b in zip(few, more, strict=True))
        per_token[name] = (second - first) / (TOKENS[1] - TOKENS[0])
        fixed[name] = first - per_token[name] * TOKENS[0]
    counts = {part: more[0].operators[part] - few[0].operators[part] for part in few[0].operators}
    return LayerCost(counts, per_token, fixed, width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS, default="full")
    parser.add_argument("--activations", choices=("keep", "selective", "recompute"), default="keep")
    given = parser.parse_args()
    cost = layer_cost(given.kind, given.activations)
    print(f"one layer of Qwen3-0.6B, {given.kind}, activations {given.activations}, on the {DEVICE}")
    for part, counts in cost.operators.items():
        names = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        print(f"{part}: {sum(counts.values())} operators: {names}")
    print(f"bytes at {STEP_TOKENS} tokens, in units of the hidden states ({STEP_TOKENS * WIDTH * 2 / 1e6:.1f} MB):")
    for name in cost.per_token:
        print(f"  {name}: {cost.units(name):.0f}")
    print(f"{cost.count} operators, {sum(map(cost.units, cost.per_token)):.0f} units")


if __name__ == "__main__":
    main()
