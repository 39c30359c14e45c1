"""Metrics of evaluations, and metrics that training stages write at their end."""

from __future__ import annotations

from typing import Final

from posttrain.pipeline.metrics.metric import EVALUATED, LIKELIHOOD, ONLINE, RATED, REGRADED, REWARD, TRAINED, Metric

RESULTS: Final = (
    Metric(
        ("score",),
        EVALUATED,
        "Mean over prompts of the mean reward of each prompt's samples, with its 95 % interval over prompts. With "
        "rewards of 0 and 1 it equals pass@1",
        "higher",
    ),
    Metric(("score_NAME",), EVALUATED, "The score of one task, or of one subset of pairs", "higher"),
    Metric(("pass_at_K",), EVALUATED, "Probability that at least one of K samples is right (unbiased)", "higher"),
    Metric(
        ("maj_at_K",),
        EVALUATED,
        "Share of prompts whose most frequent answer among K samples is right",
        "higher",
    ),
    Metric(
        ("best_of_K_by_NAME",),
        EVALUATED,
        "Mean reward of the sample that another score ranks first among K",
        "higher",
        "above `score`",
        "if it is not, that score does not rank answers by their reward",
    ),
    Metric(
        ("kl_k1", "kl_k3"),
        EVALUATED,
        "KL divergence to the evaluation's reference per token of the samples, by two estimators. The table of results "
        "shows it per completion",
        healthy="as small as the score allows",
        fix="compare `score` at equal KL; a policy with a high KL and no higher score has unlearned something",
    ),
    Metric(("greedy",), EVALUATED, "Mean reward of the likeliest completions (temperature 0)", "higher"),
    Metric(
        ("reward_NAME_failed",),
        EVALUATED,
        "Number of completions without a value of this part. Its mean leaves them out",
    ),
    Metric(("reward_NAME",), EVALUATED, "Mean of one part of the reward, or of a metric with weight 0", "higher"),
    Metric(
        ("parsed",),
        EVALUATED,
        "Share of completions whose answer could be read",
        "higher",
        "above 0.9",
        "read what the others wrote (the page, *Samples*): show the format in the prompt, or train it by SFT",
    ),
    Metric(
        ("truncated",),
        EVALUATED,
        "Share of completions that were cut at `max_tokens`",
        "lower",
        "below 0.03",
        "raise `max_tokens`, or train the model to stop (SFT with whole conversations)",
    ),
    Metric(("length",), EVALUATED, "Mean number of tokens per completion"),
    Metric(("failed",), EVALUATED, "Share of completions that no reward could score", "lower", "below 0.01"),
    Metric(("judged",), EVALUATED, "0: no reward judges these prompts, so there is no score"),
    Metric(
        ("margin",),
        EVALUATED,
        "Mean score of the chosen answers minus the mean score of the rejected answers",
        "higher",
    ),
    Metric(
        ("calibration_error",),
        (*EVALUATED, *REWARD),
        "Expected calibration error of the probability that the first answer is better",
        "lower",
        "below 0.1 on some hundred pairs; the few pairs of a step make it larger",
        "add pairs, or train fewer epochs",
    ),
    Metric(("heldout_calibration_error",), REWARD, "`calibration_error` on held-out pairs", "lower", "below 0.1"),
    Metric(
        ("demonstrations_score",),
        REWARD,
        "Mean score of demonstrations. posttrain subtracts it from each score, so that a demonstration scores 0",
    ),
    Metric(("pairs",), (*REWARD, *RATED), "Number of pairs"),
    Metric(("bits_per_byte",), EVALUATED, "Bits that the model needs per byte of text", "lower"),
    Metric(("loss",), EVALUATED, "Mean cross-entropy per token of the texts, in nats", "lower"),
    Metric(("perplexity",), EVALUATED, "exp(loss)", "lower"),
    Metric(("train_loss",), LIKELIHOOD, "Mean loss of the last 20 steps", "lower"),
    Metric(("steps", "rows", "tokens"), TRAINED, "Optimizer steps, rows and tokens of the whole training"),
    Metric(("best_step", "kept_step"), TRAINED, "Step of the best held-out evaluation, and of the stored weights"),
    Metric(
        ("over_optimised_step",),
        ONLINE,
        "First step at which the proxy rose while the true reward fell",
        fix="set `watch.keep: best`",
    ),
    Metric(
        ("moved", "raised", "lowered", "without_both"),
        REGRADED,
        "Completions whose reward changed, rose, fell, or is missing on one side",
    ),
    Metric(("reward", "reward_before"), REGRADED, "Mean reward under the new and the old rules", "higher"),
    Metric(("rollouts",), REGRADED, "Number of completions that were scored again"),
    Metric(("rating_NAME",), RATED, "Strength of a policy on the Elo scale; 400 points are odds of 10 to 1", "higher"),
    Metric(
        ("first_slot",),
        RATED,
        "Share of decided comparisons that the first answer won",
        healthy="0.4 to 0.6",
        fix="the judge prefers a position: use another judge. posttrain already asks in both orders",
    ),
    Metric(
        ("circles",),
        RATED,
        "Circles in which each policy beats the next. Equal policies make some by chance",
        "lower",
        "0",
    ),
)
