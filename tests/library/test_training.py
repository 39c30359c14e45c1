"""The library trains, samples and saves without the pipeline."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

PROMPTS = [f"{a} + {b}" for a in range(3) for b in range(3)]
ANSWERS = [str(a + b) for a in range(3) for b in range(3)]


@pytest.fixture
def model_and_tokenizer() -> tuple[Any, Any]:
    import tiny

    model, tokenizer = tiny.model_and_tokenizer(None, 0)
    return model, tokenizer


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def assistant(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def accuracy(model: Any, tokenizer: Any) -> float:
    texts = posttrain.sample(model, tokenizer, PROMPTS, max_tokens=6, greedy=True).texts
    return sum(text.strip() == answer for text, answer in zip(texts, ANSWERS, strict=True)) / len(ANSWERS)


def is_right(rollouts: Sequence[Any]) -> list[float]:
    return [float(one.text.strip() == one.prompt.answer) for one in rollouts]


@pytest.mark.timeout(600)
def test_sft_dpo_a_reward_model_an_evaluation_and_a_saved_model(
    model_and_tokenizer: tuple[Any, Any], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model, tokenizer = model_and_tokenizer
    rows = [{"messages": user(p) + assistant(a)} for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    posttrain.train_model(model, tokenizer, rows, "sft", epochs=60, batch_size=9, optimizer={"lr": 1e-2})
    learned = accuracy(model, tokenizer)
    assert learned > 0.6
    pairs = [
        {"prompt": user(p), "chosen": assistant(a), "rejected": assistant("7")}
        for p, a in zip(PROMPTS, ANSWERS, strict=True)
    ]
    log = posttrain.train_model(model, tokenizer, pairs, "dpo", epochs=8, batch_size=9, optimizer={"lr": 1e-3})
    assert log[-1]["loss"] < log[0]["loss"]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scorer = posttrain.reward_model(model)
    posttrain.train_model(scorer, tokenizer, pairs, "reward", epochs=20, batch_size=9, optimizer={"lr": 3e-3})
    right, wrong = (
        posttrain.score(scorer, tokenizer, [{"prompt": pair["prompt"], "completion": pair[side]} for pair in pairs])
        for side in ("chosen", "rejected")
    )
    assert sum(a > b for a, b in zip(right, wrong, strict=True)) >= 7
    rows = [{"prompt": user(p), "answer": a} for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    found = posttrain.evaluate_model(model, tokenizer, rows, is_right, samples=4, max_tokens=6)
    assert found.metrics["greedy"] == pytest.approx(accuracy(model, tokenizer))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    again, _ = posttrain.load_model(tmp_path)
    assert accuracy(again, tokenizer) == accuracy(model, tokenizer)


@pytest.mark.timeout(600)
def test_grpo_raises_its_reward(model_and_tokenizer: tuple[Any, Any]) -> None:
    model, tokenizer = model_and_tokenizer

    def digits(rollouts: Sequence[Any]) -> list[float]:
        return [sum(sign.isdigit() for sign in one.text) / max(1, len(one.text)) for one in rollouts]

    rollout = {"rounds": 40, "prompts": 8, "group_size": 8, "sampling": {"max_tokens": 8}}
    settings = {"rollout": rollout, "optimizer": {"lr": 1e-2}, "patience": None}  # it never ends an answer
    log = posttrain.train_online(model, tokenizer, PROMPTS, digits, "grpo", settings=settings)
    first, last = (sum(row["reward"] for row in part) / 5 for part in (log[:5], log[-5:]))
    assert last > first + 0.2
