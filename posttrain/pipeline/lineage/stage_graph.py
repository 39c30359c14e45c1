"""The project's graph of runs and their start models, as a text outline and as a layered picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from xml.sax.saxutils import escape

from posttrain.pipeline.lock.graph import Pipeline
from posttrain.pipeline.params.stage_table import evaluated, stage_of

HIDDEN: Final = ("code",)
"""Stages that every other stage depends on."""
NAMED: Final = 3
"""The most further inputs that a line of the outline names."""
COLOURS: Final = {
    "data": "#e8eef7",
    "base": "#e3f1ec",
    "sft": "#d5ecdf",
    "reward": "#f8ecd4",
    "preference": "#f6e0e6",
    "online": "#e9e1f6",
    "distill": "#e9e1f6",
    "completions": "#f4f4f4",
    "evaluate": "#eeeeee",
}
OTHER: Final = "#ffffff"
ROW, GAP, PAD, LETTER = 34, 70, 10, 7.8
SWEEPS: Final = 8
"""Passes that order the boxes of a column by their neighbours."""


@dataclass(frozen=True)
class StageGraph:
    """Stages and their inputs. `starts`: the stage whose model a run continues."""

    inputs: Mapping[str, Sequence[str]]
    starts: Mapping[str, str]

    @classmethod
    def of(cls, pipeline: Pipeline, params: Mapping[str, Any]) -> StageGraph:
        """Return the graph of dvc.yaml with the runs of params.yaml."""
        upstream, policies = pipeline.upstream, evaluated(params)
        names = [name for name in pipeline.order() if _section(name) not in HIDDEN]
        inputs = {name: [one for one in upstream[name] if _section(one) not in HIDDEN] for name in names}
        starts = {}
        for name in names:
            section, _, run = name.partition("@")
            settings = ((params.get(section) or {}).get("runs") or {}).get(run) or {}
            model = settings.get("start") if isinstance(settings, dict) else None
            if section in ("completions", "evaluate") and run in policies:
                model = policies[run].model
            candidates = [f"completions@{run}"] if section == "evaluate" else []
            candidates += [stage_of(params, model)] if isinstance(model, str) else []
            if start := next((one for one in candidates if one in inputs[name]), None):
                starts[name] = start
        return cls(inputs, starts)

    @cached_property
    def above(self) -> dict[str, frozenset[str]]:
        """All stages that each stage needs, directly or not."""
        above: dict[str, frozenset[str]] = {}
        for name, inputs in self.inputs.items():  # in dependency order
            above[name] = frozenset(inputs).union(*(above[one] for one in inputs))
        return above

    def drawn(self, name: str) -> list[str]:
        """Return the inputs to draw: the parent, and inputs that no other drawn input needs."""
        parent, inputs = self.parent(name), self.inputs[name]
        return [one for one in inputs if one == parent or not any(one in self.above[other] for other in inputs)]

    @cached_property
    def depth(self) -> dict[str, int]:
        """The number of stages on the longest path to each stage."""
        depths: dict[str, int] = {}
        for name, inputs in self.inputs.items():  # in dependency order
            depths[name] = 1 + max((depths[one] for one in inputs), default=-1)
        return depths

    def parent(self, name: str) -> str | None:
        """Return the input under which a stage is listed: the start of its run, or its deepest input."""
        if not self.inputs[name]:
            return None
        return self.starts.get(name) or max(self.inputs[name], key=lambda one: self.depth[one])

    def outline(self) -> str:
        """Return the graph as an outline: each stage below its start stage, with its further inputs."""
        below: dict[str | None, list[str]] = {}
        for name in self.inputs:
            below.setdefault(self.parent(name), []).append(name)
        return "\n".join(line for root in below.get(None, ()) for line in self._lines(root, below, "", ""))

    def _lines(self, name: str, below: Mapping[str | None, Sequence[str]], first: str, rest: str) -> Iterator[str]:
        more = [one for one in self.drawn(name) if one != self.parent(name)]
        said = ", ".join(more[:NAMED]) + (f" and {len(more) - NAMED} more" if len(more) > NAMED else "")
        yield f"{first}{name}{f'  + {said}' if more else ''}"
        children = below.get(name, ())
        for child in children:
            last = child is children[-1]
            yield from self._lines(
                child, below, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}"
            )

    def columns(self) -> list[list[str]]:
        """Return the stages by depth. In a column they are ordered so that few lines cross."""
        columns: list[list[str]] = [[] for _ in range(1 + max(self.depth.values(), default=0))]
        for name in self.inputs:
            columns[self.depth[name]].append(name)
        near: dict[str, list[str]] = {name: self.drawn(name) for name in self.inputs}
        for name in self.inputs:
            for one in self.drawn(name):
                near[one].append(name)
        place: dict[str, float] = {}

        def mean(name: str) -> float:
            known = [place[one] for one in near[name] if one in place]
            return sum(known) / len(known) if known else 0.5

        for sweep in range(SWEEPS):
            for column in columns if sweep % 2 == 0 else columns[::-1]:
                column.sort(key=mean)
                place |= {name: (row + 0.5) / len(column) for row, name in enumerate(column)}
        return columns

    def svg(self) -> str:
        """Return the graph as a picture, from left to right."""
        columns = self.columns()
        widths = [2 * PAD + LETTER * max(map(len, column), default=0) for column in columns]
        height = ROW * max(map(len, columns), default=1)
        lefts = [PAD + sum(widths[:place]) + GAP * place for place in range(len(columns))]
        boxes = {
            name: (lefts[place], (height - ROW * len(column)) / 2 + ROW * row, widths[place])
            for place, column in enumerate(columns)
            for row, name in enumerate(column)
        }
        lines = [
            _curve(boxes[one], boxes[name], main=one == self.parent(name))
            for name in self.inputs
            for one in self.drawn(name)
        ]
        wide = sum(widths) + GAP * (len(columns) - 1) + 2 * PAD
        frame = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {height + PAD}" width="{wide:.0f}" '
            f'height="{height + PAD}" role="img" font-family="system-ui, sans-serif" font-size="13">'
        )
        return "\n".join(
            [
                frame,
                f"<title>The {len(boxes)} stages of the pipeline</title>",
                '<rect width="100%" height="100%" fill="white"/>',
                *lines,
                *(_box(name, *place) for name, place in boxes.items()),
                "</svg>\n",
            ]
        )


def _section(name: str) -> str:
    return name.partition("@")[0]


def _box(name: str, left: float, top: float, width: float) -> str:
    fill = COLOURS.get(_section(name).partition("_")[0], OTHER)
    return (
        f'<rect x="{left:.0f}" y="{top + 4:.0f}" width="{width:.0f}" height="{ROW - 8}" rx="4" fill="{fill}" '
        f'stroke="#8a8f98"/><text x="{left + PAD:.0f}" y="{top + ROW / 2 + 5:.0f}" fill="#1b1f24">{escape(name)}</text>'
    )


def _curve(start: tuple[float, float, float], end: tuple[float, float, float], *, main: bool) -> str:
    x, y, to, down = start[0] + start[2], start[1] + ROW / 2, end[0], end[1] + ROW / 2
    middle = (x + to) / 2
    style = 'stroke="#4a5568" stroke-width="1.6"' if main else 'stroke="#b8bec8"'
    way = f"M{x:.0f} {y:.0f} C{middle:.0f} {y:.0f} {middle:.0f} {down:.0f} {to:.0f} {down:.0f}"
    return f'<path d="{way}" fill="none" {style}/>'
