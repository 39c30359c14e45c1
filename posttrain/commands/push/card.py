"""The model card: how a model was made and measured, from what the pipeline has recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain import __version__
from posttrain.lineage.explain import why
from posttrain.lineage.lineage import Lineage
from posttrain.params.params import read
from posttrain.params.stage_table import evaluated, stage_of
from posttrain.report.policies import output_digests
from posttrain.workspace import read_finite_json

LIMITS = """## Limits

- The scores are on the prompts named above and say nothing of other tasks, languages or of safety.
- Intervals are at 95 %, over prompts. Another training seed would give another score.
- posttrain records no licences: those of the base model and of the data hold for this model too."""


def card(label: str, model: str, title: str) -> str:
    """Return the text of README.md for a policy's model."""
    settings, lineage = read(), Lineage()
    stage = stage_of(settings, model)
    above = [name for name in lineage.above(stage) if name in lineage.lock]
    made = [name for name in above if not name.startswith("data_")]
    digest = output_digests().get(f"models/{model}", "none")
    made_by = f"made by posttrain {__version__} (commit {lineage.commit or 'none'}, digest {digest})"
    parts = [
        "\n".join(["---", "library_name: transformers", "tags: [posttrain]", *_bases(above, lineage.lock), "---"]),
        f"# {title}",
        f"`models/{model}` of a [DVC](https://dvc.org) pipeline, {made_by}.",
        "## Scores",
        "\n".join(_scores(label, evaluated(settings)[label].table)),
        "## How it was made",
        "From the last run to the first, each with the settings that are not defaults:",
        "\n".join(_runs(made, lineage.lock)),
        "## Data",
        "\n".join(_data([name for name in above if name.startswith("data_")], lineage, stage)),
        "## Lineage",
        f"`posttrain why {label}.score`:",
        f"```\n{why(f'{label}.score', 'words')}\n```",
        LIMITS,
    ]
    return "\n\n".join(parts) + "\n"


def _bases(stages: list[str], lock: Mapping[str, Any]) -> Iterator[str]:
    """Yield the Hub's model that everything began with, as the card's data names it."""
    hub = [value for stage in stages if stage.startswith("base_hub@") for value in _settings(lock[stage]).values()]
    named = [value["name"] for value in hub if isinstance(value, dict) and "name" in value]
    yield from (f"base_model: {json.dumps(name)}" for name in named[:1])


def _scores(label: str, table: str) -> Iterator[str]:
    """Yield a table of the figures of one evaluation."""
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


def _data(stages: list[str], lineage: Lineage, stage: str) -> Iterator[str]:
    yield from _runs(stages, lineage.lock)
    yield from (f"- file `{source}`" for source in lineage.sources(stage))


def _settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded settings of a stage's own run."""
    return {key: value for values in entry.get("params", {}).values() for key, value in values.items()}
