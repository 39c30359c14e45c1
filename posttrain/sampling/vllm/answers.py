"""The request for one completion, and the server's answer: tokens, log-probs and experts."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from posttrain.models.forward.routers import find_routers
from posttrain.sampling.builtin import CompletionBuffer
from posttrain.sampling.sampler import Completion, Request, RoutedSampling, SamplingParams
from posttrain.text.stops import Stops

_LOW_63: Final = 2**63 - 1


def request_of(
    request: Request, key: int, params: SamplingParams, stops: Stops, model: str, name: str
) -> dict[str, Any]:
    """Return a request to the server. `key`: determines the random numbers. `model`: the policy, or its adapter.

    vLLM makes text only to find stop strings. posttrain makes its own from the tokens.
    """
    return {
        "model": model, "name": name, "prompt": list(request.ids),
        "sampling": {
            "max_tokens": params.max_tokens, "temperature": params.temperature, "seed": key & _LOW_63, "logprobs": 0,
            "ignore_eos": True, "stop_token_ids": list(stops.tokens), "stop": params.stop,
            "include_stop_str_in_output": True, "skip_special_tokens": False, "spaces_between_special_tokens": False,
            "detokenize": bool(params.stop),
        },
    }  # fmt: skip


def read_completion(
    answer: Mapping[str, Any], prompt: Sequence[int], params: SamplingParams, stops: Stops, model: Any
) -> Completion:
    """Return the completion of a prompt. Raise if the answer cannot be a sample of this model."""
    vocabulary = model.config.get_text_config().vocab_size
    ids, logps = answer["token_ids"], answer["logprobs"]
    sane = (
        answer["prompt_tokens"] == len(prompt)
        and 0 < len(ids) == len(logps) <= params.max_tokens
        and all(type(token) is int and 0 <= token < vocabulary for token in ids)
        and all(isinstance(logp, float | int) and math.isfinite(logp) and logp < 1e-3 for logp in logps)
    )
    buffer = CompletionBuffer(1, params.max_tokens, stops, params.stop)
    if sane:
        buffer.add(0, ids, logps)
    if not buffer.ended[0]:
        raise ValueError("its token ids and log-probs do not form a whole completion")
    done = buffer.completions()[0]
    if not isinstance(params, RoutedSampling):
        return done
    if answer.get("routed_experts") is None:
        raise ValueError("it has no experts, and router.replay = sampler needs them (vLLM 0.30 reports them)")
    experts = read_experts(answer["routed_experts"], len(prompt) + len(ids), router_layers(model))
    return replace(done, experts=experts[: len(prompt) + len(done.ids)])


def router_layers(model: Any) -> list[int]:
    """Return the layer number of each router, read from the names of modules."""
    names = {part: name for name, part in model.named_modules()}
    return [int(re.findall(r"\.(\d+)\.", names[router])[0]) for router in find_routers(model)]


def read_experts(encoded: str, tokens: int, layers: Sequence[int]) -> Tensor:
    """Return the experts [tokens, layers, k] of a request with its completion.

    `encoded`: base64 of a .npy file. It has a row for each token except the last, which vLLM has not processed, and an
    entry for every layer of the model, including layers without a router.
    """
    chosen = np.load(io.BytesIO(base64.b64decode(encoded)), allow_pickle=False)
    if chosen.ndim != 3 or len(chosen) != tokens - 1 or chosen.shape[1] <= max(layers) or chosen.dtype.kind not in "iu":
        raise ValueError(f"experts {[*chosen.shape]} do not fit {tokens} tokens and the layers {layers}")
    experts = torch.full((tokens, len(layers), chosen.shape[2]), -1, dtype=torch.int16)
    experts[:-1] = torch.from_numpy(chosen[:, layers].astype(np.int16))
    return experts
