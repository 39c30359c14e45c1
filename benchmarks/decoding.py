"""Useful tokens per CPU second of our decoder and of transformers' `generate`, for a model of SmolLM2-135M's shape.

python -m benchmarks.decoding            alternating rounds in one process; prints a table (docs/reports/studies.md)
"""

from __future__ import annotations

import stages  # noqa: F401  # first: it sets the instructions that torch may use

# isort: split

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.machine import machine
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.loading import prepared
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Request, SamplingParams
from posttrain.text.stops import Stops

PROMPT, LONGEST, END_CHANCE = 64, 64, 1 / 50
"""Tokens of a prompt, the most of a completion, and the chance of each to be its end: 36 useful tokens on average."""
LOADS = {"8 prompts x 8 samples": (8, 8), "32 prompts x 1 sample": (32, 1)}


def model_of_smollm2() -> Any:
    """Return a random model of SmolLM2-135M's shape: its tokens are drawn almost uniformly from the vocabulary."""
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8_192,
        rope_theta=100_000,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def ours(model: Any, prompts: list[list[int]], samples: int, ends: list[int], seed: int, device: Runtime) -> int:
    """Sample with our decoder; how many tokens were drawn."""
    requests = [Request(ids, f"{nth}:{sample}") for nth, ids in enumerate(prompts) for sample in range(samples)]
    sampler = LocalSampler(model, Stops(tuple(ends), str), device)
    return sum(len(one.ids) for one in sampler.generate(requests, SamplingParams(max_tokens=LONGEST), seed))


@torch.inference_mode()
def theirs(model: Any, prompts: list[list[int]], samples: int, ends: list[int], seed: int, device: Runtime) -> int:  # noqa: ARG001
    """Sample with `generate`; how many tokens were drawn before the padding."""
    torch.manual_seed(seed)
    given = torch.tensor(prompts)
    options = {"do_sample": True, "top_k": 0, "top_p": 1.0, "num_return_sequences": samples}
    found = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=LONGEST,
        eos_token_id=ends,
        pad_token_id=ends[0],
        **options,
    )[:, PROMPT:]
    ended = torch.isin(found, torch.tensor(ends))
    return int((ended.cumsum(1) - ended.int() == 0).sum())


def rate(side: Callable[..., int], *given: Any) -> float:
    """Useful tokens per second of CPU time."""
    start = time.process_time()
    tokens = side(*given)
    return tokens / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoding", description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=5, help="alternations")
    rounds = parser.parse_args().rounds
    device = Runtime(DeviceParams(threads=2))
    mine_of, theirs_of = model_of_smollm2(), model_of_smollm2()
    prepared(mine_of)
    theirs_of.set_attn_implementation("sdpa")
    vocabulary = mine_of.config.vocab_size
    random = torch.Generator().manual_seed(0)
    ends = list(range(round(END_CHANCE * vocabulary)))
    print("| load | posttrain, tokens per CPU second | `generate` | ratio, median [lowest, highest] |")
    print("|---|---:|---:|---:|")
    for load, (count, samples) in LOADS.items():
        prompts = torch.randint(len(ends), vocabulary, (count, PROMPT), generator=random).tolist()
        found: list[tuple[float, float]] = []
        for turn in range(rounds + 1):  # the first warms up
            given = prompts, samples, ends, turn, device
            found.append((rate(ours, mine_of, *given), rate(theirs, theirs_of, *given)))
        mine, other = zip(*found[1:], strict=True)
        ratios = sorted(one / two for one, two in found[1:])
        middle = statistics.median(ratios)
        print(
            f"| {load} | {statistics.median(mine):.1f} | {statistics.median(other):.1f} "
            f"| {middle:.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}] |"
        )
    print(f"\nfloat32, two threads, prompts of {PROMPT} tokens, {rounds} alternations; {machine()}.")


if __name__ == "__main__":
    main()
