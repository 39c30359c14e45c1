"""Supervised fine-tuning with posttrain's own loop: rows in, a trained model out.

    python examples/sft.py                                # a tiny random model learns sums of two digits
    python examples/sft.py --model PATH --save my/model   # your model, in the format of transformers

It trains on the answers only, prints the loss, and samples greedy answers before and after.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny import model_and_tokenizer

import posttrain

ROWS = [
    {"messages": [{"role": "user", "content": f"{a} + {b}"}, {"role": "assistant", "content": str(a + b)}]}
    for a in range(5)
    for b in range(5)
]
QUESTIONS = [row["messages"][0]["content"] for row in ROWS]
ANSWERS = [row["messages"][1]["content"] for row in ROWS]


def accuracy(model: Any, tokenizer: Any) -> float:
    """How many questions are answered right, greedily."""
    answers = posttrain.sample(model, tokenizer, QUESTIONS, max_tokens=8, greedy=True).texts
    return sum(text.strip() == answer for text, answer in zip(answers, ANSWERS, strict=True)) / len(answers)


def print_step(step: int, metrics: dict[str, float]) -> None:
    """Every tenth step."""
    if step % 10 == 0:
        print(f"step {step:3}  loss {metrics['loss']:.3f}  lr {metrics['lr']:.1e}")


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """Train; gives the accuracy before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder")
    parser.add_argument("--save", type=Path, help="where to write the trained model")
    parser.add_argument("--epochs", type=float, default=40)
    parser.add_argument("--lr", type=float, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    model, tokenizer = model_and_tokenizer(args.model, args.seed)
    before = accuracy(model, tokenizer)
    lr = args.lr or (1e-5 if args.model else 1e-2)
    posttrain.train_model(
        model,
        tokenizer,
        ROWS,
        "sft",
        epochs=args.epochs,
        batch_size=8,
        seed=args.seed,
        optimizer={"lr": lr, "schedule": "cosine"},
        on_step=print_step,
    )
    after = accuracy(model, tokenizer)
    print(f"accuracy {before:.2f} -> {after:.2f}")
    if args.save:
        model.save_pretrained(args.save)
        tokenizer.save_pretrained(args.save)
    return before, after


if __name__ == "__main__":
    main()
