"""A GRPO loop of your own: posttrain's sampler and loss, your model, your reward.

    python examples/grpo_loop.py                          # a tiny random model learns to write digits
    python examples/grpo_loop.py --model PATH --algorithm dr_grpo

Each step draws 8 answers to each prompt, rewards them, and takes one step of AdamW. It prints the mean reward.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from tiny import model_and_tokenizer

import posttrain
from posttrain.losses import group_advantages, policy_loss, token_logprobs

PROMPTS = [f"{a} + {a + 1}" for a in range(4)]
GROUP, MAX_TOKENS = 8, 8


def reward(text: str) -> float:
    """Yours: here the share of digits among the characters."""
    return sum(letter in "0123456789" for letter in text) / max(len(text), 1)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train; gives the mean reward of each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder")
    parser.add_argument("--algorithm", default="grpo", help="any algorithm that compares the samples of a prompt")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    model, tokenizer = model_and_tokenizer(args.model, args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr or (1e-6 if args.model else 1e-2))
    history = []
    for step in range(args.steps):
        samples = posttrain.sample(model, tokenizer, PROMPTS, n=GROUP, max_tokens=MAX_TOKENS, seed=args.seed + step)
        rewards = torch.tensor([reward(text) for text in samples.texts], device=model.device)
        advantages = group_advantages(args.algorithm, rewards, GROUP)

        logp, entropy = token_logprobs(model(samples.ids).logits[:, :-1], samples.ids[:, 1:])
        loss, metrics = policy_loss(
            args.algorithm,
            logp,
            samples.logp[:, 1:],
            advantages,
            samples.mask[:, 1:],
            entropy=entropy,
            settings={"kl": "none"},  # or give ref_logp, the log-probs of a frozen copy of the model
            max_length=MAX_TOKENS if args.algorithm == "dr_grpo" else None,
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

        history.append(float(rewards.mean()))
        print(
            f"step {step:3}  reward {history[-1]:.3f}  entropy {metrics['entropy']:.2f}  ratio {metrics['ratio']:.3f}"
        )
    return history


if __name__ == "__main__":
    main()
