"""What `posttrain plan` says of a stage next to the most memory that its process held, for six shapes on a CPU.

python -m benchmarks.plan_memory FOLDER     makes a workspace in FOLDER (a few minutes) and prints a table
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from posttrain.measure.text_table import text_table
from posttrain.pipeline.commands.plan.memory_estimate import demand_of
from posttrain.pipeline.params.params_file import read
from tests.workspace import ROOT, environment, make_workspace

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "wide": {"shape": {"layers": 2, "width": 1024, "heads": 8, "feed_forward": 4096}},
    "deep": {"shape": {"layers": 12, "width": 512, "heads": 8, "feed_forward": 2048}},
    "long": {"shape": {"layers": 4, "width": 512, "heads": 8, "feed_forward": 2048, "context": 512}, "window": 512},
    "recompute": {
        "shape": {"layers": 12, "width": 512, "heads": 8, "feed_forward": 2048},
        "activations": "recompute",
    },
    "experts": {"shape": {"layers": 4, "width": 512, "heads": 8, "feed_forward": 1024, "experts": 8}},
}
"""Runs of base.scratch; the first is so small that it shows what the process itself takes."""
OWN_BYTES = 0.7e9
"""What `posttrain plan` says that the process itself takes."""
STEPS = 3
SOURCE = {"task": "two_step", "n_corpus": 16_000}


def main(words: list[str]) -> int:
    """Run every shape for a few steps and print the table."""
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    place = make_workspace(Path(words[0]), ROOT / "recipes/smoke.yaml")
    runs = {name: {"data": "two_step/corpus", "steps": STEPS, **run} for name, run in SHAPES.items()}
    params = {"format": 2, "data": {"tasks": {"two_step": SOURCE}}, "base": {"scratch": runs}}
    (place / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    os.chdir(place)
    _most_bytes("data_tasks", "two_step")
    rows: list[tuple[str, ...]] = [("run", "plan", "held", "(plan + 0.7 GB) / held")]
    for name in SHAPES:
        planned, held = demand_of("base.scratch", name, read(), 512, None).total, _most_bytes("base_scratch", name)
        rows.append((name, f"{planned / 1e9:.2f} GB", f"{held / 1e9:.2f} GB", f"{(planned + OWN_BYTES) / held:.2f}"))
    print("\n".join(text_table(rows, left=(0,))))
    return 0


def _most_bytes(*words: str) -> float:
    """Run a stage and return the most memory that its process held."""
    command = [sys.executable, "-m", "posttrain", "run", *words]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return 1024.0 * usage.ru_maxrss


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
