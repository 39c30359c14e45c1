"""Generation as it is defined: the model's own code over the whole sequence for every token, a row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from posttrain.formulas.ragged import row_keys, uniform
from posttrain.sampling.sampler import SamplingParams
from tests.library.models.tiny import Samples


@torch.no_grad()
def naive(
    model: Any,
    prompts: Sequence[Sequence[int]],
    names: Sequence[str] | None,
    n: int,
    params: SamplingParams,
    seed: int,
    stops: Sequence[int],
) -> Samples:
    """What `sample` must give, or `greedy` where names are None."""
    was = model.config._attn_implementation
    model.set_attn_implementation("eager")
    found = Samples([], [], [])
    for place, prompt in enumerate(prompts):
        for i in range(n):
            key = None if names is None else row_keys(seed, [f"{names[place]}:{i}"])
            _row(found, model, prompt, None if key is None else uniform(key, params.max_tokens)[0], params, stops)
    model.set_attn_implementation(was)
    return found


def _row(
    found: Samples, model: Any, prompt: Sequence[int], draws: Any, params: SamplingParams, stops: Sequence[int]
) -> None:
    ids: list[int] = []
    logps: list[float] = []
    for t in range(params.max_tokens):
        logits = model(torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0, -1] / params.temperature
        token = int(logits.argmax()) if draws is None else _drawn(logits.softmax(0), float(draws[t]), params)
        ids.append(token)
        logps.append(float(logits.log_softmax(0)[token]))
        if token in stops:
            break
    found.ids.append(ids)
    found.logps.append(logps)
    found.truncated.append(ids[-1] not in stops)


def _drawn(p: torch.Tensor, draw: float, params: SamplingParams) -> int:
    """Inverse CDF in the order of the vocabulary, over the tokens that top-k and top-p leave."""
    likeliest = sorted(range(len(p)), key=lambda token: -float(p[token]))[: params.top_k or len(p)]
    whole, kept, held = sum(float(p[token]) for token in likeliest), [], 0.0
    for token in likeliest:
        if held >= params.top_p * whole:
            break
        kept.append(token)
        held += float(p[token])
    point = draw * held
    for token in sorted(kept):
        point -= float(p[token])
        if point < 0:
            return token
    return max(kept)


def assert_same(found: Samples, expected: Samples, tolerance: float = 1e-5) -> None:
    """The tolerance is that of parts which transformers computes in float32 whatever the weights are."""
    assert found.ids == expected.ids
    assert found.truncated == expected.truncated
    for mine, theirs in zip(found.logps, expected.logps, strict=True):
        assert mine == pytest.approx(theirs, abs=tolerance)
