"""Find entries of dvc.lock, outputs and checkpoints of runs that are no longer in params.yaml."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from posttrain.locks import remove_unlocked
from posttrain.pipeline.lock.digests import dvc_lock
from posttrain.pipeline.lock.lock_file import read_entries, write_entries
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import STAGES, Settings, Stage, group_of, model_runs, stage_names
from posttrain.pipeline.workspace import checkpoint_path, metrics_path, model_path, plot_path, rollouts_path

Leftovers = dict[str, list[str]]
"""Stage of a removed run -> its existing outputs and checkpoints that belong to no other run."""
_NOTHING = "nothing is left of removed runs: every entry of dvc.lock belongs to a run of params.yaml"


def leftovers(settings: Settings) -> Leftovers:
    """Return the leftovers of runs that are not in params.yaml."""
    groups = {name for stage in STAGES for name in (stage.name, stage.sampled_by) if name}
    current = set(stage_names(settings))
    in_use = {path for stage in STAGES for run in group_of(settings, stage.group) for path in _outputs(stage, run)}
    unused = {
        name: [
            out["path"]
            for out in entry.get("outs", ())
            if in_use.isdisjoint((out["path"], str(Path(out["path"]).parent))) and Path(out["path"]).exists()
        ]
        for name, entry in read_entries().items()
        if name not in current and name.partition("@")[0] in groups
    }
    for name, folder in _checkpoints(settings):
        unused.setdefault(name, []).append(str(folder))
    return unused


def describe_leftovers() -> str:
    """Return the files that `clean` would remove, one line per removed run."""
    return "\n".join(_lines(leftovers(read()), "left of")) or _NOTHING


def remove_leftovers() -> str:
    """Remove the leftovers. DVC can restore a run that is added again, until `dvc gc` removes its outputs."""
    with dvc_lock(Path()):  # a DVC that runs would otherwise lose the entry that it writes meanwhile
        return _remove_leftovers()


def _remove_leftovers() -> str:
    paths_of_run = leftovers(read())
    if not paths_of_run:
        return _NOTHING
    for path in (Path(path) for paths in paths_of_run.values() for path in paths):
        if path.is_relative_to(checkpoint_path("")):
            for folder in path.iterdir():
                remove_unlocked(folder)  # not those of a running stage
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    entries = read_entries()
    if paths_of_run.keys() & entries.keys():
        write_entries({name: entry for name, entry in entries.items() if name not in paths_of_run})
    return "\n".join(_lines(paths_of_run, "removed"))


def _lines(leftovers: Leftovers, prefix: str) -> list[str]:
    return [f"{prefix} {name}: {', '.join(paths) or 'its entry in dvc.lock'}" for name, paths in leftovers.items()]


def _checkpoints(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Yield stage and folder of the checkpoints of each model that no run makes."""
    models = model_runs(settings)
    # several stages make models under base/: the first of them is the one that trains
    stages = {stage.output(""): stage.name for stage in reversed(STAGES) if stage.makes == "model"}
    for family, stage in stages.items():
        for folder in checkpoint_path(family).glob("*"):
            if f"{family}{folder.name}" not in models and any(folder.iterdir()):
                yield f"{stage}@{folder.name}", folder


def _outputs(stage: Stage, run: str) -> list[str]:
    record = f"records/{stage.name}/{run}.json"
    if stage.makes == "tables":
        return [record, f"data/{run}", str(metrics_path(f"data/{run}"))]
    if stage.makes == "results":
        sampled = [f"records/{stage.sampled_by}/{run}.json", f"completions/{run}"] if stage.sampled_by else []
        return [record, f"results/{stage.output(run)}", *sampled]
    if stage.makes in ("ratings", "regraded"):
        name = f"ratings/{run}" if stage.makes == "ratings" else stage.output(run)
        files = [str(metrics_path(name).with_suffix(suffix)) for suffix in (".json", ".parquet")]
        return [record, *files, *([str(plot_path(name))] if stage.makes == "regraded" else [])]
    model = stage.output(run)
    made = (model_path, metrics_path, plot_path, rollouts_path)
    return [record, *(str(path(model)) for path in made)]
