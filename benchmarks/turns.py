"""Learning of tasks with several turns: base from scratch, SFT, then GRPO on whole episodes, over three seeds.

python -m benchmarks.turns    runs what benchmarks/results/turns.json has not, and writes docs/reports/studies.md

Remove turns.json to measure again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from benchmarks.machine import machine
from posttrain.workspace import write_json, write_text
from tests.workspace import ROOT, dvc, make_workspace

SEEDS = (1, 2, 3)
KEPT = ROOT / "benchmarks/results/turns.json"
PAGE = ROOT / "docs/reports/studies.md"
BEGIN, END = "<!-- turns:begin -->", "<!-- turns:end -->"
GAINS = {"calculator": ("calling", "right_given_call"), "guess": ("guesses", "wasted")}
"""Task -> the figures that show how it is learned."""
POLICIES = ("base", "sft", "grpo")

Figures = dict[str, dict[str, float]]


def measure(name: str, seeds: Sequence[int], folder: Path) -> list[Figures]:
    """Policy -> metrics on the test prompts, for each seed."""
    recipe = (ROOT / f"recipes/{name}.yaml").read_text(encoding="utf-8")
    found = []
    for seed in seeds:
        params = folder / f"{name}-{seed}.yaml"
        params.write_text(recipe.replace("\nseed: 0\n", f"\nseed: {seed}\n"), encoding="utf-8")
        workspace = make_workspace(folder / f"{name}-{seed}", params)
        done = dvc(workspace, "repro")
        if done.returncode:
            raise RuntimeError(f"dvc repro failed in {workspace}: {done.stdout} {done.stderr}")
        files = {policy: workspace / f"results/{policy}/metrics.json" for policy in POLICIES}
        found.append({policy: json.loads(file.read_text(encoding="utf-8")) for policy, file in files.items()})
    return found


def table(results: dict[str, list[Figures]]) -> str:
    """Return each task and policy: success of each seed and the mean of what shows how."""
    lines = ["| task | policy | success of each seed | mean | what changes |", "|---|---|---:|---:|---|"]
    for name, found in results.items():
        for policy in POLICIES:
            scores = [one[policy]["score"] for one in found]
            how = ", ".join(f"{key} {mean(one[policy][key] for one in found):.2f}" for key in GAINS[name])
            shown = ", ".join(f"{score:.3f}" for score in scores)
            lines.append(f"| `{name}` | {policy} | {shown} | {mean(scores):.3f} | {how.replace('_', ' ')} |")
    return "\n".join(lines)


def main() -> None:
    """Run the seeds that are missing and write the table into the page."""
    kept: dict[str, dict[str, Figures]] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    for name in GAINS:
        for seed in SEEDS:
            if str(seed) not in kept.setdefault(name, {}):
                with tempfile.TemporaryDirectory() as folder:
                    (kept[name][str(seed)],) = measure(name, (seed,), Path(folder))
                write_json(KEPT, kept)
    results = {name: [kept[name][str(seed)] for seed in SEEDS] for name in GAINS}
    note = f"Seeds {', '.join(map(str, SEEDS))}. {machine()}."
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    write_text(PAGE, f"{before}{BEGIN}\n{table(results)}\n\n{note}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
