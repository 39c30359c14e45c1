"""How long the reward `code` takes for endless programs: `python -m benchmarks.code_reward` compares six with one."""

from __future__ import annotations

import argparse
import os
import time

from posttrain.models.device import DeviceParams, Runtime
from posttrain.rewards.code import REWARDS, CodeOptions
from posttrain.rewards.reward import Context
from posttrain.rollout import Prompt, Rollout, TokenRow

TESTS = {"tests": ["assert f(1) == 2"], "entry_point": "f"}


def main() -> None:
    """Print the seconds of one endless program and of several."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1.0, help="the limit of processor time")
    arguments = parser.parse_args()
    score = REWARDS["code"].score_fn(CodeOptions(seconds=arguments.seconds), Context(Runtime(DeviceParams()), "code"))
    text = "```python\ndef f(x):\n    while True: pass\n```"
    rollout = Rollout(Prompt("p", [], [], info=TESTS), 0, TokenRow([], []), [], text, "stop")
    took = {}
    for count in (1, arguments.programs):
        start = time.monotonic()
        assert all(found == 0 for found in (score.value for score in score([rollout] * count)))  # type: ignore[union-attr]
        took[count] = time.monotonic() - start
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, limit {arguments.seconds:g} s: ", end="")
    print(", ".join(f"{count} endless program{'s' * (count > 1)} {seconds:.1f} s" for count, seconds in took.items()))


if __name__ == "__main__":
    main()
