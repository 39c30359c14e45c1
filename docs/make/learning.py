"""docs/reports/learning.md from the trials' results."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning_trials import (
    OWN,
    SHARED,
    VARIANTS,
    Subject,
    Trial,
    final_trials,
    read_result,
    scores_per_prompt,
)
from posttrain.pipeline.compare.statistics import ALPHA, difference

Floats = NDArray[np.float64]
FEWEST = 2
"""Seeds that an interval needs."""
COLUMNS = 10
"""Of a table of gains."""

HEAD = """# Does each objective learn?

Every row of [algorithms.md](../reference/algorithms.md), trained from one SFT model of `recipes/smoke.yaml` and
measured on 120 test prompts, 8 samples each at temperature 1. `gain` is the difference in pass@1 to the start model.
Its 95 % interval is Student's t over the seeds: it covers other seeds of this row, for this one start model and these
test prompts. A row *improves* if the interval is above 0, is *worse* if it is below; else we *cannot tell*.

One SFT model, one task, few seeds: this shows that a row learns, not which row is best.
What one seed bears another may not: `ipo_md` has the rate that was best for the search's seed, and two of three seeds
fell apart at it. `orpo` is for a base: its likelihood of chosen answers, here the SFT model's own samples, holds an
SFT model where it is.
The teacher of `context_distill` had the SFT model's demonstrations with a system turn: what form the answer has, or the
answer. Here it reads "Show each step.", or the row's own answer.

Learning rates were chosen with a seed that is not in the tables, on other prompts.
Made by `make learning` (it resumes after an interruption; remove `.learning` to start again).
"""

TITLES = {
    "online": "On the policy's own samples",
    "preference": "From given comparisons and feedback",
    "distill": "From a teacher",
}
TEACHER = (
    "The teacher is the first `dr_grpo` run of the table above; KL(teacher, student) is of the run's own divergence."
)


def write_page(place: Path, page: Path, subjects: Sequence[Subject]) -> None:
    """Write the page; trials without a result are named, not left out."""
    labels = {"base/tiny": "base", "sft/main": "sft"}
    results = place / "pipeline" / "results"
    starts = {model: np.array(scores_per_prompt(results / label)) for model, label in labels.items()}
    lines = [HEAD, _machine(), ""]
    for section, title in TITLES.items():
        lines += [f"## {title}", ""]
        lines += ["| row | rate | seeds | start | pass@1 | gain (95 %) | each seed | format | KL to SFT | verdict |"]
        lines += ["|---|---|---|---|---|---|---|---|---|---|"]
        lines += [_row(place, subject, starts) for subject in subjects if subject.section == section] + [""]
    lines += [*_divergences(place), *_trust(place), *_rewards(place), *_settings()]
    page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"written: {page}")


def gain(right_S: Floats, start: float) -> tuple[str, str]:
    """Return the gain of a row's seeds over their start with its interval over seeds, and the verdict."""
    change = difference(right_S[:, None], np.array([[start]]))
    if len(right_S) < FEWEST:
        return f"{change.mean:+.3f}", "cannot tell (1 seed)"
    half = change.half(ALPHA)
    low, high = change.mean - half, change.mean + half
    verdict = "improves" if low > 0 else "worse" if high < 0 else "cannot tell"
    return f"{change.mean:+.3f} [{low:+.3f}, {high:+.3f}]", verdict


def again(page: str) -> str:
    """Return a page with gain and verdict computed again from its own columns `start` and `each seed`."""
    lines = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == COLUMNS and re.fullmatch(r"\d\.\d{3}( \d\.\d{3})*", cells[6]):
            cells[5], cells[9] = gain(np.array(cells[6].split(), dtype=float), float(cells[3].split()[1]))
            lines.append(f"| {' | '.join(cells)} |")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _row(place: Path, subject: Subject, starts: dict[str, Floats]) -> str:
    trials = [trial for trial in final_trials() if trial.subject == subject]
    results = [result for trial in trials if (result := read_result(place, trial)) is not None]
    done = [result for result in results if "right" in result]
    head = f"| {subject.label} | {trials[0].rate:g} | {len(done)} | {trials[0].start}"
    if not done:
        return f"{head} | | | | | | {results[0]['failed'] if results else 'not run yet'} |"
    start_P = starts[trials[0].start]
    right_SP = np.array([result["right"] for result in done])
    shown, verdict = gain(right_SP.mean(axis=1), float(start_P.mean()))
    form, kl = (float(np.mean([result["metrics"][name] for result in done])) for name in ("reward_format", "kl_k3"))
    each = " ".join(f"{value:.3f}" for value in right_SP.mean(axis=1))
    return (
        f"{head} {start_P.mean():.3f} | {right_SP.mean():.3f} | {shown} | {each} | {form:.2f} | {kl:.2f} | {verdict} |"
    )


def _watched(place: Path, name: str) -> Iterator[tuple[Trial, dict[str, Any]]]:
    for trial in final_trials():
        result = read_result(place, trial)
        if result is not None and name in result:
            yield trial, result


def _divergences(place: Path) -> list[str]:
    lines = [
        f"| {trial.subject.label} | {trial.seed} | {result['teacher_kl_first']:.3f} | {result['teacher_kl_last']:.3f} |"
        for trial, result in _watched(place, "teacher_kl_last")
    ]
    head = ["| row | seed | divergence, first 5 steps | last 5 steps |", "|---|---|---|---|"]
    return [TEACHER, "", *head, *lines, ""] if lines else []


def _trust(place: Path) -> list[str]:
    seen = [(trial.rate, result["trust_kl"]) for trial, result in _watched(place, "trust_kl")]
    if not seen:
        return []
    worst = max(kl for _, kl in seen)
    text = f"Largest KL(old || new) of any step of {len(seen)} runs: {worst:.5f}; the bound was {seen[0][0]:g}."
    return ["## TRPO's bound", "", text, ""]


def _rewards(place: Path) -> list[str]:
    file = place / "rewards.json"
    if not file.is_file():
        return []
    measured: dict[str, list[float]] = json.loads(file.read_text(encoding="utf-8"))
    rows = [
        f"| {label} | {np.mean(each):.3f} | {' '.join(f'{value:.3f}' for value in each)} |"
        for label, each in measured.items()
    ]
    return ["## Reward models", "", "| objective | held-out accuracy | each seed |", "|---|---|---|", *rows, ""]


def _settings() -> list[str]:
    lines = ["## Settings", "", "Shared, and the rows' own defaults beyond:", ""]
    lines += [f"- {name}: `{json.dumps(settings)}`" for name, settings in SHARED.items()]
    lines += ["", "Set by hand, with the search's seed and prompts:", ""]
    lines += [f"- {label}: `{json.dumps(knobs)}`" for label, knobs in OWN.items()]
    return lines + [f"- {variant.label}: `{json.dumps(variant.knobs)}`" for variant in VARIANTS]


def _machine() -> str:
    return f"Machine: {os.cpu_count()} CPU cores ({platform.machine()}), two processes of one thread each, no GPU."


if __name__ == "__main__":
    file = Path("docs/reports/learning.md")
    old = file.read_text(encoding="utf-8")
    file.write_text(again(HEAD.rstrip() + "\n\n" + old[old.index("Machine: ") :]), encoding="utf-8")
