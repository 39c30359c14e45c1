"""What runs that params.yaml no longer has left behind: entries of dvc.lock and their outputs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from posttrain.params import read, read_yaml
from posttrain.stage_table import STAGES, Settings, group_of
from posttrain.workspace import metrics_path, model_path, plot_path, write_text

LOCK = Path("dvc.lock")


def leftovers(settings: Settings) -> dict[str, list[str]]:
    """Stage of dvc.lock that params.yaml has no run for -> its outputs that are still there and nobody else's."""
    if not LOCK.is_file():
        return {}
    recorded: Mapping[str, Any] = read_yaml(LOCK).get("stages") or {}
    groups = {stage.name for stage in STAGES}
    alive = {f"{stage.name}@{run}": stage for stage in STAGES for run in group_of(settings, stage.group)}
    kept = {path for name, stage in alive.items() for path in _outputs(stage, name.partition("@")[2])}
    return {
        name: [out["path"] for out in entry.get("outs", ()) if out["path"] not in kept and Path(out["path"]).exists()]
        for name, entry in recorded.items()
        if name not in alive and name.partition("@")[0] in groups
    }


def remove_leftovers() -> str:
    """Remove the leftovers; DVC's cache keeps them until `dvc gc`, so that a run that comes back is restored."""
    found = leftovers(read())
    if not found:
        return "no leftovers: every entry of dvc.lock belongs to a run of params.yaml"
    for paths in found.values():
        for path in map(Path, paths):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    _drop_entries(set(found))
    return "\n".join(f"removed {name}: {', '.join(paths) or 'its entry in dvc.lock'}" for name, paths in found.items())


def _drop_entries(names: set[str]) -> None:
    from ruamel.yaml import YAML

    yaml = YAML()
    data = yaml.load(LOCK.read_text(encoding="utf-8"))
    for name in names:
        del data["stages"][name]
    text = StringIO()
    yaml.dump(data, text)
    write_text(LOCK, text.getvalue())


def _outputs(stage: Any, run: str) -> list[str]:
    record = f"records/{stage.name}/{run}.json"
    if stage.makes == "tables":
        return [record, f"data/{run}", str(metrics_path(f"data/{run}"))]
    if stage.makes == "results":
        return [record, f"results/{run}/rollouts.parquet", f"results/{run}/metrics.json"]
    model = stage.output(run)
    return [record, str(model_path(model)), str(metrics_path(model)), str(plot_path(model))]
