"""Find outputs that contain the user's own text, and the remotes to which `dvc push` would send them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posttrain.files import format_size
from posttrain.pipeline.params.stage_table import STAGES, Settings, group_of
from posttrain.pipeline.workspace import rollouts_path

_GIVEN = ("data.files", "data.hub", "data.commands")
LISTED = 6


def user_text(settings: Settings) -> list[Path]:
    """Return existing files and folders that contain the user's text: sources, tables, completions, the report."""
    runs = {run for group in _GIVEN for run in group_of(settings, group)}
    derived = {name: run for stage in STAGES if stage.derives for name, run in group_of(settings, stage.group).items()}
    for _ in derived:  # a table may be made of one that is made of the user's
        runs |= {name for name, run in derived.items() if _run_of((run or {}).get("data")) in runs}
    added = [Path(str((run or {}).get("path"))) for run in group_of(settings, "data.files").values()]
    paths = [path for path in added if any(Path(f"{place}.dvc").is_file() for place in (path, *path.parents[:-1]))]
    paths += [path for path in added if any(path.glob("*.dvc"))]
    paths += [Path("data", run) for run in sorted(runs)]
    for group in ("online", "distill"):
        for name, run in group_of(settings, f"{group}.runs").items():
            if _run_of((run or {}).get("data")) in runs and (run or {}).get("rollouts") != "none":
                paths.append(rollouts_path(f"{group}/{name}"))
    paths += [rollouts_path(f"external/{name}") for name in group_of(settings, "external.rollouts")]
    measured = group_of(settings, "evaluate.settings")
    if _run_of(measured.get("data")) in runs and measured.get("completions") != "none":
        labels = list(group_of(settings, "evaluate.policies"))
        paths += [Path("completions", label) for label in labels]
        paths += [Path("results", label, "rollouts.parquet") for label in labels]
        paths += [Path("report/report.html"), Path("report/samples.parquet")]
    for name, run in group_of(settings, "evaluate.runs").items():
        if _run_of((run or {}).get("data")) in runs and (run or {}).get("completions") != "none":
            paths += [Path("completions", name), Path("results", name, "rollouts.parquet")]
    return [path for path in dict.fromkeys(paths) if path.exists()]


def push_notes(settings: Settings) -> Iterator[str]:
    """Yield a line for each DVC remote that lists the user's text a push would send there."""
    urls = remotes()
    held = [f"{path} ({format_size(_size(path))})" for path in user_text(settings)] if urls else []
    if held:
        listed = ", ".join(held[:LISTED]) + (f" and {len(held) - LISTED} more" if len(held) > LISTED else "")
        for name, url in urls.items():
            yield (
                f"note: `dvc push` sends your own text to the remote '{name}' ({url}): {listed}, and the models that"
                " have learned from it. `push: false` at an output in dvc.yaml keeps it here"
            )


def remotes() -> dict[str, str]:
    """Return name -> address of DVC's remotes, the default first, without passwords. Local paths are absolute."""
    config = _config()
    default = config.get("core", {}).get("remote")
    addresses = {name: _public(str(remote.get("url", ""))) for name, remote in config.get("remote", {}).items()}
    return dict(sorted(addresses.items(), key=lambda pair: pair[0] != default))


def cache_folder() -> Path:
    """Return the folder of DVC's cache."""
    folder = Path(_config().get("cache", {}).get("dir") or ".dvc/cache")
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def _config() -> dict[str, dict[str, Any]]:
    from dvc.config import Config

    return dict(Config(str(Path(".dvc").resolve()))) if Path(".dvc").is_dir() else {}


def _public(url: str) -> str:
    return re.sub(r"(?<=//)[^/@]*@", "", url)


def _run_of(table: object) -> str:
    return str(table).partition("/")[0]


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)
