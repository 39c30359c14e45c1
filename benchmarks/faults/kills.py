"""Kills stages at seeded random moments, runs them again until they end, and compares what they wrote.

A run of a stage begins without outputs and checkpoints and is killed a few times; before each new attempt its outputs
are removed, as DVC does. When it has ended at last, every file of the workspace must have the bytes of a run that was
not killed, and there must be no others.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchmarks.faults.processes import NEVER, Ended, Kill, Server

PARAMS = Path(__file__).parent / "faults.yaml"
PRODUCTS = ("completions", "data", "models", "metrics", "plots", "results", "report", "records", "rollouts")
RUNS = {
    "preference": ("dpo", "sdpo", "kto", "bco"),
    "online": (
        *("grpo", "adaptive_kl", "moving_average", "ppo", "ppo_lora", "penalty", "dapo", "trpo"),
        *("replay", "ptx", "watched", "nash_md", "online_dpo", "rest"),
    ),
    "distill": ("gkd",),
    "offline": ("logged",),
}
STAGES = (
    *("data_tasks two_step", "base_scratch tiny", "sft main", "sft lora", "data_samples compared", "reward main"),
    *(f"{family} {run}" for family, runs in RUNS.items() for run in runs),
    *("completions sft", "evaluate sft", "regrade again", "report"),
)
UNCHECKPOINTED = ("data_tasks", "data_samples", "completions", "evaluate", "regrade", "report")
BEFORE = {
    "base_scratch": "data_tasks two_step",
    "reward": "data_samples compared",
    "preference": "data_samples compared",
    "evaluate": "completions sft",
}
"""The stage that makes a smaller table for another one to begin with."""
CUTS = 8
"""Most kills of one run, so that many runs end and are compared."""


@dataclass
class Tally:
    """What became of a stage that was killed again and again."""

    stage: str
    kills: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    """Runs that ended and were compared with one that was not killed."""
    resumed: int = 0
    repaired: int = 0
    """How often `posttrain repair` had something to fix in DVC's own files."""
    faults: list[str] = field(default_factory=list)

    @property
    def killed(self) -> int:
        return sum(self.kills.values())


def prepared(smoke: Path, target: Path, stage: str = "") -> Path:
    """The finished smoke pipeline's files, without DVC and git, under the parameters of the fault tests.

    The report keeps those of the smoke pipeline, whose results it shows.
    """
    target.mkdir(parents=True)
    for name in PRODUCTS:
        shutil.copytree(smoke / name, target / name)
    shutil.copyfile(smoke / "params.yaml" if stage == "report" else PARAMS, target / "params.yaml")
    shutil.copyfile(smoke / "dvc.lock", target / "dvc.lock")
    return target


def digests(workspace: Path) -> dict[str, str]:
    """Every file of the pipeline's folders and its digest."""
    files = [path for name in PRODUCTS for path in sorted((workspace / name).rglob("*")) if path.is_file()]
    return {str(path.relative_to(workspace)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def outputs(stage: str) -> list[str]:
    """The stage's outputs by dvc.yaml, its metrics and plots among them."""
    stages: dict[str, Any] = YAML(typ="safe", pure=True).load(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"]
    name, _, run = stage.partition(" ")
    entry = stages[name].get("do", stages[name])
    listed = [*entry.get("outs", []), *entry.get("metrics", []), *entry.get("plots", [])]
    paths = [one if isinstance(one, str) else next(iter(one)) for one in listed]
    return [path.replace("${key}", run) for path in paths]


def torture(server: Server, workspace: Path, stage: str, kills: int, seed: int) -> Tally:
    """Kill the stage so many times in all, over as many runs as that takes."""
    rng, tally, outs = random.Random(f"{seed} {stage}"), Tally(stage), outputs(stage)
    if before := BEFORE.get(stage.split(maxsplit=1)[0]):
        server.run(workspace, before)
    _fresh(workspace, outs)
    whole = server.run(workspace, stage, NEVER)
    if whole.status:
        raise RuntimeError(f"{stage} fails without a kill:\n{whole.output}")
    expected = digests(workspace)
    while tally.killed < kills and not tally.faults:
        _fresh(workspace, outs)
        _run(server, workspace, outs, tally, rng, min(CUTS, kills - tally.killed), whole, expected)
    return tally


def _run(
    server: Server,
    workspace: Path,
    outs: list[str],
    tally: Tally,
    rng: random.Random,
    cuts: int,
    whole: Ended,
    expected: dict[str, str],
) -> None:
    """One run of the stage: killed at most `cuts` times, then left to end; what is wrong goes to the tally."""
    ended = None
    for _ in range(cuts):
        _remove(workspace, outs)
        by_operation = rng.random() < 0.4
        operation, seconds = rng.randint(1, whole.operations), whole.seconds * rng.random()
        moment = Kill(operation=operation) if by_operation else Kill(seconds=seconds)
        ended = _attempt(server, workspace, tally, moment)
        if ended.status != -signal.SIGKILL:
            break
        tally.kills[ended.doing or "unknown"] += 1
        tally.faults += _torn(workspace, outs, expected)
    if ended is None or ended.status == -signal.SIGKILL:
        _remove(workspace, outs)
        ended = _attempt(server, workspace, tally, None)
    if ended.status:
        tally.faults.append(f"ended with {ended.status}: {ended.output[-2000:]}")
        return
    found = digests(workspace)
    tally.compared += 1
    tally.faults += [
        f"{name} differs" for name in sorted(expected.keys() | found) if expected.get(name) != found.get(name)
    ]


def _attempt(server: Server, workspace: Path, tally: Tally, moment: Kill | None) -> Ended:
    ended = server.run(workspace, tally.stage, moment)
    tally.resumed += "resumes from the checkpoint" in ended.output
    if "Traceback" in ended.output:
        tally.faults.append(ended.output[-2000:])
    return ended


def _torn(workspace: Path, outs: list[str], expected: dict[str, str]) -> list[str]:
    """Outputs that are there but not whole after a kill; the log of a run grows by design."""
    found = digests(workspace)
    mine = tuple(out for out in outs if not out.startswith("plots/"))
    return [
        f"{name} was left torn" for name in found if name.startswith(mine) and found[name] != expected.get(name)
    ] + [
        f"{name} was left out of {out}"
        for out in mine
        if (workspace / out).exists()
        for name in expected
        if name.startswith(out) and name not in found
    ]


def _fresh(workspace: Path, outs: list[str]) -> None:
    _remove(workspace, outs)
    shutil.rmtree(workspace / "checkpoints", ignore_errors=True)


def _remove(workspace: Path, outs: list[str]) -> None:
    for out in outs:
        path = workspace / out
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
