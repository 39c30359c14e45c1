"""`python -m posttrain where ROW`: every copy of a row, and the runs that have read one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from posttrain.digests import file_digest, recorded
from posttrain.stage_table import STAGES
from posttrain.user_text import cache_folder, remotes
from posttrain.where.copies import blobs, cached_runs, experiments, objects
from posttrain.where.query import Wanted, asked, texts_of
from posttrain.where.runs import affected
from posttrain.where.search import in_file, table_rows, workspace_files
from posttrain.workspace import checkpoint_path, model_path

LISTED = 5
TOKENS = Path(".dvc/tmp/tokens")
_NOTHING = "nothing here holds it"


@dataclass
class Found:
    """Where a row is. Paths are relative to the workspace."""

    ids: Sequence[str]
    texts: Sequence[str]
    files: dict[str, list[int]] = field(default_factory=dict)
    """File of the workspace -> its rows (parquet) or lines."""
    tracked: list[str] = field(default_factory=list)
    """Those of them that git tracks."""
    runs: dict[str, str] = field(default_factory=dict)
    """Stage that has to run again -> the input through which the row reached it."""
    models: list[str] = field(default_factory=list)
    """Models that were trained on it, or from a model that was."""
    checkpoints: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    """The folder of token ids of whole tables, where a table holds the row."""
    cache: dict[str, str] = field(default_factory=dict)
    """Object of DVC's cache -> the path that dvc.lock gives it, empty for an older version."""
    cached_runs: list[str] = field(default_factory=list)
    commits: dict[str, list[str]] = field(default_factory=dict)
    """Path -> commits with a version of it that holds the row."""
    experiments: list[str] = field(default_factory=list)
    remote: dict[str, str] = field(default_factory=dict)
    """Object of a remote that is a folder of this machine -> the remote."""
    not_searched: dict[str, str] = field(default_factory=dict)
    """Other remotes and their addresses."""


def where(row: str, form: Literal["words", "json"]) -> str:
    """Every copy of the row, in words or as JSON."""
    found = find(row)
    return json.dumps(asdict(found), indent=2, ensure_ascii=False) if form == "json" else "\n".join(_lines(found))


def find(row: str) -> Found:
    """Look for a row by its id, by FILE:LINE or by a piece of its text."""
    wanted = _completed(asked(row))
    found, lock, cache = Found(wanted.ids, wanted.texts), recorded(), cache_folder()
    for file in workspace_files(Path(), cache):
        if rows := in_file(file, wanted):
            found.files[str(file)] = rows
    found.tracked = _tracked(found.files)

    stored = objects(cache / "files/md5", wanted)
    names = _names(lock, cache)
    found.cache = {str(file): names.get(digest, "") for digest, file in stored.files.items()}
    digests = stored.digests | {file_digest(Path(one)) for one in found.files}
    found.cached_runs = [str(file) for file in cached_runs(cache / "runs", digests)]
    found.commits = blobs(wanted)
    found.experiments = experiments(digests)
    for name, url in remotes().items():
        if "://" not in url:
            found.remote |= {str(file): name for file in objects(Path(url, "files/md5"), wanted).files.values()}
        else:
            found.not_searched[name] = url

    found.runs = affected(lock, digests, found.files)
    made = [one for name in found.runs if (one := _model(name))]
    found.models = [str(model_path(one)) for one in made if model_path(one).exists()]
    found.checkpoints = [str(checkpoint_path(one)) for one in made if any(checkpoint_path(one).glob("*"))]
    if any(one.startswith("data/") for one in (*found.files, *found.cache.values())) and any(TOKENS.glob("*")):
        found.tokens = [str(TOKENS)]
    return found


def _completed(wanted: Wanted) -> Wanted:
    """With the ids of the table rows that hold it; for an id alone, with the texts of its row."""
    rows = table_rows(wanted, Path("data"))
    ids = dict.fromkeys([*wanted.ids, *(row["id"] for row in rows if "id" in row)])
    return replace(wanted, ids=tuple(ids), texts=wanted.texts or texts_of(rows))


def _names(lock: Mapping[str, Any], cache: Path) -> dict[str, str]:
    """Digest -> path of every file that dvc.lock names, those in folders among them."""
    from posttrain.digests import listed

    found: dict[str, str] = {}
    for out in (out for entry in lock.values() for out in entry.get("outs", ())):
        digest = str(out.get("md5", ""))
        found[digest] = out["path"]
        for one in listed(cache / "files/md5" / digest[:2] / digest[2:]) if digest.endswith(".dir") else ():
            found[one["md5"]] = f"{out['path']}/{one['relpath']}"
    return found


def _model(stage: str) -> str | None:
    group, _, name = stage.partition("@")
    return next((one.output(name) for one in STAGES if one.name == group and one.makes == "model"), None)


def _tracked(files: Mapping[str, Any]) -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=False)
    known = set(done.stdout.split("\0")) if done.returncode == 0 else set()
    return [one for one in files if one in known]


def _lines(found: Found) -> Iterator[str]:
    yield f"looked for: {'; '.join(_few([*found.ids, *(repr(text[:60]) for text in found.texts)]))}"
    told = [*_copies(found), *_runs(found)]
    yield from told or [_NOTHING]
    for name, url in found.not_searched.items():
        yield f"not searched: the remote {name} ({url})"


def _copies(found: Found) -> Iterator[str]:
    for file, places in found.files.items():
        unit = "row" if file.endswith(".parquet") else "line"
        kept = ", in git" if file in found.tracked else ""
        yield f"file: {file} {unit} {', '.join(_few(list(map(str, places))))}{kept}"
    for file in found.tokens:
        yield f"token ids: {file} holds those of whole tables"
    for file in found.checkpoints:
        yield f"checkpoints: {file}"
    for file, path in found.cache.items():
        yield f"cache: {file} ({path or 'not of the dvc.lock of now'})"
    for file in found.cached_runs:
        yield f"run cache: {file} names such an object, and holds no text"
    for file, name in found.remote.items():
        yield f"remote {name}: {file}"
    for path, commits in found.commits.items():
        yield f"git: {path} in {', '.join(_few(commits)) or 'no commit'}"
    for name in found.experiments:
        yield f"experiment: {name}"


def _runs(found: Found) -> Iterator[str]:
    for name, through in found.runs.items():
        yield f"has read it, must run again: {name} (through {through})"
    for model in found.models:
        yield f"model that has learned from it: {model}"


def _few(words: list[str]) -> list[str]:
    more = [f"and {len(words) - LISTED} more"] if len(words) > LISTED else []
    return [*words[:LISTED], *more]
