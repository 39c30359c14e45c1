"""GRPO: completions per CPU second, from the prompt to the update."""

from __future__ import annotations

from typing import Any

from benchmarks.speed import bound_online, ours, theirs
from benchmarks.speed.case import Case
from benchmarks.speed.meter import Report

BETA = 0.04


def posttrain(case: Case) -> Report:
    """Return the stage's loop: sampling, reward, reference, updates."""
    return ours.online(case, "grpo", {"kl": {"beta": BETA}})


def posttrain_no_graphs(case: Case) -> Report:
    """Return the same with decoding steps that are no CUDA graphs."""
    return ours.online(case, "grpo", {"kl": {"beta": BETA}}, cuda_graphs=False)


def posttrain_lora(case: Case) -> Report:
    """Return the same with adapters: the reference is the policy without them."""
    return ours.online(case, "grpo", {"kl": {"beta": BETA}}, lora=True)


def posttrain_vllm(case: Case) -> Report:
    """Return the same with samples by vLLM, in its own process on the same GPU."""
    return ours.online(case, "grpo", {"kl": {"beta": BETA}}, engine="vllm")


def posttrain_vllm_ahead(case: Case) -> Report:
    """Return the same, each round sampled while the one before is trained."""
    return ours.online(case, "grpo", {"kl": {"beta": BETA}}, engine="vllm", ahead=1)


def bound(case: Case) -> Report:
    """Return the same rounds by hand, with the same draws."""
    return bound_online.online(case, bound_online.GRPO)


def trl(case: Case) -> Report:
    """TRL, tuned, with transformers' generation."""
    return _trl(case, theirs.tuned(case))


def trl_padded(case: Case) -> Report:
    """TRL near its defaults: padded batches, torch's attention and layers of many kernels."""
    return _trl(case, theirs.near_defaults(case))


def trl_lora(case: Case) -> Report:
    """Return the same with adapters by peft."""
    return _trl(case, theirs.tuned(case), **theirs.adapters())


def trl_vllm(case: Case) -> Report:
    """TRL, tuned, with vLLM in its process."""
    return _trl(case, {**theirs.tuned(case), "use_vllm": True, "vllm_mode": "colocate"})


def trl_default(case: Case) -> Report:
    """TRL as it comes, with the same divergence price."""
    return _trl(case, {})


def _trl(case: Case, over: dict[str, Any], **parts: Any) -> Report:
    theirs.require()
    from trl import GRPOConfig, GRPOTrainer

    return theirs.online(GRPOTrainer, GRPOConfig, case, {"beta": BETA, "loss_type": "grpo", **over}, **parts)


SIDES = {
    "posttrain": posttrain,
    "posttrain_lora": posttrain_lora,
    "posttrain_no_graphs": posttrain_no_graphs,
    "posttrain_vllm": posttrain_vllm,
    "posttrain_vllm_ahead": posttrain_vllm_ahead,
    "bound": bound,
    "trl": trl,
    "trl_padded": trl_padded,
    "trl_lora": trl_lora,
    "trl_default": trl_default,
    "trl_vllm": trl_vllm,
}
