"""A run for trackers: its id, settings, lineage, curve, metrics and completions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from posttrain.errors import ParamsError
from posttrain.locks import is_locked
from posttrain.measure.masking import masked
from posttrain.measure.record import read_record, record_path
from posttrain.pipeline.metrics.catalog import about
from posttrain.pipeline.metrics.catalog import stage_of as stage_of_path
from posttrain.pipeline.params.params_file import at
from posttrain.pipeline.params.seeds import with_seed
from posttrain.pipeline.params.stage_table import curve_runs, evaluated, section_of, stage_of
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE, metrics_path, plot_path, rollouts_path
from posttrain.settings.params import did_you_mean

HELD: Final = Path("checkpoints/.held")
"""The locks of running stages."""
COLUMNS: Final[tuple[str, ...]] = (
    "problem",
    "completion",
    "reward",
    "status",
    "greedy",
    "truncated",
    "step",
    "round",
    "finish",
)
"""The columns of a table of completions that are shown, if the file has them."""


@dataclass(frozen=True)
class TrackedRun:
    """The data for a tracker at the start of a run."""

    name: str
    """The folder of its model under models/, e.g. `online/grpo`."""
    id: str
    """A digest of the name, the settings, the code and the first step, so that another training is another run."""
    settings: Mapping[str, Any]
    lineage: Mapping[str, Any]
    """The record of the stage; for an unfinished run, what is known so far."""
    about: Mapping[str, str]
    """Metric of the curve, as the file has it -> what it means."""

    @property
    def label(self) -> str:
        """Return the run's displayed name at the tracker."""
        return f"{self.name}-{self.id[:6]}"

    @property
    def notes(self) -> str:
        """The meanings as a list in Markdown, for a tracker's description of the run."""
        return "\n".join(f"- **{metric}**: {text}" for metric, text in self.about.items())


def named_runs(words: Sequence[str]) -> list[str]:
    """Return the selected runs: `online/grpo`, `online@grpo`, or the label of an evaluated model. Default: all."""
    params = read_yaml(PARAMS_FILE)
    labels = {label: policy.model for label, policy in evaluated(params).items()}
    stages = {stage_of(params, name): name for name in curve_runs(params)}
    known = {**labels, **stages, **{name: name for name in (*labels.values(), *stages.values())}}
    for word in words:
        if word not in known and not plot_path(word).is_file():
            what, fix = f"no run is called '{word:.80}'", did_you_mean(word, list(known))
            raise ParamsError(what=what, where=PARAMS_FILE, fix=fix or "Use a name such as online/grpo")
    return list(dict.fromkeys(known.get(word, word) for word in words)) or list(stages.values())


def is_running(name: str) -> bool:
    """Tell whether a process is training the run."""
    lock = HELD / stage_of(read_yaml(PARAMS_FILE), name).replace("/", "@")
    return lock.is_file() and is_locked(lock)


def tracked(name: str, first: Mapping[str, float]) -> TrackedRun:
    """Describe a run whose curve begins with these metrics."""
    params = read_yaml(PARAMS_FILE)
    section, stage = section_of(params, name), stage_of(params, name)
    record = {} if is_running(name) else read_record(record_path(stage))
    code = Path("code") / f"{stage.replace('@', '/')}.json"
    digests = record.get("inputs") or {}
    digest = digests.get(code.as_posix()) or (_md5(code.read_bytes()) if code.is_file() else "")
    written = ((record.get("params") or {}).get(PARAMS_FILE) or {}).get(section)
    settings = _settings(params, section) if written is None else written
    told = [name, settings, digest, first]
    shown = settings if written is not None else _settings(with_seed(params), section)
    seed = {"seed": record["seed"]} if "seed" in record else {}
    lineage = record or {"stage": stage, "code": digest}
    meanings = {metric: text for metric in first if (text := about(stage_of_path(name), metric))}
    identity = _md5(json.dumps(told, sort_keys=True).encode())[:12]
    return TrackedRun(name, identity, _clean({**seed, **shown}), _clean(lineage), meanings)


def curve(file: Path) -> list[dict[str, float]]:
    """Return the finite metrics of each step in a file that may be growing or being rewritten.

    A line without its end is left out. A line that does not fit the first one ends the result.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    columns, *lines = [line.split(",") for line in text[: text.rfind("\n") + 1].splitlines()] or [[]]
    steps: list[dict[str, float]] = []
    for cells in lines:
        if len(cells) != len(columns):
            break
        row = {name: float(cell) for name, cell in zip(columns, cells, strict=True) if cell}
        steps.append({name: value for name, value in row.items() if math.isfinite(value)})
    return steps


def result_files(name: str) -> dict[str, Path]:
    """Return the files with metrics of the run's training, and of evaluations of its model by table.

    Runs that were evaluated on the same table share metric names, so that a tracker draws them together.
    """
    files = {"train": metrics_path(name)}
    for label, policy in evaluated(read_yaml(PARAMS_FILE)).items():
        if policy.model == name:
            place = policy.table if policy.table not in files else f"{policy.table}/{label}"
            files[place] = Path("results") / label / "metrics.json"
    return files


def figures(name: str) -> dict[str, float]:
    """Return the metrics in these files: `train/steps`, `two_step/prompts/score`."""
    return {
        f"{place}/{key}": float(value)
        for place, file in result_files(name).items()
        for key, value in read_record(file).items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def completions(name: str, most: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield tables of the first completions of each evaluation of the run and of its last training round."""
    files = {place: file.with_name("rollouts.parquet") for place, file in result_files(name).items()}
    files["train"] = max(rollouts_path(name).glob("*.parquet"), default=Path("none"))
    for table, file in files.items():
        if file.is_file() and most:
            import polars as pl

            shown = [column for column in COLUMNS if column in pl.read_parquet_schema(file)]
            frame = pl.scan_parquet(file)
            if "round" in shown:
                frame = frame.filter(pl.col("round") == pl.col("round").max())
            rows = frame.select(shown).head(most).collect().to_dicts()
            yield (
                f"completions/{table}",
                [{key: masked(v) if isinstance(v, str) else v for key, v in row.items()} for row in rows],
            )


def _settings(params: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return the settings of a run; empty if params.yaml no longer has it."""
    try:
        return dict(at(params, section) or {})
    except ParamsError:
        return {}


def _clean(value: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(masked(json.dumps(value))))


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
