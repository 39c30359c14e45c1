"""`make real` and `make real-quick`: an estimate of the time and memory, and the table of results (reports/real.md).

python -m benchmarks.real estimate real-quick
python -m benchmarks.real table           in the folder where it ran
python -m benchmarks.real write .real     from the checkout: the table into README.md and reports/real.md, and a plot
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import machine
from docs.make.readme import draw, read_summary
from posttrain.errors import DataError
from posttrain.files import write_text
from posttrain.measure.timings import FOLDER, read_timings
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy, scores
from posttrain.pipeline.compare.selection import select
from posttrain.pipeline.compare.statistics import ALPHA, difference
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.params.stage_table import Settings, model_runs, policies

THREADS = 2
PAGES, FIGURE = (Path("README.md"), Path("docs/reports/real.md")), Path("docs/reports/real.svg")
BEGIN, END = "<!-- real:begin -->", "<!-- real:end -->"
MATRICES = 2_000, 576, 1_536
"""A product of the model's feed-forward layer, by which machines are compared."""


@dataclass(frozen=True)
class Known:
    """What a run takes on a machine of this speed."""

    minutes: float
    gflops: float
    """The speed of that machine."""
    memory_gb: float
    disk_gb: float


KNOWN = {
    "real": Known(minutes=51, gflops=100, memory_gb=5.5, disk_gb=7),
    "real-quick": Known(minutes=12, gflops=100, memory_gb=5.5, disk_gb=5),
}


def estimate(name: str) -> str:
    """Time, memory and disk of a run on this machine."""
    import stages  # noqa: F401, I001  # first: it sets the instructions that torch may use
    import torch

    from posttrain.models.device import free_bytes

    known = KNOWN[name]
    minutes = known.minutes * known.gflops / gflops()
    memory, disk = free_bytes(torch.device("cpu")) / 1e9, shutil.disk_usage(".").free / 1e9
    return (
        f"{name}: about {minutes:.0f} minutes with {THREADS} threads, by the speed of this machine now; "
        f"{known.memory_gb:g} GB of memory ({memory:.0f} GB are free) and {known.disk_gb:g} GB of disk "
        f"({disk:.0f} GB are free)"
    )


def gflops() -> float:
    """Return the speed of matrix products with as many threads as the recipes use: the best of a few."""
    import torch

    torch.set_num_threads(THREADS)
    rows, inner, columns = MATRICES
    left, right = torch.ones(rows, inner), torch.ones(inner, columns)
    best = 0.0
    for _ in range(20):
        start = time.perf_counter()
        torch.mm(left, right)
        best = max(best, 2e-9 * rows * inner * columns / (time.perf_counter() - start))
    return best


def table() -> str:
    """Every policy on the tasks that were trained and on the others, with the change from the start of its run."""
    settings = read()
    parts = at(settings, "data.tasks.math.parts")
    trained = [part["task"] for part in parts.values() if "train" in part.get("splits", ["train"])]
    others = [part["task"] for part in parts.values() if part["task"] not in trained]
    groups = {"trained": trained, "never trained": others}
    labels = list(policies(settings))
    head = ["policy"]
    for name, tasks in groups.items():
        head += [f"{name}: {', '.join(tasks)} [95 %]", "change [95 %]"]
    starts = _starts(settings)
    columns = [_column(select(labels, None, "sampled", tasks), starts) for tasks in groups.values()]
    rows = [[label, *(cell for column in columns for cell in column[nth])] for nth, label in enumerate(labels)]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]
    return "\n".join([*lines, "", _cost()])


def _starts(settings: Settings) -> list[int | None]:
    """Of each policy, the place of the policy that its run starts from."""
    models, runs = list(policies(settings).values()), model_runs(settings)
    starts = [runs.get(model, {}).get("start") for model in models]
    return [models.index(start) if start in models else None for start in starts]


def _column(found: Sequence[EvaluatedPolicy], starts: Sequence[int | None]) -> list[tuple[str, str]]:
    """Return the share of right answers of each policy, and the change from its start, with intervals over prompts."""
    cells = []
    for one, start in zip(found, starts, strict=True):
        here = scores([one])
        own = difference(here, here * 0)
        half = own.half(ALPHA)
        change = "-"
        if start is not None:
            apart = difference(here, scores([found[start]]))
            low, high = (apart.mean + sign * apart.half(ALPHA) for sign in (-1, 1))
            change = f"{apart.mean:+.3f} [{low:+.3f}, {high:+.3f}]"
        cells.append((f"{own.mean:.3f} [{max(own.mean - half, 0):.3f}, {min(own.mean + half, 1):.3f}]", change))
    return cells


def _cost() -> str:
    """Return the time and memory of all stages, and the machine."""
    found = [read_timings(file) for file in FOLDER.rglob("*.json")]
    minutes, peak = sum(one["total"] for one in found) / 60, max(one["peak_mb"] for one in found) / 1e3
    longest = sorted(found, key=lambda one: -float(one["total"]))[:6]
    parts = ", ".join(f"{one['stage']} {one['total'] / 60:.1f}" for one in longest)
    cpu = sum(one["cpu"] for one in found) / 60
    spent = f"{minutes:.0f} minutes in all ({parts}), {cpu:.0f} minutes of CPU time, {peak:.1f} GB of memory at most"
    return f"{spent}; {THREADS} threads; {machine()}."


def write(folder: Path) -> str:
    """Write the table of the run in a folder into README.md and docs/reports/real.md, and its plot into docs/."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        summary, _, members = read_summary()
        text, plot = table(), draw(summary, read(), members)
    finally:
        os.chdir(here)
    write_text(FIGURE, plot)
    for page in PAGES:
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise DataError(what=f"it has no {BEGIN} or {END}", where=str(page), fix="Put both lines into it")
        write_text(page, f"{before}{BEGIN}\n{text}\n{END}{after}")
    return f"wrote the table into {' and '.join(map(str, PAGES))}, the plot into {FIGURE}"


def main(words: Sequence[str]) -> str:
    """Return the command line."""
    match words:
        case ["estimate", ("real" | "real-quick") as name]:
            return estimate(name)
        case ["table"]:
            return table()
        case ["write", folder]:
            return write(Path(folder))
        case _:
            return __doc__ or ""


if __name__ == "__main__":
    print(main(sys.argv[1:]))
