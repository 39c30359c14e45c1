"""The DAG of dvc.yaml and its changed stages, read from DVC. `python -m flows.graph` prints them as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from posttrain.errors import PipelineError, PosttrainError, from_system, shortened
from posttrain.isolation.library import library_command, library_environment
from posttrain.measure.terminal import escaped
from posttrain.pipeline.lock.code_manifest import CODE
from posttrain.pipeline.lock.dvc_index import readable_index
from posttrain.pipeline.lock.repair_dvc import repair_lock
from posttrain.pipeline.lock.status import read_once, refresh_code
from posttrain.pipeline.lock.verify import repair
from posttrain.pipeline.params.parsed import import_late_parts
from posttrain.pipeline.params.stage_table import STAGES
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.settings.params import Params, check, did_you_mean

ROOT_FILE = "dvc.yaml"
MAX_PATHS = 4
"""The most paths shown per reason. For a stage that never ran, DVC lists every dependency."""
_BUSY_POLL = 2.0
Selection = Literal["stale", "all"]
Executor = Literal["local", "workers", "ray", "dask"]


class Needs(Params):
    """The requirements of a stage: the keys of dvc.yaml's `meta` that flows use."""

    gpus: int = Field(default=0, ge=0, description="GPU slots that the stage occupies while it runs")
    retries: int = Field(default=0, ge=0, description="Retries after a failure")
    retry_delay: float = Field(default=0.0, ge=0.0, description="Seconds before a retry")
    timeout: float | None = Field(
        default=None, gt=0.0, description="Timeout of one attempt in seconds; default: no limit"
    )


@dataclass(frozen=True)
class Stage:
    """One stage, by the address that `dvc repro` accepts in the root folder."""

    name: str
    upstream: tuple[str, ...]
    needs: Needs
    reasons: tuple[str, ...]
    plots: tuple[str, ...] = ()
    """Its outputs that are plots."""
    metrics: tuple[str, ...] = ()
    """Its outputs that are metrics."""


def find_root(start: Path) -> Path:
    """Return the nearest parent folder with a DVC project."""
    for folder in (start, *start.parents):
        if (folder / ".dvc").is_dir():
            return folder
    raise PipelineError(
        what="no DVC project in this folder or above", where=str(start), fix="Run in the project's root folder"
    )


def is_posttrain_pipeline(root: Path) -> bool:
    """Tell whether dvc.yaml has posttrain's stages, so that params.yaml can be checked.

    Flows run other pipelines too.
    """
    stages = read_yaml(root / ROOT_FILE).get("stages") if (root / ROOT_FILE).is_file() else None
    return isinstance(stages, dict) and not stages.keys().isdisjoint(stage.name for stage in STAGES)


def read(root: Path, targets: Sequence[str]) -> list[Stage]:
    """Return the targets with their dependencies, or all stages, upstream first.

    `root` must be the working directory.
    """
    import networkx
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo

    # DVC names stages relative to the working directory.
    if Path.cwd().resolve() != root.resolve():
        raise PipelineError(what="not the project's root folder", where=str(Path.cwd()), fix=f"Change to {root}")
    try:
        # DVC is not typed; this function turns everything that comes from it into plain data.
        with readable_index():
            repo: Any = Repo(str(root), _wait_for_lock=True)
        hidden = {CODE} if is_posttrain_pipeline(root) else set()
        with readable_index(), read_once(repo):
            if hidden:
                refresh_code(repo)
            graph: Any = repo.index.graph
            target_stages = _target_stages(repo, targets)
            selected = _closure(graph, target_stages) if targets else set(graph)
            order = networkx.lexicographical_topological_sort(graph.subgraph(selected).reverse(), key=_name)
            names = [(_name(node), node) for node in order]
            # Only the targets by name: DVC looks each name up by itself, which takes longer than the status.
            wanted = [_name(node) for node in target_stages] or None
            status = repo.status(targets=wanted, with_deps=bool(target_stages))
    except LockError:
        raise
    except DvcException as error:
        raise PipelineError(
            what=_line(error), where=ROOT_FILE, fix="Fix it; `dvc dag` and `dvc status` read it too"
        ) from error
    return [
        # A frozen stage ignores its dependencies, so that nothing upstream makes it stale.
        Stage(
            name=name,
            upstream=() if node.frozen else tuple(sorted({_name(above) for above in graph.successors(node)} - hidden)),
            needs=needs_of(name, getattr(node, "meta", None)),
            reasons=tuple(_reason(entry) for entry in status.get(name, ())),
            plots=tuple(os.path.relpath(out.fs_path) for out in node.outs if out.plot),
            metrics=tuple(os.path.relpath(out.fs_path) for out in node.outs if out.metric),
        )
        for name, node in names
        if name not in hidden  # it is up to date, and an input of the others
    ]


def read_when_free(root: Path, targets: Sequence[str]) -> list[Stage]:
    """Wait for other DVC processes, repair, check params.yaml and read the graph. Exit when the parent process ends."""
    from dvc.lock import LockError

    parent, waiting = os.getppid(), False
    while os.getppid() == parent:
        try:
            notes = _repair_and_check(root)
            from .settled import settled

            stages = (None if targets else settled(root)) or read(root, targets)
            if is_posttrain_pipeline(root) and any(stage.reasons for stage in stages):
                from posttrain.pipeline.checks.check_models import check_models  # imports torch: seconds

                notes = "\n".join(filter(None, [notes, check_models()]))
            _print_note(notes)
            return stages
        except (LockError, PipelineError) as error:
            busy = error if isinstance(error, LockError) else error.__cause__
            if not isinstance(busy, LockError):
                raise
            if not waiting:
                print(f"{_line(busy).partition(' If there are')[0]}. Waiting until it has ended", file=sys.stderr)
            waiting = True
            time.sleep(_BUSY_POLL)
    raise SystemExit(1)


def _repair_and_check(root: Path) -> str:
    """Return the notes of the check.

    dvc.lock is repaired before it; other repairs follow, as they need a valid pipeline.
    """
    _print_note(repair_lock(root))
    notes = ""
    if is_posttrain_pipeline(root):
        from posttrain.pipeline.checks.params_schema import check_params

        _, _, notes = check_params().partition("\n")
    _print_note(repair(root))
    return notes


def _print_note(lines: str) -> None:
    if lines:
        print(escaped(lines), file=sys.stderr)


class GraphReader:
    """Reads the graph in a separate process, to keep DVC's locks and threads out of the flow."""

    def __init__(self, root: Path, targets: Sequence[str] = ()) -> None:
        env, command = library_environment(), library_command(f"{__package__}.graph", *targets)
        # A session of its own: on Ctrl-C it finishes, instead of printing a traceback from DVC.
        self._process = subprocess.Popen(
            command, cwd=root, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    @cached_property
    def stages(self) -> list[Stage]:
        """Return the stages after the process has ended."""
        text, _ = self._process.communicate()
        try:
            answer = json.loads(text)
        except ValueError as error:
            code = self._process.returncode
            raise PipelineError(
                what=f"reading the graph ended with exit code {code}", where=ROOT_FILE, fix="See the lines above"
            ) from error
        if "error" in answer:
            raise PipelineError(**answer["error"])
        return [from_json(stage) for stage in answer["stages"]]


def to_json(stage: Stage) -> dict[str, Any]:
    """Return a stage as plain data."""
    return {**asdict(stage), "needs": stage.needs.model_dump()}


def from_json(data: Mapping[str, Any]) -> Stage:
    """Return the stage from the result of `to_json`."""
    texts = {key: tuple(data[key]) for key in ("upstream", "reasons", "plots", "metrics")}
    return Stage(data["name"], needs=Needs(**data["needs"]), **texts)


def stale(stages: Iterable[Stage]) -> set[str]:
    """Return the stages that DVC reports as changed, and all stages downstream."""
    names: set[str] = set()
    for stage in stages:
        if stage.reasons or names.intersection(stage.upstream):
            names.add(stage.name)
    return names


def select(stages: Sequence[Stage], selection: Selection) -> set[str]:
    """Return the stages to run: changed stages, or all stages."""
    return stale(stages) if selection == "stale" else {stage.name for stage in stages}


def _name(stage: Any) -> str:
    path, name = str(stage.path_in_repo).replace(os.sep, "/"), getattr(stage, "name", None)
    if name is None:
        return path
    return str(name) if path == ROOT_FILE else f"{path}:{name}"


def _target_stages(repo: Any, targets: Sequence[str]) -> set[Any]:
    from dvc.exceptions import DvcException

    stages: set[Any] = set()
    for target in targets:
        try:
            # Names, groups of a foreach, dvc.yaml files and outputs, as for `dvc status`.
            stages.update(stage for stage, _ in repo.stage.collect_granular(target))
        except DvcException as error:
            known = [_name(stage) for stage in repo.index.graph]
            fix = did_you_mean(target, known) or "Declare the stage in dvc.yaml"
            raise PipelineError(what=f"no stage '{target}' ({_line(error)})", where=ROOT_FILE, fix=fix) from error
    return stages


def _closure(graph: Any, stages: Collection[Any]) -> set[Any]:
    import networkx

    # DVC's edges point from a stage to its dependencies.
    return set(stages).union(*(networkx.descendants(graph, stage) for stage in stages))


def needs_of(name: str, meta: Any) -> Needs:
    """Return the typed part of `meta`. Reject other keys that look like typing errors, and ignore the rest."""
    if meta is None:
        return Needs()
    where = f"{ROOT_FILE}, meta of '{name}'"
    if not isinstance(meta, dict):
        raise PipelineError(what="not a mapping", where=where, fix="Write it as keys with values")
    known = list(Needs.model_fields)
    for key in set(map(str, meta)) - set(known):
        hint = did_you_mean(key, known)
        if hint.startswith("Did you mean"):
            raise PipelineError(what=f"unknown key '{key}'", where=where, fix=hint)
    return check(Needs, {key: meta[key] for key in known if key in meta}, where="meta", file=where)


def _reason(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    return "; ".join(f"{kind}: {_first_paths(_changed(paths))}" for kind, paths in entry.items())


def _changed(paths: Mapping[str, Any]) -> list[str]:
    """Return the changed files; for a parameter file, its changed keys."""
    return [
        name
        for path, how in paths.items()
        for name in ([f"{path}:{key}" for key in how] if isinstance(how, dict) else [str(path)])
    ]


def _first_paths(paths: Sequence[str]) -> str:
    """Return the first paths formatted as code, because Prefect's Markdown tables would show `__init__` in bold."""
    more = f" and {len(paths) - MAX_PATHS} more" if len(paths) > MAX_PATHS else ""
    return ", ".join(f"`{path}`" for path in paths[:MAX_PATHS]) + more


def _line(error: BaseException) -> str:
    return shortened(str(error), 500)


def main(targets: Sequence[str]) -> int:
    """Print the stages, or the error, as one JSON object."""
    try:
        stages = read_when_free(Path.cwd(), targets)
    except (PosttrainError, OSError) as failed:
        error = from_system(failed, "the graph") if isinstance(failed, OSError) else failed
        print(json.dumps({"error": {"what": error.what, "where": error.where, "fix": error.fix}}))
        return 1
    print(json.dumps({"stages": [to_json(stage) for stage in stages]}))
    return 0


if __name__ == "__main__":
    import_late_parts()
    sys.exit(main(sys.argv[1:]))
