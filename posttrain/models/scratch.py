"""The shape of a model from scratch: Qwen3, or its mixture of experts."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from posttrain.settings.params import Params


class ScratchParams(Params):
    """The shape of a model from scratch: Qwen3, or Qwen3-MoE if it has experts."""

    layers: int = Field(3, ge=1, le=1000, description="decoder layers")
    width: int = Field(64, ge=8, le=100_000, description="hidden size")
    heads: int = Field(2, ge=1, le=10_000, description="attention heads")
    feed_forward: int = Field(192, ge=8, le=1_000_000, description="width of a feed-forward layer, or of one expert")
    experts: int = Field(0, ge=0, le=10_000, description="experts per layer; 0: a dense model")
    experts_per_token: int = Field(2, ge=1, le=10_000, description="experts per token")
    context: int = Field(512, ge=16, le=100_000_000, description="context length in tokens")
    init_std: float = Field(
        0.08, gt=0, lt=1, description="standard deviation of the initial weights; 0.02 learns much more slowly here"
    )

    @model_validator(mode="after")
    def _whole_heads(self) -> ScratchParams:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width = {self.width} is not an even multiple of heads = {self.heads}. Change one of them"
            )
        return self

    @model_validator(mode="after")
    def _enough_experts(self) -> ScratchParams:
        if 0 < self.experts < self.experts_per_token:
            raise ValueError(f"experts = {self.experts} must be >= experts_per_token. Change one of them")
        return self


def scratch_config(shape: ScratchParams, vocabulary: int, *, stop: int, pad: int | None) -> Any:
    """Return the config of a model of this shape."""
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
    from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

    common: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.width // shape.heads,
        "intermediate_size": shape.feed_forward,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": True,
        "initializer_range": shape.init_std,
        "eos_token_id": stop,
        "pad_token_id": pad,
    }
    if not shape.experts:
        return Qwen3Config(**common)
    return Qwen3MoeConfig(
        **common,
        num_experts=shape.experts,
        num_experts_per_tok=shape.experts_per_token,
        moe_intermediate_size=shape.feed_forward,
        norm_topk_prob=True,
    )
