"""`posttrain show inspect`: write results and rollouts as Inspect AI logs, for its viewer and scanners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import polars as pl

import posttrain
from posttrain.data.columns import digest
from posttrain.errors import DataError, ParamsError
from posttrain.files import read_finite_json
from posttrain.pipeline.outside.tool import Tool
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.slots import table_of
from posttrain.pipeline.params.stage_table import Settings, curve_runs, group_of, policies
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import PARAMS_FILE, rollouts_path
from posttrain.plugins.inspect import inspect_child
from posttrain.rollout import FAILED
from posttrain.settings.params import did_you_mean
from posttrain.settings.plain import NONE

TOOL: Final = Tool("inspect_ai", "Inspect AI", "0.3", "inspect")
WHERE: Final = "posttrain show inspect"
USED: Final = ("round", "step", "advantage", "version", "outcome")
"""Columns of rollout rows that a log stores as metadata."""


def write_logs(names: Sequence[str], folder: Path) -> str:
    """Write a log for each evaluated policy, or for the given policies.

    `online/grpo` means the rollouts of that run.
    """
    settings = read()
    python = TOOL.python(WHERE)  # before the tables are read
    known = [*policies(settings), *(name for name in curve_runs(settings) if rollouts_path(name).is_dir())]
    if unknown := next((name for name in names if name not in known), None):
        fix = did_you_mean(unknown, known) or "Run the pipeline first: dvc repro"
        raise ParamsError(what=f"'{unknown}' is not a policy or a run with rollouts", where=PARAMS_FILE, fix=fix)
    chosen = names or [
        label for label in policies(settings) if (Path("results") / label / "rollouts.parquet").is_file()
    ]
    if not chosen:
        raise DataError(what="there are no results", where="results", fix="Run the pipeline first: dvc repro")
    logs = [log for name in chosen for log in (_of_run if name in curve_runs(settings) else _of_policy)(name, settings)]
    folder.mkdir(parents=True, exist_ok=True)
    # Named as Inspect names its own, which is how its viewer finds them.
    names_of = (f"{log['created'].replace(':', '-')}_{log['task'].replace('/', '-')}_{log['id']}" for log in logs)
    files = [str(folder / f"{name}.eval") for name in names_of]
    asked = {"logs": [{**log, "file": file} for log, file in zip(logs, files, strict=True)]}
    TOOL.answer(inspect_child, asked, WHERE, "Read the end of its output")
    view = f"{Path(python).with_name('inspect')} view start --host 127.0.0.1 --log-dir {folder}"
    return "\n".join([*(f"wrote {file}" for file in files), f"Look at them: {view}"])


def _of_policy(label: str, settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the log of the sampled completions, then the log of the greedy ones."""
    file = Path("results") / label / "rollouts.parquet"
    rows = read_table(file, "rollouts")
    figures = {
        key: value for key, value in read_finite_json(file.with_name("metrics.json")).items() if value is not None
    }
    data = str(group_of(settings, "evaluate.settings").get("data", ""))
    for greedy in (False, True):
        some = rows.filter(greedy=greedy)
        samples = [
            _sample(row, row["sample"] + 1, row["prompt"], row["answer"], {"task": row["task"]} if row["task"] else {})
            for row in _with_text(some, file)
        ]
        task = f"{label}-greedy" if greedy else label
        yield _log(file, task, policies(settings)[label], data, samples, {} if greedy else figures)


def _of_run(name: str, settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the log of a run's rollouts. A prompt that was drawn again is another epoch."""
    files = sorted(rollouts_path(name).glob("part-?????.parquet"))
    rows = pl.concat([read_table(file, "training_rollouts") for file in files])
    data = str(curve_runs(settings)[name].get("data", NONE))
    table = table_of(data)
    rows_of = [] if table is None else read_table(table, "prompts").iter_rows(named=True)
    prompts = {row["id"]: row for row in rows_of}
    drawn: Counter[str] = Counter()
    samples = []
    for row in _with_text(rows, rollouts_path(name)):
        drawn[row["prompt_id"]] += 1
        prompt = prompts.get(row["prompt_id"], {})
        turns = prompt.get("prompt") or [{"role": "user", "content": row["problem"]}]
        more = {key: row[key] for key in USED if row[key] is not None}
        samples.append(_sample(row, drawn[row["prompt_id"]], turns, prompt.get("answer", ""), more))
    yield _log(files[0], name, name, data, samples, {})


def _with_text(rows: pl.DataFrame, file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows with stored text."""
    with_text = rows.drop_nulls("completion")
    if with_text.is_empty():
        raise DataError(what="its completions were not stored", where=str(file), fix="Run it with completions: full")
    return with_text.iter_rows(named=True)


def _sample(
    row: Mapping[str, Any], epoch: int, turns: Sequence[Mapping[str, str]], answer: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a completion as an Inspect sample. Unknown scores are left out; the metadata has their status."""
    scores = {one["name"]: one["value"] for one in row["scores"] if one["status"] not in FAILED}
    odd = {f"status_{one['name']}": one["status"] for one in row["scores"] if one["status"] != "ok"}
    return {
        "id": row["prompt_id"],
        "row": row["id"],
        "epoch": epoch,
        "input": [dict(turn) for turn in turns],
        "target": answer,
        "completion": row["completion"],
        "truncated": row["truncated"] if "truncated" in row else row["finish"] == "length",
        "scores": ({} if row["reward"] is None else {"reward": row["reward"]}) | scores,
        "metadata": {**odd, **more},
    }


def _log(
    file: Path, task: str, model: str, data: str, samples: list[dict[str, Any]], figures: Mapping[str, float]
) -> dict[str, Any]:
    made = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")
    packages = {"posttrain": posttrain.__version__}
    return {
        "task": task, "id": digest(f"{file} {task} {made}"), "model": f"posttrain/{model}", "data": data,
        "created": made, "samples": samples, "figures": dict(figures), "packages": packages,
        "metadata": {"file": str(file)},
    }  # fmt: skip
