"""The routers of a mixture of experts: their choices in a forward pass, and the load-balancing loss.

    L = mean over layers of E sum_e f_e P_e       f_e: tokens that chose expert e / tokens, P_e: its mean probability

This is the loss of Switch Transformers (Fedus 2021) per layer. Its minimum is the number of experts per token.
transformers first sums f and P over layers, which hides a layer whose imbalance another layer cancels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posttrain.distributed import world
from posttrain.errors import ModelError
from posttrain.models.forward.forward import runs_in_rows
from posttrain.text.packing import PackedRows, sent


def find_routers(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the modules whose outputs transformers calls router logits, in layer order; empty for a dense model."""
    kinds: set[Any] = set()
    for part in model.modules():
        recorded = (getattr(part, "_can_record_outputs", None) or {}).get("router_logits", [])
        every = recorded if isinstance(recorded, list) else [recorded]
        kinds |= {getattr(entry, "target_class", entry) for entry in every}
    return tuple(part for part in model.modules() if type(part) in kinds)


@dataclass(frozen=True)
class RoutingSums:
    """Sums over tokens, which can be added over micro-batches. A token counts once for each of its rows."""

    chosen_LE: Tensor
    """The number of tokens that chose each expert."""
    probability_LE: Tensor
    """The softmax of the router's logits, with gradient."""
    entropy_L: Tensor
    """The entropy of that distribution."""
    moved_L: Tensor
    """The number of the router's own choices that differ from the replayed choices."""

    def __add__(self, other: RoutingSums) -> RoutingSums:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return RoutingSums(*(ours + theirs for ours, theirs in pairs))

    def detach(self) -> RoutingSums:
        """Return the sums without gradient."""
        return RoutingSums(*(part.detach() for part in vars(self).values()))

    def times(self, factor: float) -> RoutingSums:
        """Return the sums multiplied by a factor."""
        return RoutingSums(*(part * factor for part in vars(self).values()))

    def of_all(self) -> RoutingSums:
        """Return the sums over all processes."""
        return RoutingSums(*(world.added(part) for part in vars(self).values()))


class Recording:
    """Records the routers' outputs in forward passes within the context, to read the experts of `packed`.

    A second pass over the same tokens (an exact KL, a teacher) is not recorded again.
    """

    def __init__(self, model: Any, routers: tuple[nn.Module, ...], packed: PackedRows) -> None:
        self._routers, self._replayed_NLK = routers, packed.experts_NLK
        self._outputs: list[list[Routed]] = [[] for _ in routers]
        self._weights: list[Tensor] = []
        if routers:
            counts = packed.row_masks() if runs_in_rows(model) else [packed.rows_per_token()]
            self._weights = [sent(part.flatten(), packed.ids_N.device) for part in counts]

    def __enter__(self) -> Recording:
        hooks = [self._hook(layer, outputs) for layer, outputs in enumerate(self._outputs)]
        pairs = zip(self._routers, hooks, strict=True)
        self._hooks = [router.register_forward_hook(hook, with_kwargs=True) for router, hook in pairs]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def sums(self) -> RoutingSums:
        """Return the sums over the recorded tokens."""
        layers = [_layer_sums(outputs, self._weights) for outputs in self._outputs]
        return RoutingSums(*(torch.stack(parts) for parts in zip(*layers, strict=True)))

    def experts(self) -> Tensor:
        """Return the experts [N, L, K] of the packed tokens, for a model that runs packed."""
        return torch.stack([outputs[0].experts_NK for outputs in self._outputs], 1)

    def _hook(self, layer: int, outputs: list[Routed]) -> Any:
        def record(router: Any, inputs: Any, named: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if self._replayed_NLK is None and len(outputs) == len(self._weights):
                return None
            logits_NE, own_NK = _routed(router, output)
            if self._replayed_NLK is None:
                routed, replayed = Routed(logits_NE, own_NK, own_NK), None
            else:
                stored_NK = self._replayed_NLK[:, layer].to(own_NK.dtype)
                if stored_NK.shape != own_NK.shape:
                    what = f"experts {[*stored_NK.shape]} cannot be given to a router that chooses {[*own_NK.shape]}"
                    raise ModelError(what=what, where=type(router).__name__, fix="Set router.replay: true")
                experts_NK = torch.where(stored_NK < 0, own_NK, stored_NK)
                routed = Routed(logits_NE, experts_NK, own_NK)
                with _Choosing(experts_NK, logits_NE.shape[-1]) as choosing:
                    replayed = router.forward(*inputs, **named)
                if not choosing.asked:
                    what = "its routers do not choose by topk, so other experts cannot be given to them"
                    raise ModelError(what=what, where=type(router).__name__, fix="Set router.replay: false")
            if len(outputs) < len(self._weights):
                outputs.append(routed)
            return replayed

        return record


class Routed(NamedTuple):
    """A router's decisions about some tokens."""

    logits_NE: Tensor
    experts_NK: Tensor
    own_NK: Tensor
    """The router's own choice, if a different choice was replayed."""


def _routed(router: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return the logits and the experts of a router's output."""
    if len(output) == 3:  # logits, weights, experts
        return output[0], output[2]
    return output[1], output[1].topk(router.top_k).indices  # Llama 4: weights, logits


class _Choosing(TorchFunctionMode):
    """Within this context, the `topk` over all experts returns these experts with their values."""

    def __init__(self, experts_NK: Tensor, count: int) -> None:
        super().__init__()
        self._experts_NK, self._scores, self.asked = experts_NK, torch.Size((len(experts_NK), count)), False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.topk, Tensor.topk) and args[0].shape == self._scores:
            self.asked = True
            return torch.return_types.topk((args[0].gather(-1, self._experts_NK), self._experts_NK))
        return func(*args, **(kwargs or {}))


def _layer_sums(outputs: list[Routed], weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return one layer's chosen experts [E], probabilities [E], entropy and moved choices, summed over its tokens."""
    logits_NE, experts_NK, own_NK = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    logp_NE = logits_NE.log_softmax(-1, dtype=torch.promote_types(logits_NE.dtype, torch.float32))
    p_NE, weight_N = logp_NE.exp(), torch.cat(weights).to(logp_NE.dtype)
    chosen_E = torch.zeros_like(p_NE[0])
    chosen_E.index_add_(0, experts_NK.flatten(), weight_N.repeat_interleave(experts_NK.shape[1]))
    moved_N = (own_NK[:, :, None] != experts_NK[:, None]).all(2).sum(1).to(logp_NE.dtype)
    return chosen_E, weight_N @ p_NE, weight_N @ -(p_NE * logp_NE).detach().sum(-1), weight_N @ moved_N


def balance_loss(load_LE: Tensor, probability_LE: Tensor) -> Tensor:
    """Return the load-balancing loss from each expert's share of the tokens and its mean probability."""
    return load_LE.shape[1] * (load_LE * probability_LE).sum(1).mean()
