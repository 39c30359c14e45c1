"""What GRPO makes of the echo of a question, `17^2` to "What is 17^2?": with the rule against it and without.

    python -m benchmarks.echo    # a minute on a core; docs/make/answers.py puts the table into docs/reports/answers.md

A tiny policy has learned from demonstrations to answer three times in ten with the question's own power, once in ten
with its value, and else with a random number of three digits.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import posttrain
from posttrain.answers.equal import same_answer
from posttrain.answers.extract import final_answer
from posttrain.answers.nodes import Unreadable
from posttrain.models.files.store import load_tokenizer, new_model
from posttrain.rewards import Rollout
from posttrain.text.bpe import BpeParams, train_tokenizer

QUESTIONS = ("What is 17^2?", "17^2 = ?", "Compute 17^2.", "Find 17^2.")
ROUNDS = 15
SHOWN = (0, 2, 5, 8, 11, ROUNDS - 1)


def policy(seed: int = 0) -> tuple[Any, Any]:
    """The model after its demonstrations, and its tokenizer."""
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    rng = random.Random(seed)
    rows = []
    for question in QUESTIONS * 100:
        answer = rng.choices(("17^2", "289", str(rng.randint(100, 999))), (0.3, 0.1, 0.6))[0]
        turns = [("user", question), ("assistant", rf"\boxed{{{answer}}}")]
        rows.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    with tempfile.TemporaryDirectory() as folder:
        texts = [turn["content"] for row in rows for turn in row["messages"]]
        train_tokenizer(texts, BpeParams(vocabulary=300), Path(folder))
        tokenizer = load_tokenizer(Path(folder))
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, intermediate_size=128, max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    model = new_model(config, seed)
    posttrain.train_model(model, tokenizer, rows, "sft", epochs=6, batch_size=16, optimizer={"lr": 5e-3})
    return model, tokenizer


def without_the_rule(rollouts: Sequence[Rollout]) -> list[float]:
    """1 where the final answer equals the prompt's, however it is written."""
    return [_equal(rollout) for rollout in rollouts]


def _equal(rollout: Rollout) -> float:
    try:
        return float(same_answer(rollout.prompt.answer, final_answer(rollout.text)))
    except Unreadable:
        return 0.0


def echoes(rollouts: Sequence[Rollout]) -> list[float]:
    """1 for an echo of the question's power."""
    return [float("^2}" in rollout.text) for rollout in rollouts]


def run(reward: Any, seed: int = 0) -> list[dict[str, float]]:
    """The metrics of each round under a reward; echoes are only counted."""
    model, tokenizer = policy(seed)
    prompts = [{"prompt": question, "answer": "289"} for question in QUESTIONS]
    settings = {
        "rollout": {"rounds": ROUNDS, "prompts": 4, "group_size": 16, "minibatches": 1, "sampling": {"max_tokens": 12}},
        "patience": None, "canaries": 0, "kl": "none", "optimizer": {"lr": 2e-3},
    }  # fmt: skip
    rewards = {"reward": reward, "echoes": (echoes, 0.0)}
    return posttrain.train_online(model, tokenizer, prompts, rewards, "grpo", settings=settings, seed=seed)


def table() -> list[str]:
    """The reward and the share of echoes by round, with the rule and without."""
    runs = {"with the rule": run({"type": "correct", "answer": "math"}), "without it": run(without_the_rule)}
    lines = ["| GRPO | | " + " | ".join(f"round {n + 1}" for n in SHOWN) + " |", "|---" * (len(SHOWN) + 2) + "|"]
    for name, steps in runs.items():
        for column, shown in (("reward", "reward"), ("reward_echoes", "echoes")):
            cells = " | ".join(f"{steps[n][column]:.2f}" for n in SHOWN)
            lines.append(f"| {name} | {shown} | {cells} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
