"""GRPO with a reward of your own: a model, some prompts, a function.

    python examples/grpo.py                               # a tiny random model learns to write digits
    python examples/grpo.py --model PATH --output my/run  # saves the model, its rollouts and checkpoints

`posttrain.train_online` samples, scores and trains as a run of a pipeline does, with the same settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tiny import model_and_tokenizer

import posttrain
from posttrain.rewards import Rollout

PROMPTS = [f"{a} + {a + 1}" for a in range(8)]


def digits(rollouts: Sequence[Rollout]) -> list[float]:
    """Yours: here the share of digits among the characters of each completion."""
    texts = [rollout.text for rollout in rollouts]
    return [sum(letter in "0123456789" for letter in text) / max(len(text), 1) for text in texts]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Train; gives the metrics of each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder")
    parser.add_argument("--algorithm", default="grpo", help="any algorithm of online.runs")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--lr", type=float, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a folder for the model, rollouts and checkpoints")
    args = parser.parse_args(arguments)

    model, tokenizer = model_and_tokenizer(args.model, args.seed)
    history = posttrain.train_online(
        model, tokenizer, PROMPTS, digits, args.algorithm,
        settings={
            "rollout": {"rounds": args.rounds, "prompts": 4, "group_size": 8, "sampling": {"max_tokens": 8}},
            "patience": None,  # the tiny model never ends an answer
            "optimizer": {"lr": args.lr or (1e-6 if args.model else 1e-2)},
        },
        seed=args.seed,
        output=args.output,
        on_step=lambda step, metrics: print(f"step {step:3}  reward {metrics['reward']:.3f}"),
    )  # fmt: skip
    print(posttrain.sample(model, tokenizer, PROMPTS[:2], max_tokens=8).texts)
    return history


if __name__ == "__main__":
    main()
