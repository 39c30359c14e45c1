"""Metrics of the steps of `base`, `sft`, `reward` and `preference`, and metrics of all training stages."""

from __future__ import annotations

from typing import Final

from posttrain.pipeline.metrics.metric import LIKELIHOOD, PREFERENCE, REWARD, TRAINED, Metric

TRAINING: Final = (
    Metric(
        ("loss",),
        LIKELIHOOD,
        "Mean cross-entropy of the trained tokens, in nats",
        "lower",
        "falls, then flattens; stays near `heldout_loss`",
        "far below `heldout_loss`, or with steps down at each epoch, the rows are memorised: train fewer epochs or add "
        "rows. If it rises, lower `optimizer.lr`. If it starts above 4, check template and tokenizer",
        low=0.01,
        must_not="rise",
    ),
    Metric(
        ("entropy",),
        LIKELIHOOD,
        "Mean entropy of the predicted next token, in nats",
        healthy="falls slowly and stays close to the loss",
        fix="a loss far below the entropy means memorised rows: train fewer epochs",
    ),
    Metric(("length",), LIKELIHOOD, "Mean number of trained tokens per row"),
    Metric(
        ("loss",),
        REWARD,
        "Mean loss per pair: -log sigmoid(margin). A model that guesses has 0.693",
        "lower",
        "starts near 0.69 or a little above, and falls; stays near that of held-out pairs",
        "near 0, the pairs are memorised: train fewer epochs. At 0.69, nothing is learned: raise `optimizer.lr`",
        low=0.02,
        must_not="rise",
    ),
    Metric(
        ("accuracy",),
        REWARD,
        "Share of the step's pairs in which the chosen answer has the higher score",
        "higher",
        "above 0.55",
        "near 0.5, nothing was learned: look at the pairs, raise `optimizer.lr`. Compare with `heldout_accuracy`",
        low=0.55,
    ),
    Metric(
        ("margin",),
        REWARD,
        "Mean score of the chosen answer minus that of the rejected answer",
        "higher",
        "positive; grows, and flattens with the learning rate",
        "if `heldout_margin` stops while it grows, the pairs are memorised: train fewer epochs",
        low=0.0,
    ),
    Metric(
        ("loss",),
        PREFERENCE,
        "Mean loss of the run's algorithm per pair or label. DPO starts at 0.693, because policy and reference agree",
        "lower",
        "falls; DPO's stays above 0.02",
        "near 0, with accuracy 1, the pairs are memorised: train fewer epochs, lower `optimizer.lr`, or use `cdpo` or "
        "`ipo`",
        must_not="rise",
    ),
    Metric(
        ("accuracy",),
        PREFERENCE,
        "Share of the step's pairs in which the policy prefers the chosen answer more than its reference does. "
        "For labels: the share of answers on the right side of the reference point",
        "higher",
        "above 0.55; above 0.95 only if held-out accuracy is near it",
        "near 0.5, nothing was learned: raise `optimizer.lr`. At 1, the pairs are memorised, or the answers differ in "
        "an easy sign such as their length",
        low=0.5,
    ),
    Metric(
        ("margin",),
        PREFERENCE,
        "`chosen` minus `rejected`, without `beta` (TRL multiplies by `beta`)",
        "higher",
        "positive; grows, and flattens with the learning rate",
        "if `heldout_margin` or `heldout_accuracy` stops while it grows, the pairs are memorised: train fewer epochs",
        low=0.0,
    ),
    Metric(
        ("chosen",),
        PREFERENCE,
        "Log-probability of the chosen answers minus the reference's, without `beta`: the sum over an answer's tokens "
        "with `reduce: sum` (the default of `dpo`), their mean with `reduce: mean`. The loss uses the same value. "
        "Without a reference, it is the log-probability itself, which is below 0",
        "higher",
        "in DPO a fall of up to about 0.3 nats per token is common, if `rejected` falls further. With `reduce: sum`, "
        "divide it by the tokens of an answer",
        "if it falls far, both answers became less likely: add `nll`, lower `optimizer.lr`, or raise the loss's `beta`",
    ),
    Metric(
        ("rejected",),
        PREFERENCE,
        "Log-probability of the rejected answers minus the reference's, with the same `reduce`",
        "lower",
        "below `chosen`",
        "see `margin`",
    ),
    Metric(
        ("logp_shift",),
        PREFERENCE,
        "Mean change of an answer's log-probability per token, policy minus reference. Chosen and rejected answers "
        "count alike",
        healthy="above -0.5; it falls a little in most runs, because rejected answers should fall",
        fix="below -1, probability moves to answers that no pair contains: add `nll`, or lower `optimizer.lr`",
        low=-2.0,
    ),
    Metric(("nll",), PREFERENCE, "Mean loss per token of the chosen answers, with `nll`", "lower", "falls"),
    Metric(
        ("z0", "shift"),
        PREFERENCE,
        "Reference point of losses of single labels (KTO, BCO): answers above it count as preferred",
        healthy="moves slowly",
        fix="if it stays at 0 for the whole run, the policy does not move: raise `optimizer.lr`",
    ),
    Metric(
        ("chosen_rows",),
        TRAINED,
        "Number of own samples that the step's rule selected for training",
        healthy="above 0",
        fix="no sample passes: lower the required reward, or sample more per prompt",
    ),
    Metric(
        ("grad_norm",),
        TRAINED,
        "Norm of the gradient before clipping",
        healthy="no spikes above 10 times its median; DPO is often far above `optimizer.clip`, which is harmless",
        fix="lower `optimizer.lr`, raise `optimizer.warmup`; `limits.gradient` ends such a run. 0: nothing is learned",
    ),
    Metric(("lr",), TRAINED, "Learning rate of this step"),
    Metric(
        ("balance_loss",),
        TRAINED,
        "How unevenly a [mixture of experts](models.md#mixtures-of-experts) uses its experts. Even use: the experts "
        "per token",
        "lower",
        "near the number of experts per token",
        "raise `router.balance`",
    ),
    Metric(("router_entropy",), TRAINED, "Mean entropy of the routers of a mixture of experts, in nats"),
    Metric(
        ("router_moved",),
        TRAINED,
        "Share of replayed expert choices that the trainer alone would have made differently",
        "lower",
        "below 0.05",
        "the sampler and the trainer disagree: keep `router.replay`, sample more often",
    ),
    Metric(
        ("expert_load_max", "expert_load_min"),
        TRAINED,
        "Tokens of the most used and the least used expert, relative to an even share (1)",
        healthy="near 1 in training from scratch; in fine-tuning, no worse than at the first step",
        fix="raise `router.balance`; a minimum load of 0 means that an expert is unused",
    ),
    Metric(
        ("heldout_loss",),
        TRAINED,
        "Loss on held-out rows, with `watch`",
        "lower",
        "falls, then flattens; after the first epoch of SFT it may rise while answers improve",
        "judge by `heldout_score` if you can; else set `watch.keep: best`, or train fewer epochs",
        must_not="rise",
    ),
    Metric(
        ("heldout_accuracy",),
        (*REWARD, *PREFERENCE),
        "`accuracy` on held-out pairs, with `watch`",
        "higher",
        "above 0.55, at most 0.1 below `accuracy`",
        "if it is far below `accuracy`, the pairs are memorised: train fewer epochs, add pairs",
        low=0.5,
    ),
    Metric(("heldout_margin",), (*REWARD, *PREFERENCE), "`margin` on held-out pairs", "higher", "positive, and grows"),
    Metric(
        ("heldout_score",),
        LIKELIHOOD,
        "Mean reward of the model's own answers to held-out prompts, with `watch.reward`",
        "higher",
        "rises",
        "set `watch.keep: best`",
        must_not="fall",
    ),
    Metric(
        ("heldout_both_fell",),
        PREFERENCE,
        "Share of held-out pairs in which both answers are less likely than at the start",
        "lower",
        "often above 0.5 in DPO; sick only with a large fall of `chosen`, or if samples get worse",
        "the probability goes to other answers: lower `optimizer.lr`, raise the loss's `beta`, or add `nll`",
        high=0.95,
    ),
)
