"""Choose the decoder layers that run as the two operations of `layer_pass`: usual layers, packed, on CUDA with Liger.

Llama, Mistral, Qwen2, Qwen3 and the families with their code are such layers. `fuse_layers` compares a layer's output
with its own forward pass when a model is loaded. All others, and all calls that training does not make, run the
module's own code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.measure.record import note, noted
from posttrain.models.device import AMPERE
from posttrain.models.forward import kernels
from posttrain.models.forward.activations import selective
from posttrain.models.forward.forward import NAME, PackedAttention, Scoring, backbone
from posttrain.models.forward.layer_pass import layer_output, parts_of
from posttrain.models.forward.norms import DTYPES, FusedNorm
from posttrain.rollout import TokenRow
from posttrain.text.packing import pack

TOLERANCE = 1e-4
"""Tolerance of the check at load, relative to the largest output in float32."""
FUSED, PLAIN = "fused", "transformers"
"""Values of the record's `layers`."""


class FusedLayer(nn.Module):
    """A mixin for decoder layers of transformers."""

    posttrain_scoring: Scoring

    def forward(self, hidden_states: Tensor, *args: Any, **named: Any) -> Any:
        """Return the output by two operations in a packed pass on a CUDA GPU, else by the module's own code."""
        attention, positions = named.get("posttrain_attention"), named.get("position_embeddings")
        if not args and type(attention) is PackedAttention and positions is not None and _takes(hidden_states):
            selects = self.training and getattr(self, "_gradient_checkpointing_func", None) is selective
            scoring = self.posttrain_scoring
            output = layer_output(self, hidden_states, positions, attention, scoring, selects=selects)
            if output is not None:
                _record(FUSED)
                return output
        if type(attention) is PackedAttention and hidden_states.is_cuda:
            _record(PLAIN)
        return plain_forward(self)(self, hidden_states, *args, **named)  # `activations` has been seen to

    def keeps_products(self, hidden_states: Tensor, *args: Any, **named: Any) -> bool:
        """Tell whether the two operations run. They choose by themselves which activations to keep."""
        packed = type(named.get("posttrain_attention")) is PackedAttention
        usual = not args and packed and named.get("position_embeddings") is not None and _takes(hidden_states)
        return usual and parts_of(self, hidden_states.dtype) is not None


def _takes(hidden: Tensor) -> bool:
    """Tell whether the kernels support this call: not a second derivative (TRPO), and not torch's compiler."""
    if not hidden.is_cuda or hidden.dtype not in DTYPES or hidden.shape[0] != 1 or torch.compiler.is_compiling():
        return False
    return kernels.liger() is not None and bool(torch.backends.cuda.flash_sdp_enabled())  # type: ignore[no-untyped-call]


def _record(layers: str) -> None:
    """Record which code ran the layers of a pass with a gradient."""
    if torch.is_grad_enabled() and noted("layers") != layers:
        note(layers=layers, **({"liger_kernel": kernels.liger_version()} if layers == FUSED else {}))


def plain_forward(layer: Any) -> Callable[..., Any]:
    """Return the forward function of the class of a layer or of its part, without the code for `activations`."""
    kinds: Any = type(layer).__mro__
    plain_kind = next(kind for kind in kinds if not issubclass(kind, FusedLayer) and hasattr(kind, "forward"))
    forward: Callable[..., Any] = (
        plain_kind.forward.__wrapped__ if hasattr(layer, "gradient_checkpointing") else plain_kind.forward
    )
    return forward


def fuse_layers(model: Any) -> None:
    """Let the layers of a model use the two operations, in place, if a GPU and Liger are available."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < AMPERE or kernels.liger() is None:
        return
    checked: dict[tuple[Any, ...], Scoring | None] = {}
    core = backbone(model)
    for layer in getattr(core, "layers", ()):
        if isinstance(layer, FusedLayer) or not has_usual_code(layer) or next(layer.parameters()).is_meta:
            continue
        kind = _kind(layer)
        if kind not in checked:
            checked[kind] = _checked_scoring(layer, core)
        _fuse(layer, checked[kind])


def _fuse(layer: Any, scoring: Scoring | None) -> None:
    if scoring is not None and not isinstance(layer, FusedLayer):
        kind: Any = type(layer)
        layer.__class__ = _fused(kind)
        layer.posttrain_scoring = scoring


def fused_of(model: Any) -> list[tuple[float, int | None] | None]:
    """Return scale and window of each layer that uses the two operations; None for other layers."""
    layers = getattr(backbone(model), "layers", ())
    scorings = (layer.posttrain_scoring if isinstance(layer, FusedLayer) else None for layer in layers)
    return [None if scoring is None else (scoring.scale, scoring.window) for scoring in scorings]


def fuse_alike(model: Any, scorings: Sequence[Sequence[Any] | None]) -> None:
    """Make a model without values run the same operations as the model that `fused_of` was called on."""
    for layer, scoring in zip(getattr(backbone(model), "layers", ()), scorings, strict=True):
        _fuse(layer, None if scoring is None else Scoring(*scoring))


def _kind(layer: Any) -> tuple[Any, ...]:
    """Return what can make layers of one model differ, beside their tensors."""
    settings = (
        (name, value)
        for part in (layer, layer.self_attn, layer.mlp)
        for name, value in sorted(vars(part).items())
        if name != "layer_idx" and isinstance(value, bool | int | float | str | None)
    )
    return type(layer), *settings


@cache
def _fused(kind: Any) -> Any:
    return type(kind.__name__, (FusedLayer, kind), {"__module__": kind.__module__})


def has_usual_code(layer: Any) -> bool:
    """Tell whether layer, attention and feed-forward have the code of Llama or of a similar family."""
    if isinstance(layer, FusedLayer):
        return True
    attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    norms = [getattr(layer, name, None) for name in ("input_layernorm", "post_attention_layernorm")]
    norms += [getattr(attention, name) for name in ("q_norm", "k_norm") if hasattr(attention, name)]
    if not type(layer).__module__.startswith("transformers.") or not all(isinstance(one, FusedNorm) for one in norms):
        return False
    kinds: Any = (type(layer), type(attention), type(mlp))
    return all(_code(kind) in codes for kind, codes in zip(kinds, _usual_codes(), strict=True))


@cache
def _usual_codes() -> tuple[frozenset[str], ...]:
    """Return the code of the layers, attentions and feed-forwards that they compute."""
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.mistral import modeling_mistral as mistral
    from transformers.models.qwen2 import modeling_qwen2 as qwen2
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    kinds: Any = (
        (llama.LlamaDecoderLayer, mistral.MistralDecoderLayer, qwen2.Qwen2DecoderLayer, qwen3.Qwen3DecoderLayer),
        (llama.LlamaAttention, mistral.MistralAttention, qwen2.Qwen2Attention, qwen3.Qwen3Attention),
        (llama.LlamaMLP, mistral.MistralMLP, qwen2.Qwen2MLP, qwen3.Qwen3MLP),
    )
    return tuple(frozenset(map(_code, part)) for part in kinds)


@cache
def _code(kind: Any) -> str:
    return inspect.getsource(kind.forward) if hasattr(kind, "forward") else ""


class _ScoringRecorder(PackedAttention):
    """Packed attention that records how a layer scores its keys."""

    scoring: Scoring | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        self.scoring = scoring
        return super().attend(layer, query, key, value, scoring)


@torch.no_grad()
def _checked_scoring(layer: Any, core: Any) -> Scoring | None:
    """Return how the layer scores keys; None if the two operations give another output than its code."""
    device = next(layer.parameters()).device
    packed = pack([TokenRow([0], [0, 0, 0]), TokenRow([1], [0])]).to(device)
    recorder, draw = _ScoringRecorder(packed), torch.Generator().manual_seed(0)
    hidden = torch.randn(1, packed.ids_N.numel(), core.config.hidden_size, generator=draw).to(device)
    places, attention_name = packed.positions_N[None], core.config._attn_implementation
    try:
        core.config._attn_implementation = NAME
        positions = core.rotary_emb(hidden, places)
        shared = {"position_ids": places, "position_embeddings": positions, "posttrain_attention": recorder}
        expected = layer(hidden, attention_mask=None, past_key_values=None, use_cache=False, **shared)
        scoring = recorder.scoring
        if scoring is None or not scoring.plain:
            return None
        output = layer_output(layer, hidden, positions, PackedAttention(packed), scoring)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None
    finally:
        core.config._attn_implementation = attention_name
    if output is None or not torch.allclose(output, expected, rtol=0, atol=TOLERANCE * float(expected.abs().max())):
        return None
    return scoring
