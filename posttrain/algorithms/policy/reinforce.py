"""REINFORCE: the plain policy gradient, with the mean reward of the batch as baseline."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.advantages import Advantage, MovingAverageOptions, Rewards, baseline, per_row
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.surrogate import Surrogate, Tokens
from posttrain.settings.choices import Options


def reinforce(tokens: Tokens, _: Options) -> Tensor:
    """A logp (Williams 1992)."""
    return tokens.advantage * tokens.logp


def batch_centred(reward_B: Tensor) -> Tensor:
    """R_i - mean_batch(R) (Williams 1992)."""
    return reward_B - reward_B.mean()


def _batch_centred(rewards: Rewards, _: Options) -> Tensor:
    return batch_centred(rewards.penalised)


def _moving_average(rewards: Rewards, _: MovingAverageOptions) -> Tensor:
    """R_i - b, b an exponential moving average of earlier batches' mean rewards (Williams 1992)."""
    return rewards.penalised - baseline(rewards.state, rewards.penalised)


SURROGATES = {"reinforce": Surrogate(Options, reinforce, "A logp", has_ratio=False)}
ADVANTAGES = {
    "batch_centred": Advantage(Options, per_row(_batch_centred), "R - mean of the batch"),
    "moving_average": Advantage(
        MovingAverageOptions, per_row(_moving_average), "R - moving average of earlier batches' means"
    ),
}
ROWS = {
    "reinforce": AlgorithmRow(
        "Williams 1992, doi:10.1007/BF00992696",
        "-mean_i sum_t A logp, A = R - mean_batch(R), R = reward - beta sum_t k1",
        {
            "advantage": "batch_centred",
            "surrogate": "reinforce",
            "aggregation": "sequence_sum",
            "kl": {"type": "reward_sequence", "estimator": "k1", "beta": 0.05},
        },
    )
}
