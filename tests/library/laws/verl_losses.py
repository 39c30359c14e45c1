"""The losses of verl 0.9 by their published formulas, written again under the names of its functions.

A trainer of verl gives each micro-batch `dp_size`, `batch_num_tokens` and `global_batch_size`, and adds gradients up.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posttrain.losses import PaddedBatch, PaddedLoss

LOW, HIGH, CAP = 0.2, 0.28, 3.0


def agg_loss(loss: Tensor, batch: PaddedBatch, mode: str) -> Tensor:
    """token-mean, seq-mean-token-sum(-norm) or seq-mean-token-mean of a whole step."""
    mask = batch.mask.to(loss.dtype)
    per_row = (loss * mask).sum(-1)
    if mode == "token-mean":
        return per_row.sum() / batch.step_tokens * batch.ranks
    if mode == "seq-mean-token-mean":
        per_row = per_row / (mask.sum(-1) + 1e-8)
    if mode == "seq-mean-token-sum-norm":
        per_row = per_row / batch.longest
    counted = (mask.sum(-1) > 0).to(loss.dtype)
    return (per_row * counted).sum() / batch.step_rows * batch.ranks


def log_ratio(batch: PaddedBatch) -> Tensor:
    return (batch.logp - batch.old_logp).clamp(-20, 20)


def compute_policy_loss_vanilla(batch: PaddedBatch, cap: float = CAP) -> Tensor:
    ratio, good = log_ratio(batch).exp(), batch.advantage
    pessimistic = torch.maximum(-good * ratio, -good * ratio.clamp(1 - LOW, 1 + HIGH))
    return torch.where(good < 0, torch.minimum(-good * cap, pessimistic), pessimistic)


def compute_policy_loss_dppo_tv(batch: PaddedBatch) -> Tensor:
    far = batch.logp.exp() - batch.old_logp.exp()
    valid = torch.where(batch.advantage > 0, far <= 0.2, far >= -0.2)
    return _weighted(batch, valid)


def compute_policy_loss_dppo_kl(batch: PaddedBatch) -> Tensor:
    now, old = batch.logp.exp(), batch.old_logp.exp()
    rest = ((1 - old + 1e-8) / (1 - now + 1e-8)).log()
    near = old * (batch.old_logp - batch.logp) + (1 - old) * rest <= 0.05
    return _weighted(batch, torch.where(batch.advantage > 0, near | (now <= old), near | (now >= old)))


def _weighted(batch: PaddedBatch, valid: Tensor) -> Tensor:
    weight = log_ratio(batch).exp().clamp(max=20.0) * valid
    return -batch.advantage * weight.detach() * batch.logp


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def compute_policy_loss_gspo(batch: PaddedBatch) -> Tensor:
    mean = sequence_mean(batch.logp - batch.old_logp, batch.mask)
    ratio = (batch.logp - batch.logp.detach() + mean.detach()[:, None]).clamp(max=10).exp()
    good = batch.advantage
    return torch.maximum(-good * ratio, -good * ratio.clamp(1 - 3e-4, 1 + 4e-4))


def compute_policy_loss_sapo(batch: PaddedBatch) -> Tensor:
    tau = torch.where(batch.advantage > 0, 1.0, 1.05)
    return -torch.sigmoid(tau * (log_ratio(batch).exp() - 1)) * 4 / tau * batch.advantage


def compute_policy_loss_gpg(batch: PaddedBatch) -> Tensor:
    return -batch.logp * batch.advantage


def compute_policy_loss_cispo(batch: PaddedBatch) -> Tensor:
    return -log_ratio(batch).exp().clamp(1 - LOW, 1 + HIGH).detach() * batch.advantage * batch.logp


def compute_policy_loss_dro(batch: PaddedBatch, beta: float = 0.5) -> Tensor:
    return -(batch.logp * batch.advantage - beta / 2 * (batch.logp - batch.old_logp).square())


def compute_policy_loss_geo_mean(batch: PaddedBatch) -> Tensor:
    """A mean over the rows of a micro-batch, which the trainer divides by their number."""
    away, sign = batch.logp - batch.old_logp, batch.advantage.sign()
    held = sign * torch.minimum(sign * away, sign * away.clamp(-0.4, 0.4))
    ratio = sequence_mean(held, batch.mask).exp()
    return (-sequence_mean(batch.advantage, batch.mask) * ratio).mean() / batch.micro_batches


def covariance(batch: PaddedBatch, logp: Tensor) -> Tensor:
    mask = batch.mask
    centred = [part - (part * mask).sum() / mask.sum() for part in (batch.advantage, logp)]
    return centred[0] * centred[1]


def compute_policy_loss_clip_cov(batch: PaddedBatch) -> Tensor:
    ratio, good = (batch.logp - batch.old_logp).exp(), batch.advantage
    plain, held = -good * ratio, -good * ratio.clamp(0.8, 1.2)
    found = covariance(batch, batch.logp.detach())
    among = ((found > 1) & (found < 5) & batch.mask & ~(held > plain)).nonzero()
    among = among[torch.randperm(len(among))[: max(int(2e-4 * int(batch.mask.sum())), 1)]]
    kept = torch.ones_like(good)
    kept[among[:, 0], among[:, 1]] = 0
    return torch.maximum(plain, held) * kept


def compute_policy_loss_kl_cov(batch: PaddedBatch) -> Tensor:
    away = batch.logp - batch.old_logp
    found = covariance(batch, batch.logp.detach()).masked_fill(~batch.mask, -torch.inf).flatten()
    largest = found.topk(max(1, int(2e-4 * int(batch.mask.sum())))).indices
    penalised = torch.zeros_like(found).index_fill(0, largest, 1.0).view_as(away)
    return -batch.advantage * away.exp() + penalised * away.abs()


def kl_penalty(logp: Tensor, ref_logp: Tensor, kind: str) -> Tensor:
    away = logp - ref_logp
    half_square = away.square() / 2
    if kind.endswith("+") and kind != "k2+":
        return half_square - half_square.detach() + kl_penalty(logp, ref_logp, kind[:-1]).detach()
    back = (-away).clamp(-20, 20)
    kinds = {"k1": away, "abs": away.abs(), "k2": half_square, "k3": (back.exp() - back - 1).clamp(-10, 10)}
    return kinds[kind.rstrip("+")]


def compute_value_loss(batch: PaddedBatch, clip: float = 0.5) -> Tensor:
    held = torch.minimum(torch.maximum(batch.value, batch.old_value - clip), batch.old_value + clip)
    return 0.5 * torch.maximum((batch.value - batch.returns).square(), (held - batch.returns).square())


def verl(
    loss: Callable[[PaddedBatch], Tensor], mode: str = "token-mean", kl: str = "", correct: bool = False
) -> PaddedLoss:
    """A loss as verl's actor makes it: aggregated, with truncated weights for the sampler, and with a KL."""

    def whole(batch: PaddedBatch) -> Tensor:
        found = loss(batch)
        if correct and found.dim():
            found = found * (batch.old_logp - batch.sampler_logp).clamp(-20, 20).exp().clamp(max=2.0)
        total = found if found.dim() == 0 else agg_loss(found, batch, mode)
        return total + 0.05 * agg_loss(kl_penalty(batch.logp, batch.ref_logp, kl), batch, mode) if kl else total

    return PaddedLoss(whole)


MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
OVER_THE_MICRO_BATCH = {"clip_cov": compute_policy_loss_clip_cov, "kl_cov": compute_policy_loss_kl_cov}
"""verl chooses their tokens in each micro-batch, so that they depend on how a step is cut."""
LOSSES = {
    "vanilla": compute_policy_loss_vanilla,
    "dppo_tv": compute_policy_loss_dppo_tv,
    "dppo_kl": compute_policy_loss_dppo_kl,
    "gspo": compute_policy_loss_gspo,
    "sapo": compute_policy_loss_sapo,
    "gpg": compute_policy_loss_gpg,
    "cispo": compute_policy_loss_cispo,
    "dro": compute_policy_loss_dro,
    "geo_mean": compute_policy_loss_geo_mean,
}
