"""The useful share of several processes: how much of their time computes a step, by the slowest process of each round.

python -m benchmarks.shared_steps [--processes 8] [--micro-tokens 16384]     prints a table (docs/processes.md)

Rows of Qwen3-0.6B's benchmark (log-normal lengths, the longest 2,048 tokens), and groups of 8 completions of 512 tokens
at most with a prompt of 256 at most. "dealt in turn" is what posttrain did before: passes cut as for one process.
"work" counts attention's pairs as the tokens that cost as much, with the padding of attention on a CPU. "bound": the
work could not be shared better, because one row is computed by one process.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence

from benchmarks.speed.case import lengths
from posttrain.rollout import TokenRow
from posttrain.text.packing import micro_batches
from posttrain.train.sharing import Rounds, share_out, slowest, useful_share, work_of

WIDTH = 1024
PADDING = 2.35
"""The padding of the benchmark's rows: the longest over the mean."""


def single_rows(count: int, longest: int = 2048) -> list[TokenRow]:
    """Return rows with prompts of their own."""
    sizes = lengths(count, longest, PADDING)
    random.Random(7).shuffle(sizes)
    return [TokenRow([i] * (size // 4), [0] * (size - size // 4)) for i, size in enumerate(sizes)]


def groups(count: int, group: int = 8) -> list[TokenRow]:
    """Return groups of completions that share a prompt."""
    draw = random.Random(7)
    prompts, answers = lengths(count, 256, PADDING), lengths(count * group, 512, PADDING)
    draw.shuffle(prompts)
    draw.shuffle(answers)
    return [
        TokenRow([i] * size, [0] * answers[i * group + place])
        for i, size in enumerate(prompts)
        for place in range(group)
    ]


STEPS = {
    "14k tokens, 16 rows": single_rows(16),
    "28k tokens, 32 rows": single_rows(32),
    "56k tokens, 64 rows": single_rows(64),
    "112k tokens, 128 rows": single_rows(128),
    "8 groups of 8": groups(8),
    "64 groups of 8": groups(64),
}


def in_turn(rows: Sequence[TokenRow], budget: int, processes: int) -> Rounds:
    """Return the rounds of passes that are cut as for one process and dealt in turn. Idle processes get no rows."""
    cuts = micro_batches([len(row) for row in rows], range(len(rows)), budget)
    cuts += [[] for _ in range(-len(cuts) % processes)]
    return [cuts[start : start + processes] for start in range(0, len(cuts), processes)]


def most_possible(rows: Sequence[TokenRow], processes: int) -> float:
    """Return a bound on the useful share of work: no process can do less than the longest row."""
    longest = max(work_of([row], WIDTH) for row in rows)
    return min(work_of(rows, WIDTH) / (processes * longest), 1.0)


def measured(rows: Sequence[TokenRow], budget: int, processes: int) -> list[str]:
    """Return a line of the table."""
    before, now = in_turn(rows, budget, processes), share_out(rows, range(len(rows)), budget, processes, WIDTH)
    tokens = [sum(len(rows[i]) for i in part) for dealt in now for part in dealt]
    alone = slowest(rows, share_out(rows, range(len(rows)), budget, 1, WIDTH), WIDTH)
    return [
        f"{sum(map(len, rows)):,}",
        f"{useful_share(rows, before, math.inf):.2f} -> {useful_share(rows, now, math.inf):.2f}",
        f"{useful_share(rows, before, WIDTH):.2f} -> {useful_share(rows, now, WIDTH, padded=True):.2f}",
        f"{most_possible(rows, processes):.2f}",
        f"{min(tokens):,} to {max(tokens):,}",
        f"{alone / slowest(rows, before, WIDTH):.1f} -> {alone / slowest(rows, now, WIDTH):.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_steps", description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--micro-tokens", type=int, default=16_384)
    asked = parser.parse_args()
    print(f"{asked.processes} processes, micro_tokens {asked.micro_tokens}; dealt in turn -> now\n")
    print("| step | tokens | useful share of tokens | of work, padded | bound | tokens of a pass | times one process |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, rows in STEPS.items():
        cells = measured(rows, asked.micro_tokens, asked.processes)
        print(f"| {' | '.join([name, *cells])} |", flush=True)


if __name__ == "__main__":
    main()
