"""All numbers that the pipeline records or reports, by names such as `grpo.score` or `reward/main.heldout_accuracy`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from posttrain.errors import DataError, PosttrainError
from posttrain.pipeline.lock.digests import recorded
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import STAGES, curve_runs, evaluated, group_of, stage_of
from posttrain.pipeline.report.build import CURVE_POINTS
from posttrain.pipeline.report.curves import thinned
from posttrain.pipeline.report.policies import read_json
from posttrain.pipeline.report.summary import (
    GAIN,
    SEEDS,
    SUMMARY,
    extra_columns,
    gain_parts,
    policy_figures,
    settings_in,
    subtracted,
    trainings_in,
)
from posttrain.pipeline.tables.curve import Column, read_curve
from posttrain.pipeline.workspace import PARAMS_FILE, metrics_path
from posttrain.settings.params import did_you_mean

_NUMBER: Final = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")
_COLUMNS: Final = {"low": "score_low", "high": "score_high", "kl": "kl_k1", "accuracy": "heldout_accuracy"}
"""Column of report/summary.json -> its name in the files that it is made from."""
MAIN: Final = ("score", "heldout_accuracy")
"""The metric that a policy or reward model name alone refers to, as in report/headline.json."""


@dataclass(frozen=True)
class Figure:
    """A number, the stage that wrote it, and its file."""

    owner: str
    """A label under results/, or a path under metrics/."""
    key: str
    value: float
    file: str
    stage: str
    of: tuple[str, ...] = ()
    """The numbers that it is computed from."""

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.key}"


class Figures:
    """The recorded numbers of a workspace."""

    def __init__(self, root: Path = Path()) -> None:
        self._root = root
        self.lock = recorded(root)

    @cached_property
    def recorded(self) -> dict[str, Figure]:
        """Name -> number, from results/*/metrics.json, from metrics/, and from the report's sentences."""
        figures: dict[str, Figure] = {}
        for stage, entry in self.lock.items():
            for out in entry.get("outs", ()):
                path = str(out["path"])
                for file in self._metrics(path):
                    owner = file.removeprefix("results/").removesuffix("/metrics.json")
                    owner = owner.removeprefix("metrics/").removesuffix(".json")
                    numbers = read_json(self._root / file)
                    for key, value in numbers.items():
                        if isinstance(value, int | float) and not isinstance(value, bool):
                            figures[f"{owner}.{key}"] = Figure(owner, key, float(value), file, stage)
        return figures | {gain.name: gain for gain in self._gains()}

    def _metrics(self, out: str) -> Iterator[str]:
        """Yield the metrics files of an output."""
        inner = f"{out}/metrics.json"
        candidates = [out] if re.fullmatch(r"metrics/.+\.json|results/.+/metrics\.json", out) else [inner]
        yield from (candidate for candidate in candidates if (self._root / candidate).is_file())

    def _gains(self) -> Iterator[Figure]:
        """Yield differences to the reference, means over seeds, and the numbers in the report's sentences."""
        reported = _reported(self._root)
        summary = settings_in(reported)
        members = {row["setting"]: row["policies"].split(", ") for row in reported.get("settings", ())}
        base = members.get(subtracted(summary), ())
        for label, figures in policy_figures(summary).items():
            keys = (*GAIN, *SEEDS) if members[label] == [label] else figures
            for key in (key for key in keys if key in figures):
                of = [*base, *members[label]] if key in (*GAIN, *SEEDS) else members[label]
                column = "score" if key in (*GAIN, *SEEDS, "low", "high") else key
                yield Figure(label, key, figures[key], SUMMARY, "report", tuple(f"{name}.{column}" for name in of))
        tasks = {row["setting"]: row["task"] for row in reported.get("settings", ()) if row.get("task")}
        for sentence in gain_parts(summary, tasks, trainings_in(reported)):
            label, _, rest = sentence.partition(" ")
            used = ["score", *extra_columns(summary)]
            of = tuple(f"{name}.{key}" for name in (*base, *members[label]) for key in used)
            for index, number in enumerate(_NUMBER.findall(rest)):
                yield Figure(label, f"gain.{index}", float(number), SUMMARY, "report", of)

    def curve(self, name: str) -> Figure | None:
        """Return a point of a learning curve: `online/grpo.reward@12` is the reward at step 12.

        The report averages adjacent steps of long curves. The mean of steps 12 and 13 is named 12.5.
        """
        match = re.fullmatch(r"(?P<owner>[^.]+)\.(?P<key>[^@]+)@(?P<step>[0-9.]+)", name)
        file = f"plots/{match['owner']}.csv" if match else ""
        if match is None or not (self._root / file).is_file():
            return None
        whole, key = read_curve(self._root / file), match["key"]
        shown, _ = thinned(whole, CURVE_POINTS)
        points = (_at(columns, key, match["step"]) for columns in (whole, shown))
        value = next((point for point in points if point is not None), None)
        stage = next((name for name, entry in self.lock.items() if _made(entry, file)), None)
        if value is None or stage is None:
            return None
        return Figure(match["owner"], f"{key}@{match['step']}", value, file, stage)

    def named(self, what: str) -> Figure | None:
        """Return a number by its name, by its column in the report, or by only its policy or reward model."""
        owner, dot, key = what.rpartition(".")
        names = [what, f"{owner}.{_COLUMNS.get(key, key)}"] if dot else []
        names += [f"{what}.{main}" for main in MAIN]
        return next((self.recorded[name] for name in names if name in self.recorded), None) or self.curve(what)

    def equal_to(self, number: str) -> list[Figure]:
        """Return the numbers, including points of curves, that equal this number after rounding to its decimals."""
        digits = len(number.partition(".")[2])
        wanted = float(number)
        points = [point for point in self._points() if digits]
        return [
            figure
            for figure in (*self.recorded.values(), *points)
            if f"{figure.value:.{digits}f}" == f"{wanted:.{digits}f}"
        ]

    def _points(self) -> Iterator[Figure]:
        for stage, entry in self.lock.items():
            for out in entry.get("outs", ()):
                path = str(out["path"])
                if path.startswith("plots/") and (self._root / path).is_file():
                    columns = read_curve(self._root / path)
                    owner = path.removeprefix("plots/").removesuffix(".csv")
                    for key in columns.keys() - {"step"}:
                        for step, value in zip(columns["step"], columns[key], strict=True):
                            if step is not None and value is not None:
                                yield Figure(owner, f"{key}@{step:g}", value, path, stage)

    def unknown(self, what: str) -> DataError:
        """Return the error for an unknown name."""
        owners = dict.fromkeys(figure.owner for figure in self.recorded.values() if not figure.of)
        makers = self._makers()
        asked = next((name for name in (what, what.rpartition(".")[0]) if name in makers), None)
        if asked is not None and makers[asked][0] not in owners:
            fix = f"Make them: dvc repro {makers[asked][1]}"
            return DataError(what="it has no results yet", where=f"'{what}'", fix=fix)
        near = did_you_mean(what, list(self.recorded))
        known = "Give a name (grpo.score), a number (0.922), the id of a row, or FILE:LINE"
        listed = f"Numbers exist for {', '.join(owners)}." if owners else "No stage has written numbers yet: dvc repro."
        fix = f"{near if near.endswith('?') else listed} {known}"
        return DataError(what="no metric, row or file has this name", where=f"'{what}'", fix=fix)

    def _makers(self) -> dict[str, tuple[str, str]]:
        """Return run or policy in params.yaml -> the owner of its numbers, and the stage that writes them."""
        settings = read(self._root / PARAMS_FILE)
        models = {model: (model, stage_of(settings, model)) for model in curve_runs(settings)}
        alone = {model.rpartition("/")[2]: maker for model, maker in models.items()}
        listed = {
            stage.output(run): (stage.output(run), f"{stage.name}@{run}")
            for stage in STAGES
            if stage.is_listed_result
            for run in group_of(settings, stage.group)
        }
        return alone | models | listed | {label: (label, run.stage) for label, run in evaluated(settings).items()}


def _at(columns: Mapping[str, Column], key: str, step: str) -> float | None:
    """Return the value of a column at a step."""
    pairs = zip(columns.get("step", ()), columns.get(key, ()), strict=False)
    return next((value for number, value in pairs if number is not None and f"{number:g}" == step), None)


def _made(entry: Mapping[str, Any], file: str) -> bool:
    return any(out["path"] == file for out in entry.get("outs", ()))


def is_number(what: str) -> bool:
    """Tell whether a text is a bare number with a decimal point. An id has no decimal point."""
    return _NUMBER.fullmatch(what) is not None


def _reported(root: Path) -> dict[str, Any]:
    """Return the report's numbers; empty before the first report, or if its file has a merge conflict."""
    try:
        return read_json(root / SUMMARY)
    except PosttrainError:
        return {}


def shown_in(figure: Figure) -> list[str]:
    """Return the other files that show a number of a policy or a reward model."""
    names = [row.get("policy") or row.get("reward_model") for rows in _reported(Path()).values() for row in rows]
    if figure.owner not in names or figure.file == str(metrics_path(f"online/{figure.owner}")):
        return []
    return [SUMMARY, "report/report.html", *(["report/headline.json"] if figure.key in MAIN else [])]
