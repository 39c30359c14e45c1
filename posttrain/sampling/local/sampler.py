"""Samples with a model of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from posttrain.formulas.random import row_keys
from posttrain.models.device import Device
from posttrain.sampling.capacity import context_of
from posttrain.sampling.local.decoder import CompletionBuffer, Decoder
from posttrain.sampling.sampler import Capability, Completion, Mixture, Request, SamplingParams
from posttrain.text.stops import Stops


class LocalSampler:
    """Draws from the model that is given; it shares the weights, so `sync` copies nothing."""

    can: frozenset[Capability] = frozenset({"greedy", "mixture", "top_p", "top_k", "stop_strings"})

    def __init__(self, model: Any, stops: Stops, device: Device, version: str = "") -> None:
        self._model, self._stops, self._device, self.version = model, stops, device, version

    @property
    def context(self) -> int | None:
        """The model's context."""
        return context_of(self._model)

    def sync(self, model: Any, version: str) -> None:
        """Draw with this model from now on."""
        self._model, self.version = model, version

    @torch.inference_mode()
    def generate(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        seed: int,
        *,
        greedy: bool = False,
        mixture: Mixture | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """A completion of each request; requests of the same tokens share their prefill."""
        keys = None if greedy else row_keys(seed, [one.name for one in requests])
        buffer = CompletionBuffer(len(requests), params.max_tokens, self._stops, params.stop)
        stops, was_training = self._stops.tokens, self._model.training
        self._model.eval()
        with self._device.autocast():
            Decoder(self._model, requests, params, keys, buffer, stops, self._device, mixture, advance).run()
        self._model.train(was_training)
        found = zip(buffer.ids, buffer.logps, buffer.truncated, strict=True)
        return [Completion(ids, logps, "length" if cut else "stop") for ids, logps, cut in found]
