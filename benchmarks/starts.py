"""What the start of each stage costs here and in another checkout, in turn: CPU seconds of one core, by phase.

    python -m benchmarks.starts ../old [-n 3] [--params params.yaml]

A start is a stage without its work: its imports, what it does before its work and after it, and what its work imports.
The other checkout needs an environment of its own (`make env` there). Each side runs the pipeline once, in a copy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import ROOT
from benchmarks.machine import machine, versions
from benchmarks.overhead.pipelines import SMOKE
from posttrain.pipeline.lock.graph import Pipeline
from tests.workspace import environment

PHASES: Final = ("imports", "before", "late imports", "after")
MAKE: Final = "from pathlib import Path; from tests.workspace import make_workspace as m; m(Path({0!r}), Path({1!r}))"
SIDE: Final = Path(__file__).with_name("starts_side.py").read_text(encoding="utf-8")
Phases = dict[str, float]


@dataclass(frozen=True)
class Side:
    """A checkout and the copy of it in which its stages run."""

    checkout: Path
    copy: Path
    found: dict[str, list[Phases]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its processes: its own python first, one thread."""
        path = f"{self.checkout / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
        return {**environment(), "PATH": path, "OMP_NUM_THREADS": "1"}

    @property
    def python(self) -> str:
        return str(self.checkout / ".venv/bin/python")

    def prepare(self, params: str) -> None:
        """Make the copy and run its pipeline."""
        if not (self.copy / "dvc.lock").is_file():
            self._run(["-c", MAKE.format(str(self.copy), str(self.checkout / params))], self.checkout)
        self._run(["-m", "dvc", "repro", "--quiet"], self.copy)

    def start(self, stage: str) -> Phases:
        """Run a stage as DVC does, and return its CPU seconds by phase."""
        kind, _, name = stage.partition("@")
        for out in Pipeline(self.copy).stages[stage].outs:
            place = self.copy / out
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        shutil.rmtree(self.copy / "checkpoints", ignore_errors=True)
        file = self.copy / ".dvc/tmp/start.json"
        words = ["-c", SIDE, str(file), kind, *filter(None, [name])]
        total = self._run(words, self.copy, DVC_ROOT=str(self.copy), DVC_STAGE=stage)
        marks = json.loads(file.read_text(encoding="utf-8"))
        return {
            "imports": marks["imports"],
            "before": marks["before"] - marks["imports"],
            "late imports": marks["late imports"],
            "after": total - marks["work"],
            "whole": total,
        }

    def _run(self, words: Sequence[str], folder: Path, **variables: str) -> float:
        """CPU seconds of a process of this side's Python, without its children."""
        log = tempfile.TemporaryFile()  # noqa: SIM115
        known = {**self.environment, **variables}
        child = subprocess.Popen([self.python, *words], cwd=folder, env=known, stdout=log, stderr=log)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        said = log.read().decode(errors="replace")
        log.close()
        if child.returncode:
            raise subprocess.SubprocessError(f"{' '.join(words)[:200]} in {folder}:\n{said[-3000:]}")
        return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure each stage of both sides in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("-n", "--turns", type=int, default=3)
    parser.add_argument("--params", default=SMOKE, help="the params file of both, relative to a checkout")
    parser.add_argument("--copies", type=Path, help="a folder that keeps both copies for the next measurement")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (given.copies or Path(scratch)).resolve()
        here = Side(ROOT, folder / "here")
        sides = [here, Side(given.other.resolve(), folder / "there")]
        for side in sides:
            side.prepare(given.params)
        for turn in range(given.turns):
            for side in sides if turn % 2 else sides[::-1]:
                for stage in Pipeline(side.copy).order():
                    if stage != "code":
                        side.found.setdefault(stage, []).append(side.start(stage))
    print("\n".join(page(sides[0].found, sides[1].found)))


def page(here: Mapping[str, Sequence[Phases]], there: Mapping[str, Sequence[Phases]]) -> list[str]:
    """The table: the median of all turns, here and there; and the sums."""
    kinds = [*PHASES, "start", "whole"]
    ours, theirs = medians(here), medians(there)
    lines = [f"Machine: {machine()}; {versions('torch', 'transformers', 'polars', 'dvc')}.", ""]
    lines += [
        "CPU seconds here / there (median).",
        "",
        f"| stage | {' | '.join(kinds)} |",
        f"|---|{'---:|' * len(kinds)}",
    ]
    for stage in dict.fromkeys([*ours, *theirs]):
        cells = (" / ".join(_cell(side.get(stage), kind) for side in (ours, theirs)) for kind in kinds)
        lines.append(f"| {stage} | {' | '.join(cells)} |")
    sums = [[sum(one[kind] for one in side.values()) for side in (ours, theirs)] for kind in kinds]
    lines.append(f"| all | {' | '.join(f'{mine:.1f} / {other:.1f}' for mine, other in sums)} |")
    mine, other = sums[kinds.index("start")]
    return [*lines, "", f"The starts cost {mine / other:.2f} of those there."]


def medians(found: Mapping[str, Sequence[Phases]]) -> dict[str, Phases]:
    """Stage -> the median of each phase over the turns, and of their sum."""
    return {
        stage: {
            **{kind: statistics.median(one[kind] for one in turns) for kind in (*PHASES, "whole")},
            "start": statistics.median(sum(one[kind] for kind in PHASES) for one in turns),
        }
        for stage, turns in found.items()
    }


def _cell(phases: Phases | None, kind: str) -> str:
    return f"{phases[kind]:.2f}" if phases else "-"


if __name__ == "__main__":
    main()
