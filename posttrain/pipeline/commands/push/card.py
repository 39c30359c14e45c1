"""The model card: how a model was made and evaluated, from the pipeline's records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain import __version__
from posttrain.files import read_finite_json
from posttrain.measure.record import LICENCE, read_record, record_path
from posttrain.pipeline.commands.push.adapter import HubModel
from posttrain.pipeline.lineage.explain import why
from posttrain.pipeline.lineage.lineage import Lineage
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import evaluated, stage_of
from posttrain.pipeline.report.policies import output_digests
from posttrain.pipeline.tables.sources import USER_KINDS
from posttrain.pipeline.workspace import model_path

OWN = "Apache-2.0"
UNKNOWN = "unknown: none is stated"
LIMITS = """## Limits

- The scores hold for the prompts named above. They do not cover other tasks, other languages or safety.
- Intervals are 95 % intervals over prompts. Another training seed would give another score.
- The licences of the base model and of the data apply to this model too. posttrain did not check them."""


def card(label: str, model: str, title: str, base: HubModel | None = None) -> str:
    """Return the README.md of a policy's model. An adapter has a `base`."""
    settings, lineage = read(), Lineage()
    stage = stage_of(settings, model)
    above = [name for name in lineage.above(stage) if name in lineage.lock]
    made = [name for name in above if not name.startswith("data_")]
    data = [name for name in above if name.startswith("data_")]
    bases = [name for name in above if name.startswith("base_")]
    digest = output_digests().get(f"models/{model}", "none")
    made_by = f"made by posttrain {__version__} (commit {lineage.commit or 'none'}, digest {digest})"
    parts = [
        "\n".join(head(above, lineage.lock, base)),
        f"# {title}",
        f"`models/{model}` of a [DVC](https://dvc.org) pipeline, {made_by}.",
        "## Scores",
        "\n".join(_scores(label, evaluated(settings)[label].table)),
        "## How it was made",
        "From the last run to the first, each with the settings that are not defaults:",
        "\n".join(_runs(made, lineage.lock)),
        "## Base model and data",
        "\n".join(licences([*bases, *data], lineage.lock)),
        "\n".join(_data(data, lineage, stage)),
        "## Lineage",
        f"`posttrain why {label}.score`:",
        f"```\n{why(f'{label}.score', 'words')}\n```",
        LIMITS,
    ]
    return "\n\n".join(parts) + "\n"


def head(stages: list[str], lock: Mapping[str, Any], base: HubModel | None) -> Iterator[str]:
    """Yield the card's metadata: the loading library, and the Hub model that is its base or its start."""
    yield from ("---", f"library_name: {'peft' if base else 'transformers'}", "tags: [posttrain]")
    hub = [value for stage in stages if stage.startswith("base_hub@") for value in _settings(lock[stage]).values()]
    named = [value["name"] for value in hub if isinstance(value, dict) and "name" in value]
    yield from (f"base_model: {json.dumps(name)}" for name in ([base.name] if base else named[:1]))
    yield "---"


def _scores(label: str, table: str) -> Iterator[str]:
    """Yield a table with the metrics of one evaluation."""
    metrics: dict[str, Any] = read_finite_json(Path("results") / label / "metrics.json")
    yield f"On the held-out prompts of `{table}`; figures as in posttrain's documentation of results."
    yield ""
    yield "| figure | value | 95 % interval |"
    yield "|---|---:|---|"
    for name, value in metrics.items():
        if isinstance(value, int | float) and not name.endswith(("_low", "_high")):
            low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
            shown = "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"
            yield f"| {name} | {value:.4g} | {shown} |"


def _runs(stages: list[str], lock: Mapping[str, Any]) -> Iterator[str]:
    for stage in stages:
        for key, value in _settings(lock[stage]).items():
            yield f"- `{key}`: `{json.dumps(value, ensure_ascii=False)}`"


def licences(stages: list[str], lock: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of base models and data with their origins and stated licences."""
    yield "| run | from | licence |"
    yield "|---|---|---|"
    for stage in stages:
        for key, run in _settings(lock[stage]).items():
            if key.startswith(("base.", "data.")):
                for source, licence in _stated(stage, run if isinstance(run, dict) else {}):
                    yield f"| `{key}` | {source} | {licence} |"


def _stated(stage: str, run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the sources of a run, each with its licence or a note that it is unknown."""
    stated = str(run.get("license") or UNKNOWN)
    kind, _, base = stage.partition("@")
    match kind:
        case "base_hub":
            yield f"`{run.get('name')}` of the Hub", _of_model(model_path(f"base/{base}"))
        case "base_folders":
            yield f"the folder `{run.get('path')}`", _of_model(model_path(f"base/{base}"))
        case "base_scratch":
            yield "trained here from nothing", "the licence of its data"
        case "data_hub":
            record = read_record(record_path(stage))
            tables = [table for kind in USER_KINDS for table in _listed(run.get(kind))]
            for name in dict.fromkeys(str(table.get("name")) for table in tables):
                yield f"`{name}` of the Hub", str(run.get("license") or record.get(f"{LICENCE}{name}", UNKNOWN))
        case "data_files":
            yield f"the folder `{run.get('path')}`", stated
        case "data_tasks":
            is_custom = ":" in str(run.get("task"))
            yield f"generated by `{run.get('task')}`", UNKNOWN if is_custom else f"posttrain's own ({OWN})"
        case "data_samples":
            yield f"samples of `{run.get('policy')}` on `{run.get('data')}`", "those of this model and these prompts"
        case _ if "script" in run:
            yield f"written by `{run['script']}`", stated
        case _:
            yield f"rows of `{run.get('data')}`", "that of these rows"


def _of_model(folder: Path) -> str:
    """Return the licence in a base model's README.md, or its licence files. The import copied both."""
    if not folder.is_dir():
        return f"unknown: `{folder}` is not here (dvc checkout)"
    from huggingface_hub import metadata_load
    from yaml import YAMLError

    from posttrain.models.files.import_model import CARD
    from posttrain.models.files.store import LICENCES

    file = folder / CARD
    try:
        head = (metadata_load(file) if file.is_file() else None) or {}
    except (ValueError, YAMLError):  # the head of a README that is no card
        head = {}
    stated = [str(head[key]) for key in ("license", "license_name", "license_link") if head.get(key)]
    files = sorted(f"`{licence.name}`" for pattern in LICENCES for licence in folder.glob(pattern))
    return ", ".join(stated) or (f"see its {', '.join(files)}" if files else UNKNOWN)


def _listed(table: Any) -> list[Any]:
    return table if isinstance(table, list) else [] if table is None else [table]


def _data(stages: list[str], lineage: Lineage, stage: str) -> Iterator[str]:
    yield from _runs(stages, lineage.lock)
    yield from (f"- file `{source}`" for source in lineage.sources(stage))


def _settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded settings of a stage's own run."""
    return {key: value for values in entry.get("params", {}).values() for key, value in values.items()}
