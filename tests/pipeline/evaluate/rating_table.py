"""The rating table once more, from the matches alone and by other methods: nothing of the library is imported.

    python -m tests.pipeline.evaluate.rating_table metrics/ratings/NAME.parquet

Win rates are counted row by row; ratings are fitted by minorise-maximise (Hunter 2004), one resample at a time. It
prints the table and ends with 1 if metrics/ratings/NAME.json says anything else.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq

RESAMPLES = 400
Won = dict[tuple[str, str], dict[str, float]]
"""Both orders of a pair of policies -> prompt -> share of its samples that the first won, a tie counting half."""


def read_wins(file: Path) -> Won:
    """Return the wins of each policy over each other, by prompt."""
    outcomes: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in pq.read_table(file).to_pylist():
        if row["status"] == "ok":
            outcomes[row["first"], row["second"]][row["prompt_id"]].append(row["win"])
            outcomes[row["second"], row["first"]][row["prompt_id"]].append(1 - row["win"])
    return {pair: {prompt: fmean(wins) for prompt, wins in found.items()} for pair, found in outcomes.items()}


def tally(won: Won, prompts: Sequence[str], luck: float) -> Won:
    """Return the wins on these prompts; a pair of which one won all n prompts has a rate of luck^(1/n) there."""
    found: Won = defaultdict(dict)
    for pair, wins in won.items():
        known = list(wins.values())
        always = {1.0: luck ** (1 / len(known)), 0.0: 1 - luck ** (1 / len(known))}
        same = always.get(known[0]) if min(known) == max(known) else None
        for nth, prompt in enumerate(prompts):
            if prompt in wins:
                found[pair][str(nth)] = wins[prompt] if same is None else same
    return found


def fit(won: Won) -> dict[str, float]:
    """Return strength by minorise-maximise: s_i = wins of i / sum_j games_ij / (s_i + s_j), in points with mean 0."""
    wins = {pair: 0.5 + sum(found.values()) for pair, found in won.items()}
    names = sorted({name for pair in wins for name in pair})
    strength = dict.fromkeys(names, 1.0)
    while True:
        fresh = {}
        for name in names:
            met = [other for first, other in wins if first == name]
            games = sum((wins[name, other] + wins[other, name]) / (strength[name] + strength[other]) for other in met)
            fresh[name] = sum(wins[name, other] for other in met) / games
        mean = math.exp(fmean(map(math.log, fresh.values())))
        fresh = {name: value / mean for name, value in fresh.items()}
        if max(abs(math.log(fresh[name] / strength[name])) for name in names) < 1e-8:
            return {name: 400 * math.log10(value) for name, value in fresh.items()}
        strength = fresh


def rating_table(file: Path) -> dict[str, tuple[float, float, float]]:
    """Policy -> its rating and the 95 % interval over prompts."""
    won = read_wins(file)
    prompts = sorted({prompt for found in won.values() for prompt in found})
    drawn = random.Random(1)
    fits = [fit(tally(won, drawn.choices(prompts, k=len(prompts)), drawn.random())) for _ in range(RESAMPLES)]
    found = {}
    for name, value in sorted(fit(won).items(), key=lambda item: -item[1]):
        spread = sorted(one[name] for one in fits)
        low, high = spread[round(0.025 * RESAMPLES)], spread[round(0.975 * RESAMPLES) - 1]
        found[name] = value, min(low, value), max(high, value)
    return found


def differences(file: Path) -> list[str]:
    """Return what the figures next to the matches say otherwise; intervals are of other draws."""
    kept: dict[str, Any] = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    table, won, wrong = rating_table(file), read_wins(file), []
    for row in kept["policies"]:
        rating, low, high = table[row["policy"]]
        if abs(row["rating"] - rating) > 0.01:
            wrong.append(f"{row['policy']}: {row['rating']}, not {rating:.2f}")
        close = 0.15 * (high - low) + 0.5
        if abs(row["rating_low"] - low) > close or abs(row["rating_high"] - high) > close:
            wrong.append(f"{row['policy']}: [{row['rating_low']}, {row['rating_high']}], not [{low:.2f}, {high:.2f}]")
    for row in kept["pairs"]:
        found = won[row["first"], row["second"]]
        if abs(row["win"] - fmean(found.values())) > 1e-5 or row["prompts"] != len(found):
            wrong.append(f"{row['first']} against {row['second']}: {row['win']}, not {fmean(found.values()):.5f}")
    return wrong


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    for name, (rating, low, high) in rating_table(Path(arguments[0])).items():
        print(f"{name:20} {rating:+8.2f} [{low:+.2f}, {high:+.2f}]")
    wrong = differences(Path(arguments[0]))
    print("\n".join(wrong) or "the figures agree")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
