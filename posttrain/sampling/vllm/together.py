"""Actions that all processes of a run do together while the first process gives a server new weights.

The first process announces each step, because only it knows the server. The others take part: sharded weights are
gathered tensor by tensor, and a first sample of the server is scored by the model of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from posttrain.distributed import world
from posttrain.models.forward.forward import score_tokens
from posttrain.models.forward.logp import head_of, module_head_of
from posttrain.models.sharding import gathered, is_sharded, own_part
from posttrain.rollout import TokenRow
from posttrain.sampling.vllm.weights import help_gather, help_gather_lora
from posttrain.text.packing import pack

Step = Literal["whole", "frozen", "lora", "probe", "done"]


def announce(
    step: Step, *, dtype: torch.dtype | None = None, prompt: Sequence[int] = (), ids: Sequence[int] = ()
) -> None:
    """Announce the first process's next action. The other processes do the same in `follow`."""
    world.gathered([step, str(dtype).removeprefix("torch."), [*prompt], [*ids]])


def follow(model: Any) -> None:
    """Take part in the actions that the first process announces, until it is done."""
    while True:
        step, dtype, prompt, ids = world.gathered(None)[0]
        match step:
            case "done":
                return
            case "lora":
                help_gather_lora(model)
            case "probe":
                probe_logps(model, prompt, ids)
            case _:
                help_gather(model, getattr(torch, dtype), adapter=step == "whole")


@torch.no_grad()
def probe_logps(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> Tensor:
    """Return the model's log-probs of a sample, without dropout. Every process of a sharded model must call this."""
    training = model.training
    model.eval()
    packed = pack([TokenRow(list(prompt), list(ids))]).to(own_part(next(model.parameters())).device)
    head = (module_head_of if is_sharded(model) else head_of)(model)
    logps = gathered(model, lambda: score_tokens(model, packed, head=head))[0].float().cpu()
    model.train(training)
    return logps
