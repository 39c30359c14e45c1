"""Losses for your own training loop: torch tensors in, the loss and its metrics out.

    logp, entropy = token_logprobs(model(ids).logits[:, :-1], ids[:, 1:])
    advantages = group_advantages("grpo", rewards, groups=8)
    loss, metrics = policy_loss("grpo", logp, old_logp, advantages, mask[:, 1:], ref_logp=ref_logp)
    loss.backward()

Axes: B rows, T tokens, V vocabulary, D hidden size. `mask` [B, T] is true (or 1) at the trained tokens; padding may be
on either side. Names of algorithms and their `settings` are listed in docs/algorithms.md. `settings` replaces some
defaults, e.g. `{"kl": {"type": "loss", "beta": 0.1}}`. A loss is computed for a whole optimizer step. To add up
micro-batches, multiply each loss by the micro-batch's share of the step's rows; with `aggregation` token_mean, by its
share of the tokens. With `truncated` mask, only rows that count are shared out.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from posttrain.algorithms import advantages as formulas
from posttrain.algorithms.objective import part_columns
from posttrain.algorithms.padded import (
    PaddedBatch,
    PaddedLoss,
    check_arguments,
    entry,
    flat,
    padded,
    padded_loss,
    settings_of,
)
from posttrain.algorithms.policy import ppo
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_loss import PairLoss, UnaryLoss
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.surrogate import Surrogate, Tokens
from posttrain.errors import ParamsError
from posttrain.formulas.group_preferences import GroupPreferences, share_divergence
from posttrain.formulas.policy import ESTIMATORS, clipped_value
from posttrain.formulas.ragged import Ragged
from posttrain.formulas.reward import bradley_terry, centring
from posttrain.models.forward.logp import Head, ModuleHead, token_logp
from posttrain.settings.choices import Options

__all__ = [
    "GroupPreferences",
    "Options",
    "PaddedBatch",
    "PaddedLoss",
    "PairLoss",
    "Surrogate",
    "Tokens",
    "UnaryLoss",
    "diffusion_dpo_loss",
    "gae",
    "group_advantages",
    "group_preference_loss",
    "kl_estimate",
    "mdpo_loss",
    "policy_loss",
    "preference_loss",
    "reward_loss",
    "token_logprobs",
    "token_logprobs_from_hidden",
    "value_loss",
    "whiten",
]

Metrics = dict[str, float]
Settings = Mapping[str, Any]
ENTROPY = "step_start_entropy"
State = MutableMapping[str, float]
OFF = Options(type="none")


def policy_loss(
    algorithm: str,
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    ref_logp: Tensor | None = None,
    entropy: Tensor | None = None,
    sampler_logp: Tensor | None = None,
    truncated: Tensor | None = None,
    max_length: int | None = None,
    groups: int | Tensor | None = None,
    epoch: int = 0,
    settings: Settings | None = None,
    state: State | None = None,
) -> tuple[Tensor, Metrics]:
    """Return the loss of an online RL algorithm (grpo, ppo, rloo, dapo, gspo, ...) for given advantages.

    logp [B, T]: log-probs under the trained policy, with gradient. old_logp [B, T]: under the policy that sampled.
    advantages [B] or [B, T]: one per row or per token. ppo and reinforce_pp whiten them here; if you cut a step into
    micro-batches, `whiten` them first and set `whiten: False`. For a KL penalty in the reward (ppo, rloo, reinforce),
    subtract it from the rewards before you compute advantages.

    ref_logp [B, T]: under the frozen reference, for a KL term in the loss and the metrics kl_k1, kl_k2 and kl_k3.
    entropy [B, T]: for the metric, the bonus (setting `entropy`) and `top_entropy`. sampler_logp [B, T]: recorded by an
    inference engine, if old_logp is computed by the trainer (setting `correction`). truncated [B]: completions without
    an end token (grpo_plus). max_length: the constant of dr_grpo. groups: for p3o, as in `group_advantages`. epoch: the
    number of earlier steps on the same samples. state: your dict, initially {}, for coefficients that adapt.
    """
    config = settings_of(POLICY_ROWS, algorithm, settings)
    _check_supported(algorithm, config)
    arguments = {
        "ref_logp": (ref_logp, config.kl.type == "loss", config.kl.type != "none"),
        "entropy": (entropy, config.entropy > 0 or ENTROPY in config.surrogate_entry.needs, True),
        "sampler_logp": (sampler_logp, *2 * [config.correction.type != "none"]),
        "truncated": (truncated, config.truncated == "mask", config.truncated == "mask"),
        "max_length": (max_length, *2 * [config.aggregation == "fixed_length"]),
        "groups": (groups, *2 * ["group" in config.surrogate_entry.needs]),
    }
    check_arguments(algorithm, arguments)
    changes = {"advantage": Options(type="batch_centred")} | ({} if ref_logp is not None else {"kl": OFF})
    objective = PolicyObjective(config.model_copy(update=changes), max_length or 1)
    columns = {
        "advantage": advantages[:, None].expand_as(mask) if advantages.dim() == 1 else advantages,
        "old_logp": old_logp if sampler_logp is None else sampler_logp,
        "recomputed_logp": old_logp,
        "step_start_logp": logp,
        "entropy": torch.zeros_like(logp) if entropy is None else entropy,
        ENTROPY: logp if entropy is None else entropy.detach(),
        "age": torch.full(mask.shape[:1], epoch, device=mask.device),
        "fresh": torch.full(mask.shape[:1], not epoch, device=mask.device),
    }
    columns |= {} if ref_logp is None else {"ref_logp": ref_logp}
    columns |= {} if truncated is None else {"truncated": truncated}
    columns |= {} if groups is None else {"group": _group_numbers(groups, mask.shape[0], mask.device)}
    if "sample_key" in objective.needs:
        columns["sample_key"] = torch.arange(mask.shape[0], device=mask.device)
    loss, metrics = padded_loss(objective, logp, columns, mask, state)
    return loss, {name: value for name, value in metrics.items() if name != "entropy" or entropy is not None}


def preference_loss(
    algorithm: str,
    logp: Tensor,
    mask: Tensor,
    *,
    ref_logp: Tensor | None = None,
    labels: Tensor | None = None,
    settings: Settings | None = None,
    state: State | None = None,
) -> tuple[Tensor, Metrics]:
    """Return the loss of a preference algorithm (dpo, ipo, simpo, orpo, cpo, slic, apo_zero, exo, kto, bco, ...).

    logp [B, T]: log-probs of the answers' tokens under the trained policy, with gradient. ref_logp [B, T]: under the
    frozen reference; simpo, orpo, cpo and slic do not need it.

    Pairs: the first half of the rows are the chosen answers, the second half the rejected ones in the same order. kto
    and bco take single answers with labels [B]: +1 desirable, -1 undesirable. For kto, 0 marks a prompt with the answer
    to another prompt, which estimates the KL. state: a dict that you keep, initially {}, for bco's running mean. aot
    and aot_unpaired sort the given rows, so pass all rows of an optimizer step.
    """
    objective = PreferenceObjective(settings_of(PREFERENCE_ROWS, algorithm, settings))
    reference, unpaired = objective.config.reference, not objective.config.paired
    check_arguments(algorithm, {"ref_logp": (ref_logp, reference, reference), "labels": (labels, unpaired, unpaired)})
    columns = {"step_start_logp": logp} | ({} if ref_logp is None else {"ref_logp": ref_logp})
    if labels is not None:
        return padded_loss(objective, logp, {**columns, "label": labels}, mask, state)
    pairs = _pairs(mask.shape[0], "logp")
    side = torch.tensor([1.0, -1.0], device=mask.device).repeat_interleave(pairs)
    return padded_loss(objective, logp, {**columns, "side": side}, mask, state, pairs)


def diffusion_dpo_loss(
    prediction: Tensor, ref_prediction: Tensor, noise: Tensor, *, beta: float
) -> tuple[Tensor, Metrics]:
    """Return the Diffusion-DPO loss (arXiv:2311.12908) of a denoiser: mean -log sigmoid(-beta (h - l)).

    h = |noise - prediction|^2 - |noise - ref_prediction|^2 for the chosen sample, summed over all but the first axis. l
    is the same for the rejected sample. The first half of the rows are the chosen samples, the second half the rejected
    ones in the same order; the two samples of a pair have the same time step. beta: the paper's beta T omega(lambda_t),
    one number.

    prediction: the predicted noise of noised samples, with gradient. ref_prediction: the frozen reference's prediction.
    """
    pairs = _pairs(noise.shape[0], "noise")
    if not prediction.shape == ref_prediction.shape == noise.shape:
        shapes = [tuple(given.shape) for given in (prediction, ref_prediction, noise)]
        what, fix = f"prediction, ref_prediction and noise have shapes {shapes}", "Give all tensors in one shape"
        raise ParamsError(what=what, where="prediction", fix=fix)
    noise = noise.to(torch.promote_types(noise.dtype, torch.float32))
    error, before = ((given - noise).square().flatten(1).sum(1) for given in (prediction, ref_prediction))
    chosen, rejected = torch.split(error - before.detach(), pairs)
    return _preferred({"": beta * (rejected - chosen)})


def mdpo_loss(
    logp: Tensor, mask: Tensor, ref_logp: Tensor, *, beta: float = 0.1, anchor: float = 0.0
) -> tuple[Tensor, Metrics]:
    """Return the mDPO loss (arXiv:2406.11839) for answers to an image.

    -log sigmoid(w - l) - log sigmoid(w - o) - log sigmoid(w - anchor). w, l and o are beta (logp - ref_logp), summed
    over tokens, for the chosen answer, the rejected answer, and the chosen answer to another image: a crop of this
    image, or an image that the answer does not fit. The last term keeps the chosen answer's reward above the anchor.

    logp, ref_logp [3B, T]: the first third of the rows are the chosen answers, the second third the rejected ones, and
    the last third the chosen ones with the other image, in the same order.
    """
    triples, odd = divmod(mask.shape[0], 3)
    if odd:
        what, fix = (
            f"{mask.shape[0]} rows are not triples",
            "Give chosen and rejected rows, and the chosen for other images",
        )
        raise ParamsError(what=what, where="logp", fix=fix)
    gap = padded(flat("logp", logp, mask) - flat("ref_logp", ref_logp, mask).detach(), mask)
    chosen, rejected, other = torch.split(beta * gap.sum(1), triples)
    return _preferred({"": chosen - rejected, "image_": chosen - other, "anchor_": chosen - anchor})


def group_preference_loss(scores: Tensor, shares: Tensor, known: Tensor) -> tuple[Tensor, Metrics]:
    """Return the loss of GPO's preference module: mean KL(shares || softmax(scores)) over the unknown questions.

    scores [B, Q, O]: from `GroupPreferences`, with gradient. shares [B, Q, O]: the groups' real answers. known [B, Q]:
    the questions whose shares the module has read; some must be unknown.
    """
    asked = ~known.bool()
    if not asked.any():
        what, fix = "all questions are known, so none is predicted", "Leave some of each group's questions unknown"
        raise ParamsError(what=what, where="known", fix=fix)
    scores, shares = scores[asked], shares[asked]
    same = (scores.argmax(-1) == shares.argmax(-1)).float().mean()
    return share_divergence(scores, shares).mean(), {"accuracy": float(same)}


def _pairs(rows: int, where: str) -> int:
    """Return the number of pairs in the rows."""
    pairs, odd = divmod(rows, 2)
    if odd:
        what, fix = f"{rows} rows are not pairs", "Give the chosen rows, then the same number of rejected rows"
        raise ParamsError(what=what, where=where, fix=fix)
    return pairs


def _preferred(margins: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
    """Return the sum of mean -log sigmoid(margin), and metrics: each margin's mean and how often it is above 0."""
    metrics = {}
    for name, margin in margins.items():
        metrics[f"{name}accuracy"] = float((margin > 0).float().mean())
        metrics[f"{name}margin"] = float(margin.detach().mean())
    return torch.stack([-logsigmoid(margin).mean() for margin in margins.values()]).sum(), metrics


def reward_loss(
    chosen: Tensor, rejected: Tensor, *, margin: Tensor | float = 0.0, centring_weight: float = 0.0
) -> tuple[Tensor, Metrics]:
    """Return a reward model's Bradley-Terry loss: mean -log sigmoid(chosen - rejected - margin).

    chosen, rejected [B]: scores of the two answers of each prompt. margin: one number, or [B]. centring_weight: weight
    of (chosen + rejected)^2, which keeps scores around 0.
    """
    chosen, rejected = (score.to(torch.promote_types(score.dtype, torch.float32)) for score in (chosen, rejected))
    loss = bradley_terry(chosen, rejected, margin).mean() + centring_weight * centring(chosen, rejected).mean()
    gap = (chosen - rejected).detach()
    return loss, {"accuracy": float((gap > 0).float().mean()), "margin": float(gap.mean())}


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, clip: float | None = 0.2
) -> Tensor:
    """Return PPO's critic loss: the token mean of 0.5 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2).

    values [B, T]: with gradient. old_values [B, T]: values when the samples were drawn. returns [B, T]: see `gae`.
    """
    value_N, old_N = flat("values", values, mask), flat("old_values", old_values, mask)
    return clipped_value(value_N, old_N, flat("returns", returns, mask), clip).mean()


def group_advantages(
    algorithm: str,
    rewards: Tensor,
    groups: int | Tensor,
    *,
    weights: Sequence[float] = (),
    settings: Settings | None = None,
) -> Tensor:
    """Return each sample's advantage [B] over the samples of the same prompt, by the algorithm's formula.

    grpo, gspo, dapo: (R - mean) / (std + 1e-4), 0 if all rewards are equal. dr_grpo: R - mean. rloo: R - mean of the
    others. maxrl: (R - mean) / mean. gdpo: rewards [B, K] are K parts with `weights`.

    rewards [B]. groups: the number of samples per prompt, if they are adjacent; or each row's prompt number [B].
    """
    config = settings_of(POLICY_ROWS, algorithm, settings)
    if config.advantage_entry.by_length:
        what, fix = f"'{algorithm}' weighs rewards by lengths, but no lengths are given", "Use rloo or dr_grpo"
        raise ParamsError(what=what, where="group_advantages", fix=fix)
    if not config.advantage_entry.grouped or config.advantage.type == "win_rate":
        what, fix = f"'{algorithm}' does not compare the rewards of a group", "Use gae, or subtract a baseline"
        raise ParamsError(what=what, where="group_advantages", fix=fix)
    count = rewards.shape[0]
    groups = _group_numbers(groups, count, rewards.device)
    rewards = rewards.detach().to(torch.promote_types(rewards.dtype, torch.float32))
    zeros = rewards.new_zeros(count)
    columns = _parts(rewards, weights) if config.advantage_entry.by_part else {}
    if not columns and rewards.dim() != 1:
        what, fix = f"rewards of shape {[*rewards.shape]}", "Give one reward for each sample: [B]"
        raise ParamsError(what=what, where="rewards", fix=fix)
    step = Ragged(torch.ones_like(groups, dtype=torch.long), {"group": groups, **columns}, {"logp": zeros})
    outcome = formulas.Rewards(step, rewards if rewards.dim() == 1 else zeros, zeros, zeros, {})
    advantages: Tensor = config.advantage_entry.columns(outcome, config.advantage)["advantage"]
    return advantages


def _group_numbers(groups: int | Tensor, count: int, device: torch.device) -> Tensor:
    """Return each row's prompt number."""
    if not isinstance(groups, int):
        return groups
    if groups < 2 or count % groups:
        what, fix = f"{count} rows are not groups of {groups}", "Give a divisor, 2 or more, or prompt numbers"
        raise ParamsError(what=what, where="groups", fix=fix)
    return torch.arange(count, device=device) // groups


def _parts(rewards: Tensor, weights: Sequence[float]) -> dict[str, Tensor]:
    """Return the columns of rewards [B, K] by part."""
    if rewards.dim() != 2 or len(weights) != rewards.shape[1]:
        what, fix = f"rewards of shape {[*rewards.shape]} and {len(weights)} weights", "Give rewards [B, K], K weights"
        raise ParamsError(what=what, where="weights", fix=fix)
    return part_columns({str(k): pair for k, pair in enumerate(zip(rewards.unbind(1), weights, strict=True))})


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return generalised advantages and returns (Schulman 2016), both [B, T] and 0 outside the mask.

    delta_t = r_t + gamma V_{t+1} - V_t, A_t = sum_l (gamma lam)^l delta_{t+l}, return = A + V. rewards [B, T]; or [B]
    for an outcome, which is placed on the last token. values [B, T]: of the state before each token. Zeros with lam 1
    give the discounted return.
    """
    value_N, lengths_B = flat("values", values, mask).detach(), mask.bool().sum(1)
    reward_N = formulas.at_last_token(rewards, lengths_B) if rewards.dim() == 1 else flat("rewards", rewards, mask)
    columns = ppo.gae(reward_N.detach().to(value_N.dtype), value_N, lengths_B, gamma=gamma, lam=lam)
    return padded(columns[0], mask), padded(columns[1], mask)


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Return (A - mean) / std over all tokens of the mask, 0 elsewhere: [B, T] -> [B, T]."""
    advantage_N = flat("advantages", advantages, mask).detach()
    return padded(formulas.whiten(advantage_N, torch.ones_like(advantage_N)), mask)


def kl_estimate(logp: Tensor, ref_logp: Tensor, estimator: str = "k3") -> Tensor:
    """Return an estimate of KL(policy || reference) at each token that the policy sampled, in the shape of logp.

    k1: logp - ref_logp; k2: k1^2 / 2; k3: exp(-k1) + k1 - 1, never negative. Use k1 in a reward and k2 or k3 in a loss,
    because the gradient of k1 has expectation 0.
    """
    estimate: Tensor = entry(ESTIMATORS, estimator, "estimator")(logp, ref_logp)
    return estimate


def token_logprobs(logits: Tensor, tokens: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return each token's log-prob and entropy, both [B, T] with gradient, in float32 or higher precision.

    logits [B, T, V] predict tokens [B, T]: with a causal model, `logits[:, :-1]` and `ids[:, 1:]`. Pass the sampling
    temperature. Only the logits stay in memory for the backward pass.
    """
    return _token_logprobs(logits, ModuleHead(nn.Identity(), logits.shape[-1]), tokens, temperature)


def token_logprobs_from_hidden(
    hidden: Tensor, tokens: Tensor, weight: Tensor, bias: Tensor | None = None, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Like `token_logprobs`, without storing the logits [B, T, V]; for models that do not scale or cap their logits.

    hidden [B, T, D]: the last hidden states, which predict tokens [B, T]. weight [V, D] and bias [V]: from
    `model.get_output_embeddings()`.
    """
    return _token_logprobs(hidden, Head(weight, bias), tokens, temperature)


def _token_logprobs(
    states: Tensor, head: Head | ModuleHead, tokens: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    if states.shape[:-1] != tokens.shape:
        what = f"they predict {tuple(states.shape[:-1])} tokens, but there are {tuple(tokens.shape)} tokens"
        fix = "Shift a causal model's output by one: [:, :-1] predicts ids[:, 1:]"
        raise ParamsError(what=what, where="logits or hidden states", fix=fix)
    logp, entropy = token_logp(states.flatten(0, -2), head, tokens.flatten(), temperature)
    return logp.view(tokens.shape), entropy.view(tokens.shape)


def _check_supported(algorithm: str, config: Any) -> None:
    """Reject terms that need more than the samples' log-probs."""
    if config.ptx or config.penalty.type == "exact":
        what, fix = "ptx and penalty exact need more than samples' log-probs", "Use ptx 0 and penalty sampled"
        raise ParamsError(what=what, where=f"settings of {algorithm}", fix=fix)
