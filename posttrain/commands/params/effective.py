"""What each setting of a run is: what params.yaml gives, and the defaults of the rest."""

from __future__ import annotations

from pydantic import BaseModel

from posttrain.checks.params_schema import load_settings
from posttrain.errors import PosttrainError
from posttrain.params.formats import flattened
from posttrain.params.params import at, read
from posttrain.params.stage_table import STAGES, group_of


def named_run(name: str) -> tuple[str, str] | None:
    """Return the group and the name of a run: of online.runs.grpo, online/grpo or online@grpo; None if it is no run."""
    try:
        settings = read()
    except PosttrainError:  # without a project there are still sections and algorithms
        return None
    for stage in STAGES:
        for run in () if stage.shares_settings else group_of(settings, stage.group):
            if name in (f"{stage.group}.{run}", stage.output(run), f"{stage.name}@{run}"):
                return stage.group, run
    return None


def effective(group: str, run: str) -> str:
    """Return a line for each setting, with a star where params.yaml gives it."""
    typed: BaseModel = load_settings(group, run)
    given = flattened(at(read(), f"{group}.{run}") or {})
    lines = [f"{group}.{run}   (* given in params.yaml; the others are defaults)"]
    for key, value in flattened(typed.model_dump(mode="json")).items():
        is_given = key in given or any(key.startswith(f"{name}.") or name.startswith(f"{key}.") for name in given)
        lines.append(f"{'*' if is_given else ' '} {key}: {value}")
    return "\n".join(lines)
