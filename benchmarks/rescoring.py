"""CPU seconds of the stage `evaluate` on stored completions, beside those with hardly any: its own start.

    python -m benchmarks.rescoring [--prompts 500] [--words 300]

A folder with a tiny model, a table of word problems, and completions that this script writes. Nothing is sampled. The
seconds include all processes that the stage has started and waited for.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from posttrain.data.columns import from_rows
from posttrain.evaluate.sampled import SampledCompletions
from posttrain.isolation.library import LIBRARY
from posttrain.pipeline.runs.stored_completions import write_completions
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.sampling.sampler import prompts_of
from tests.library.models.tiny import tiny_folder

SAMPLES, FEW = 8, 2
REWARDS = {
    "correct, answer: math": "{correct: {answer: math}}",
    "correct, answer: numeric": "{correct: 1.0}",
    "correct, answer: exact": "{correct: {answer: exact, after: '####'}}",
    "length and format": "{length: {limit: 400, unit: words, weight: 1.0}, format: 0.2}",
}
INPUTS = "data: mine/prompts, reference: none, reward_model: none"
WORDS = "so we take the number of apples and add them to what she had before then divide by two which gives"


def make(folder: Path, count: int) -> list[Prompt]:
    """Make the model and the table."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Ann has {nth} apples and buys {nth % 7} more. How many has she?"}],
            "answer": str(nth + nth % 7), "problem": str(nth), "split": "test",
            "task": "", "info": "{}",
        }
        for nth in range(count)
    ]  # fmt: skip
    table = folder / "data/mine/prompts.parquet"
    write_table(from_rows(rows, "prompts"), table, "prompts")
    (folder / "models/sft").mkdir(parents=True)
    tiny_folder(folder / "tiny").rename(folder / "models/sft/main")
    return prompts_of(read_table(table, "prompts").iter_rows(named=True))


def completions(prompts: Sequence[Prompt], words: int) -> SampledCompletions:
    """Return completions of about so many words that end in an answer; two of three are right."""
    rng = random.Random(0)

    def one(prompt: Prompt, sample: int) -> Rollout:
        answer = int(prompt.answer) + (rng.random() < 1 / 3)
        text = f"{' '.join(rng.choices(WORDS.split(), k=words))}.\n#### {answer}"
        ids = [rng.randrange(3, 290) for _ in range(round(1.3 * words))]
        return Rollout(replace(prompt, ids=[1, 2]), sample, TokenRow([1, 2], ids), [-0.5] * len(ids), text, "stop")

    rollouts = [one(prompt, sample) for prompt in prompts for sample in range(SAMPLES)]
    return SampledCompletions(rollouts, [one(prompt, 0) for prompt in prompts])


def cpu_seconds(folder: Path, prompts: int, reward: str) -> float:
    """Return the CPU seconds of the stage."""
    settings = f"{{{INPUTS}, prompts: {prompts}, samples: {SAMPLES}, reward: {reward}}}"
    (folder / "params.yaml").write_text(f"evaluate: {{settings: {settings}, policies: {{a: sft/main}}}}\n")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(LIBRARY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "posttrain", "run", "evaluate", "a"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a row for each reward."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--words", type=int, default=300)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prompts = make(folder, given.prompts)
        found = {count: completions(prompts[:count], given.words) for count in (FEW, given.prompts)}
        print(f"| reward | start | {given.prompts * SAMPLES:,} completions of {given.words} words | more |")
        print("|---|---:|---:|---:|")
        for name, reward in REWARDS.items():
            seconds = []
            for count, those in found.items():
                write_completions(those, folder / "completions/a")
                seconds.append(cpu_seconds(folder, count, reward))
            start, whole = seconds
            print(f"| {name} | {start:.1f} s | {whole:.1f} s | {whole - start:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
