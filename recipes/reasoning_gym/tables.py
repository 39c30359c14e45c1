"""Prompts from reasoning-gym as a file for `data.files`; runs in the environment that `make reasoning-gym` makes.

    python tables.py OUT.jsonl '{"chain_sum": {"weight": 2, "max_digits": 2}, "gcd": {}}' [--rows 1000] [--seed 0]
    python tables.py --list

Tasks by name, mixed by weight; all other keys are the task's own settings. A task is refused where two processes
generate different rows from one seed, where its own answers do not score 1, or where they are no plain numbers, which
the reward `correct` could not compare.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")
TRIED = 20
"""Rows of each task that --list looks at."""
SECONDS = 120


def generate(name: str, settings: dict[str, Any], rows: int, seed: int) -> list[dict[str, Any]]:
    """Rows of one task, and the score of its own answer to each."""
    import reasoning_gym  # only the processes that generate import it: it takes seconds

    data = reasoning_gym.create_dataset(name, size=rows, seed=seed, **settings)
    return [
        {"prompt": row["question"], "answer": row["answer"], "score": float(data.score_answer(row["answer"], row))}
        for row in (data[place] for place in range(rows))
    ]


def checked(name: str, settings: dict[str, Any], rows: int, seed: int) -> list[dict[str, Any]]:
    """The same, from two processes; ValueError says why the task cannot be used."""
    first, second = (_in_process(name, settings, rows, seed, salt) for salt in ("1", "2"))
    if first != second:
        raise ValueError("not repeatable: two processes generate different rows from one seed")
    if (least := min(row["score"] for row in first)) < 1:
        raise ValueError(f"its own answers score {least:g}, not 1")
    odd = [row["answer"] for row in first if not NUMBER.fullmatch(str(row["answer"]))]
    if odd:
        raise ValueError(f"its answers are no plain numbers, e.g. {str(odd[0])[:40]!r}")
    return first


def _in_process(name: str, settings: dict[str, Any], rows: int, seed: int, salt: str) -> list[dict[str, Any]]:
    """The rows from a process with its own order of sets."""
    command = [sys.executable, __file__, "--generate", json.dumps([name, settings, rows, seed])]
    environment = {**os.environ, "PYTHONHASHSEED": salt}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{rows} rows take more than {SECONDS} s") from error
    if done.returncode:
        raise ValueError(f"it cannot be generated: {done.stderr.strip().splitlines()[-1][:200]}")
    found: list[dict[str, Any]] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    return found


def mixed(tasks: dict[str, dict[str, Any]], rows: int, seed: int) -> list[dict[str, Any]]:
    """Rows of all tasks, as many of each as its weight says, in an order by the seed; equal prompts once."""
    weights = {name: float(own.get("weight", 1)) for name, own in tasks.items()}
    found = {}
    for name, own in tasks.items():
        settings = {key: value for key, value in own.items() if key != "weight"}
        try:
            made = checked(name, settings, max(round(rows * weights[name] / sum(weights.values())), 1), seed)
        except ValueError as error:
            sys.exit(f"error: {name}: {error}. Leave it out; --list names the tasks that can be used")
        for row in made:
            info = {"source": "reasoning-gym", "dataset": name}
            found[row["prompt"]] = {"prompt": row["prompt"], "answer": str(row["answer"]), "info": info}
    order = list(found.values())
    random.Random(seed).shuffle(order)
    return order


def survey() -> None:
    """Print which tasks can be used, and why the others cannot."""
    import reasoning_gym.factory

    for name in sorted(reasoning_gym.factory.DATASETS):
        try:
            checked(name, {}, TRIED, 0)
            print(f"{name}: usable", flush=True)
        except ValueError as error:
            print(f"{name}: left out: {error}", flush=True)


def main() -> None:
    """Write the table, or say which tasks can be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT.jsonl")
    parser.add_argument("tasks", nargs="?", type=json.loads, metavar="TASKS", help="JSON: name -> {weight, settings}")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="which tasks can be used")
    parser.add_argument("--generate", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.generate:
        rows = json.dumps(generate(*given.generate))
        print(f"\n{rows}")  # on a line of its own: some tasks print
    elif given.list:
        survey()
    elif given.out is None or not isinstance(given.tasks, dict) or not given.tasks:
        parser.error("give OUT.jsonl and the tasks, or --list")
    else:
        rows = mixed(given.tasks, given.rows, given.seed)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows)
        given.out.write_text(text, encoding="utf-8")
        print(f"{given.out}: {len(rows)} prompts")


if __name__ == "__main__":
    main()
