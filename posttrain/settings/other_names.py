"""Setting names in verl, OpenRLHF and older TRL -> our names, for errors about unknown keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SAMPLED = ("rollout.sampling.max_tokens", "sampling.max_tokens")
_CLIP = ("surrogate.high", "surrogate.low")
_KL = ("kl.beta", "loss.beta")
OURS: Final[Mapping[str, tuple[str, ...]]] = {
    "actor_learning_rate": ("optimizer.lr",),
    "critic_learning_rate": ("optimizer.critic_lr",),
    "lr_scheduler": ("optimizer.schedule",),
    "steps": ("rollout.rounds", "epochs", "limits.steps"),
    "warmup_ratio": ("optimizer.warmup",),
    "grad_clip": ("optimizer.clip",),
    "max_norm": ("optimizer.clip",),
    "adam_betas": ("optimizer.betas",),
    "max_epochs": ("epochs", "rollout.epochs"),
    "total_epochs": ("epochs", "rollout.rounds"),
    "num_episodes": ("epochs", "rollout.rounds"),
    "ppo_epochs": ("rollout.epochs",),
    "num_mini_batches": ("rollout.minibatches",),
    "ppo_mini_batch_size": ("rollout.minibatches",),
    "train_batch_size": ("batch", "rollout.prompts"),
    "rollout_batch_size": ("rollout.prompts",),
    "micro_train_batch_size": ("micro_tokens",),
    "ppo_micro_batch_size_per_gpu": ("micro_tokens",),
    "ppo_max_token_len_per_gpu": ("micro_tokens",),
    "n_samples_per_prompt": ("rollout.group_size", "samples"),
    "n": ("rollout.group_size", "samples"),
    "generate_max_len": _SAMPLED,
    "max_response_length": _SAMPLED,
    "max_seq_length": ("max_tokens",),
    "prompt_max_len": ("max_tokens",),
    "clip_ratio_high": ("surrogate.high",),
    "clip_ratio_low": ("surrogate.low",),
    "clip_range": _CLIP,
    "cliprange": _CLIP,
    "clip_ratio": _CLIP,
    "eps_clip": _CLIP,
    "cliprange_value": ("advantage.value_clip",),
    "value_clip": ("advantage.value_clip",),
    "vf_coef": ("advantage.value_coef",),
    "kl_coef": _KL,
    "init_kl_coef": _KL,
    "kl_loss_coef": _KL,
    "entropy_coeff": ("entropy",),
    "loss_agg_mode": ("aggregation",),
    "adv_estimator": ("algorithm", "advantage"),
    "advantage_estimator": ("algorithm", "advantage"),
    "reward_funcs": ("reward",),
    "model": ("start",),
    "pretrain": ("start",),
    "reward_pretrain": ("reward_model",),
    "dataset_name": ("data",),
    "train_dataset": ("data",),
    "dataset": ("data",),
    "lora_rank": ("adapter.rank",),
}
"""Their name -> possible paths in a run. Paths that a run does not have are not suggested."""
