"""A small model and tokenizer for tests, made in a second and the same every time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_tokenizer, new_model, save_model
from posttrain.models.forward.logp import Head
from posttrain.rewards.reward import Context, Reward, ScoreFn, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Completion, Mixture, Request, SamplingParams
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.text.stops import Stops

TEXTS = [f"{a}+{b}={a + b} so the answer is #### {a + b}" for a in range(20) for b in range(20)]


def tiny_model(seed: int = 0, vocabulary: int = 97, kv_heads: int = 2) -> Any:
    """A two-layer Qwen3 with weights spread widely enough that mistakes show."""
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=kv_heads,
        head_dim=8, intermediate_size=48, max_position_embeddings=256, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    return new_model(config, seed)


def tiny_folder(path: Path, seed: int = 0) -> Path:
    """A model folder with a tokenizer that fits."""
    tokens = path / "tokenizer"
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), tokens)
    text = ChatText(load_tokenizer(tokens))
    save_model(tiny_model(seed, vocabulary=len(text.tokenizer)), path / "model", tokens)
    return path / "model"


HEADS: dict[str, dict[str, float]] = {
    "matrix": {},
    "bias": {},
    "scale": {"scale": 0.3},
    "cap": {"scale": 1.7, "cap": 2.5},
}


def random_head(kind: str) -> tuple[Head, list[torch.Tensor]]:
    """A head of 53 tokens over 8 numbers, and what of it is trained."""
    weight = torch.randn(53, 8, dtype=torch.float64, requires_grad=True)
    if kind in ("matrix", "scale"):
        return Head(weight, **HEADS[kind]), [weight]
    bias = torch.randn(53, dtype=torch.float64, requires_grad=True)
    return Head(weight, bias, **HEADS[kind]), [weight, bias]


def random_rows(count: int, seed: int = 0, vocabulary: int = 97) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts (some shared by neighbours) and completions of uneven length."""
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    while len(prompts) < count:
        prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 17))]
        prompts += [prompt] * min(rng.randint(1, 3), count - len(prompts))
    completions = [[rng.randrange(vocabulary) for _ in range(rng.randint(1, 14))] for _ in range(count)]
    return prompts, completions


def plain_logps(model: Any, prompts: list[list[int]], completions: list[list[int]]) -> torch.Tensor:
    """Each row by itself through transformers' own eager path: what every fast path must equal."""
    was = model.config._attn_implementation
    model.set_attn_implementation("eager")
    parts = []
    for prompt, completion in zip(prompts, completions, strict=True):
        logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[0].log_softmax(-1)
        at = torch.arange(len(prompt) - 1, len(prompt) + len(completion) - 1)
        parts.append(logits[at].gather(1, torch.tensor(completion)[:, None]).squeeze(1))
    model.set_attn_implementation(was)
    return torch.cat(parts)


@dataclass(frozen=True)
class Samples:
    """Completions as columns."""

    ids: list[list[int]]
    logps: list[list[float]]
    truncated: list[bool]


def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    names: Sequence[str],
    *,
    n: int,
    params: SamplingParams,
    seed: int,
    stop: Stops,
    device: Runtime,
    mixture: Mixture | None = None,
    advance: Callable[[int], None] | None = None,
) -> Samples:
    """n samples of each prompt by the local sampler."""
    asked = zip(prompts, names, strict=True)
    requests = [Request(ids, f"{name}:{i}") for ids, name in asked for i in range(n)]
    return _columns(
        LocalSampler(model, stop, device).generate(requests, params, seed, mixture=mixture, advance=advance)
    )


def greedy(
    model: Any, prompts: Sequence[Sequence[int]], *, params: SamplingParams, stop: Stops, device: Runtime
) -> Samples:
    """The likeliest completion of each prompt by the local sampler."""
    requests = [Request(ids, str(i)) for i, ids in enumerate(prompts)]
    return _columns(LocalSampler(model, stop, device).generate(requests, params, 0, greedy=True))


def _columns(found: Sequence[Completion]) -> Samples:
    return Samples([one.ids for one in found], [one.logps for one in found], [one.finish == "length" for one in found])


def function_reward(
    judge: ScoreFn, others: Mapping[str, WeightedReward] = MappingProxyType({}), max_tokens: int | None = None
) -> RewardSum:
    """A sum of a reward that is a plain function, and others."""
    term = WeightedReward(reward=Reward(lambda options, context: judge))
    return RewardSum({"few": term, **others}, Context(Runtime(DeviceParams()), "test", max_tokens=max_tokens))


def rollout_of(text: str, answer: str = "", *, truncated: bool = False, task: str = "") -> Rollout:
    """A rollout of one turn as rewards see it."""
    prompt = Prompt("p0", [{"role": "user", "content": "?"}], [1], answer, task=task)
    return Rollout(prompt, 0, TokenRow([1], [2]), [0.0], text, "length" if truncated else "stop")


def trained_texts(text: ChatText, row: TokenRow) -> list[str]:
    """The text of each stretch of trained tokens."""
    mask = [True] * len(row.rest) if row.mask is None else row.mask
    runs = groupby(zip(mask, row.rest, strict=True), key=itemgetter(0))
    return [text.stops.decode([token for _, token in run]) for trained, run in runs if trained]
