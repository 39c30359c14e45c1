"""The results of the last run: as a table on the terminal, and as a block and a plot in the README."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from posttrain.errors import VERIFY, DataError
from posttrain.params import read
from posttrain.report.lineage import flattened
from posttrain.report.policies import Settings, read_json, runs
from posttrain.report.summary import (
    REWARD_MODEL,
    SUMMARY,
    Figures,
    from_json,
    gains,
    policy_figures,
    reference_of,
)

README, FIGURE = Path("README.md"), Path("docs/learning.svg")
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
WRITTEN_BY = "<!-- Written by `python -m posttrain readme` from report/summary.json; do not edit. -->"
WIDTH = 100


def results_table() -> str:
    """Every policy with its figures, what the gain consists of, and what to look at next."""
    summary = read_summary()
    rows = [_titles(summary), *_rows(summary)]
    widths = [max(len(row[nth]) for row in rows) for nth in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    notes = [textwrap.fill(note, WIDTH) for note in (_reward_note(summary), gains(summary)) if note]
    return "\n\n".join(["\n".join(lines), *notes, _next()])


def write_readme() -> str:
    """Put the table into README.md and the plot into docs/; says what was written."""
    from posttrain.report.figure import draw

    summary = read_summary()
    text = _readme()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    drawn = draw(summary, read()).removesuffix("\n").removesuffix("</svg>")
    _replace(FIGURE, f"{drawn}<!-- summary {_digest(summary)} --></svg>\n")
    _replace(README, f"{before}{_block(summary)}{after}")
    return f"wrote the results into {README} and the plot into {FIGURE}"


def readme_is_current() -> bool:
    """Whether README.md and its plot were made from the summary that lies in report/."""
    summary = read_summary()
    return _block(summary) in _readme() and FIGURE.is_file() and _digest(summary) in FIGURE.read_text(encoding="utf-8")


def read_summary() -> dict[str, Figures]:
    """The figures that the stage `report` wrote."""
    summary = from_json(read_json(Path(SUMMARY)))
    if not policy_figures(summary):
        raise DataError(what="holds no policy", where=SUMMARY, mend=VERIFY)
    return summary


def _block(summary: Mapping[str, Figures]) -> str:
    titles, rows = _titles(summary), _rows(summary)
    ruler = ["---", *["---:"] * (len(titles) - 1)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [titles, ruler, *rows])
    notes = [note for note in (_reward_note(summary), gains(summary)) if note]
    return "\n\n".join([f"{BEGIN}\n{WRITTEN_BY}", table, *notes, END])


def _titles(summary: Mapping[str, Figures]) -> list[str]:
    of = f"KL to {reference_of(summary)}"
    return ["policy", "pass@1 [95 % interval]", "greedy", "format", "truncated", "length", "working", of]


def _rows(summary: Mapping[str, Figures]) -> list[list[str]]:
    return [
        [
            name,
            f"{one['pass_at_1']:.3f} [{one['low']:.3f}, {one['high']:.3f}]",
            *(_number(one, key, 3) for key in ("greedy", "format", "truncated")),
            _number(one, "length", 1),
            _number(one, "working", 3),
            _number(one, "kl", 2),
        ]
        for name, one in policy_figures(summary).items()
    ]


def _number(figures: Figures, key: str, digits: int) -> str:
    return f"{figures[key]:.{digits}f}" if key in figures else "-"


def _reward_note(summary: Mapping[str, Figures]) -> str:
    accuracy = summary.get(REWARD_MODEL, {}).get("accuracy")
    return "" if accuracy is None else f"Reward model: accuracy {accuracy:.3f} on held-out pairs."


def _next() -> str:
    tool = _beside_python("dvc")
    rows = [
        ("report/report.html", "all of it on one page: curves, frontier, completions side by side"),
        (f"{tool} plots show", "the metrics of every step"),
        (f"{tool} exp run -S '{_knob(read())}'", "change a knob; what it does not touch is not run again"),
        (f"{tool} exp show", "the experiments beside each other"),
        ("docs/report.md", "what the figures mean"),
    ]
    width = max(len(command) for command, _ in rows)
    return "\n".join(["What to look at next", *(f"  {command.ljust(width)}  {about}" for command, about in rows)])


def _knob(settings: Settings) -> str:
    """A number of the last run's settings, doubled, as `-S` wants it."""
    found = [
        (f"{path.replace('/', '.runs.', 1)}.{key}", float(text))
        for path, run in runs(settings).items()
        for key, text in (flattened(run) if run else {}).items()
        if key in ("kl.beta", "beta", "optimizer.lr") and text.replace(".", "", 1).replace("e-", "", 1).isdigit()
    ]
    preferred = [one for one in found if one[0].endswith("beta")] or found or [("sft.optimizer.lr", 0.001)]
    name, value = preferred[-1]
    return f"{name}={2 * value:g}"


def _beside_python(tool: str) -> str:
    """The tool as a person has to type it: with the environment's folder where that lies in the workspace."""
    folder = Path(sys.executable).parent
    return str((folder / tool).relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else tool


def _readme() -> str:
    if not README.is_file():
        raise DataError(what="there is no such file", where=str(README), mend="Run from the project's root folder")
    text = README.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        mend = f"Put {BEGIN} and {END} around the place of the table, once"
        raise DataError(what="the marks of the results are missing or doubled", where=str(README), mend=mend)
    return text


def _digest(summary: Mapping[str, Figures]) -> str:
    return hashlib.sha256(json.dumps(summary, sort_keys=True).encode()).hexdigest()[:16]


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.tmp")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
