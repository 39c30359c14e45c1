"""What docs/reports/performance.md says of the pipeline's own cost, from the measured results."""

from __future__ import annotations

import statistics
from typing import Any, Final

START_TARGET, DVC_TARGET, FLOW_TARGET, TABLE_TARGET = 1.3, 1.2, 2.5, 5.0

HEAD: Final = """## The pipeline itself

The overhead of the pipeline (`python -m benchmarks.overhead`): sides in turn, each in a fresh process on one core; CPU
seconds [wall seconds], median of all turns. Stages run on the data of `recipes/smoke.yaml`.
"""
START: Final = """**A stage before its first step**, without reading the model, next to a process that only imports
torch and the model class. `to the first step` ends where sampling or the first update begins. `with late setup`
adds what the first two updates cost more than the next two.
"""
DVC: Final = """**`dvc repro` with nothing to do.** `bare` has as many stages, each with one tiny dependency
(without any, DVC always runs a stage). `hollow` has our number of dependencies, outputs and parameters, all files
tiny.
"""
DVC_WHY: Final = """The difference to `bare` is DVC's work per dependency, output and parameter, as `hollow` and
Python's profiler show (seconds under the profiler, overlapping). Fewer dependencies would be faster, but reruns
less exact.
"""
FLOW: Final = """**A flow with nothing to do**, next to `dvc repro` of the same pipeline; Prefect's server is up and
its time is not counted. A flow checks params.yaml first, which imports torch. When this was measured an idle flow
also read the models' shapes, which it no longer does.
"""
TABLES: Final = "**The checks of a million rows** (pandera, every rule of the table), as a stage runs them."


def overhead_lines(found: dict[str, Any]) -> list[str]:
    """Return the section from what was measured."""
    sides = found["sides"]
    return [
        HEAD,
        f"Machine: {found['machine']}.",
        "",
        START,
        *_start(sides),
        "",
        DVC,
        *_dvc(found),
        "",
        DVC_WHY,
        *_why(found["profiles"]),
        "",
        FLOW,
        *_flow(sides),
        "",
        *_tables(sides),
    ]


def _start(sides: dict[str, Any]) -> list[str]:
    rows = [
        "| side | CPU s to the first step | of torch and the model class | with late setup | target | |",
        "|---|---|---|---|---|---|",
    ]
    base, tuned = ([one["cpu"] for one in sides[name]] for name in ("imports", "collected"))
    rows.append(f"| torch and the model class | {_median(base):.2f} | | | | |")
    cells = ["the same, our settings of the garbage collector", f"{_median(tuned):.2f}", _spread(_ratios(tuned, base))]
    rows.append(f"| {' | '.join(cells)} | | | |")
    for side, reports in sides.items():
        if not side.startswith("stage "):
            continue
        first = [report["first"] - report["reading"] for report in reports]
        late = [2 * report["warm"] - report["again"] - report["reading"] for report in reports]
        ratio, strict = (_ratios(part, base) for part in (first, late))
        reached = "reached" if statistics.median(strict) < START_TARGET else "missed"
        cells = [side.removeprefix("stage "), f"{_median(first):.2f}", _spread(ratio), _spread(strict)]
        rows.append(f"| {' | '.join(cells)} | < {START_TARGET} | {reached} |")
    return rows


def _dvc(found: dict[str, Any]) -> list[str]:
    sides = {name: found["sides"][f"dvc {name}"] for name in ("ours", "bare", "hollow")}
    ours = [side["cpu"] for side in sides["ours"]]
    rows = ["| pipeline | CPU s [wall] | ours / it | target | |", "|---|---|---|---|---|"]
    text = {
        "ours": f"ours: {found['stages']} stages, {found['deps']} dependencies, {found['outs']} outputs",
        "bare": f"bare: {found['stages']} stages",
        "hollow": "hollow: as ours, all files tiny",
    }
    for name, reports in sides.items():
        cpu, wall = ([report[kind] for report in reports] for kind in ("cpu", "wall"))
        cells = [text[name], f"{_median(cpu):.2f} [{_median(wall):.2f}]"]
        if name == "ours":
            rows.append(f"| {' | '.join(cells)} | | | |")
            continue
        ratio = _ratios(ours, cpu)
        reached = "reached" if statistics.median(ratio) < DVC_TARGET else "missed"
        target = f"< {DVC_TARGET} | {reached}" if name == "bare" else "|"
        rows.append(f"| {' | '.join(cells)} | {_spread(ratio)} | {target} |")
    return rows


def _flow(sides: dict[str, Any]) -> list[str]:
    rows = ["| side | CPU s | wall s | target | |", "|---|---|---|---|---|"]
    flow, repro = (
        {kind: [side[kind] for side in sides[name]] for kind in ("cpu", "wall")} for name in ("flow", "dvc ours")
    )
    for name, seconds in (("`python -m flows.pipeline`", flow), ("`dvc repro`", repro)):
        rows.append(f"| {name} | {_median(seconds['cpu']):.2f} | {_median(seconds['wall']):.2f} | | |")
    ratios = [_ratios(flow[kind], repro[kind]) for kind in ("cpu", "wall")]
    reached = "reached" if max(map(statistics.median, ratios)) <= FLOW_TARGET else "missed"
    rows.append(f"| the flow of `dvc repro` | {' | '.join(map(_spread, ratios))} | <= {FLOW_TARGET} | {reached} |")
    first, *later = (side["wall"] for side in sides["server"])
    text = f"The server answers after {first:.1f} s the first time (it creates its database), then after"
    return [*rows, "", f"{text} {_median(later):.1f} s."]


def _why(profiles: dict[str, dict[str, float]]) -> list[str]:
    rows = ["| what DVC does | ours s | bare s |", "|---|---|---|"]
    ours, bare = profiles["ours"], profiles["bare"]
    return rows + [f"| {what} | {ours[what]:.3f} | {bare[what]:.3f} |" for what in ours]


def _tables(sides: dict[str, Any]) -> list[str]:
    rows = [TABLES, "", "| table | CPU s [wall] | target | |", "|---|---|---|---|"]
    for side, reports in sides.items():
        if side.startswith("tables "):
            cpu, wall = (_median([report[f"check_{kind}"] for report in reports]) for kind in ("cpu", "wall"))
            reached = "reached" if max(cpu, wall) < TABLE_TARGET else "missed"
            rows.append(
                f"| {side.removeprefix('tables ')} | {cpu:.2f} [{wall:.2f}] | < {TABLE_TARGET:.0f} | {reached} |"
            )
    return rows


def _ratios(ours: list[float], theirs: list[float]) -> list[float]:
    """Turn by turn."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"
