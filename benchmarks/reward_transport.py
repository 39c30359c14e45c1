"""Seconds that the reward `correct` takes for long completions, with and without their tokens in each request.

python -m benchmarks.reward_transport [--count 256] [--tokens 8192]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from posttrain.models.device import DeviceParams, Runtime
from posttrain.rewards import workers
from posttrain.rewards.given import terms_given
from posttrain.rewards.reward import Context
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.tasks import worker


def seconds(rollouts: list[Rollout], send: Callable[..., dict[str, Any]]) -> float:
    """Seconds for all rollouts, after the workers have started."""
    vars(workers)["rollout_to"] = send
    rewards = RewardSum(terms_given({"correct": {"answer": "math"}}), Context(Runtime(DeviceParams()), "benchmark"))
    rewards.score(rollouts[:4])
    started = time.perf_counter()
    rewards.score(rollouts)
    return time.perf_counter() - started


def main() -> None:
    """Print both, in turn, three times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=8192)
    given = parser.parse_args()
    prompt = Prompt("p0", [{"role": "user", "content": "What is 6 * 6?"}], list(range(64)), "36")
    text = "word " * given.tokens + r"So it is \boxed{36}."
    ids = list(range(100_000, 100_000 + given.tokens))
    row, logps = TokenRow(list(prompt.ids), ids), [-0.123456789 * nth for nth in range(given.tokens)]
    rollouts = [Rollout(prompt, nth, row, logps, text, "stop") for nth in range(given.count)]
    texts_only = worker.rollout_to

    def with_tokens(rollout: Rollout, **_: Any) -> dict[str, Any]:
        return texts_only(rollout, tokens=True)

    for _ in range(3):
        print(f"with tokens {seconds(rollouts, with_tokens):.2f} s, texts only {seconds(rollouts, texts_only):.2f} s")


if __name__ == "__main__":
    main()
