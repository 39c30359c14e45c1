"""The `artifacts` of dvc.yaml: the models that `dvc artifacts get` finds by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from posttrain.errors import PipelineError
from posttrain.files import write_text
from posttrain.pipeline.lock.graph import DVC_YAML
from posttrain.pipeline.params.yaml_files import read_yaml

_HEAD = re.compile(r"artifacts[ \t]*:")


def split_artifacts(text: str) -> tuple[str, str]:
    """Return a dvc.yaml without its artifacts, and the lines of its artifacts."""
    lines = text.splitlines(keepends=True)
    start = next((number for number, line in enumerate(lines) if _HEAD.match(line)), None)
    if start is None:
        return text, ""
    after = (number for number in range(start + 1, len(lines)) if lines[number][0] not in " \t\n\r#")
    end = next(after, len(lines))
    rest = "".join(lines[:start]).rstrip("\n") + "\n" + "".join(lines[end:])
    return rest, "".join(lines[start:end])


def joined(graph: str, artifacts: str) -> str:
    """Return a dvc.yaml with these artifacts at its end."""
    return f"{graph}\n{artifacts}" if artifacts else graph


def require_artifact(name: str, path: str) -> None:
    """Add a model to the artifacts of dvc.yaml if it is missing, and raise then, because it must be committed."""
    entry = _entries(read_yaml(DVC_YAML)).get(name)
    if isinstance(entry, dict) and entry.get("path") == path:
        return
    where = f"{DVC_YAML}: artifacts.{name}"
    if entry is not None:
        fix = f"Set path: {path} there, commit {DVC_YAML}, and run this again"
        raise PipelineError(
            what=f"it is not {path}, so `dvc artifacts get` would get another model", where=where, fix=fix
        )
    file = Path(DVC_YAML)
    text = file.read_text(encoding="utf-8")
    new = with_artifact(text, name, path)
    if new is None:
        fix = f"Add {name}: {{path: {path}, type: model}}. Then commit {DVC_YAML}, and run this again"
        raise PipelineError(what="this entry is missing, and DVC needs it to find the model", where=where, fix=fix)
    write_text(file, new)
    fix = f"Run `git commit -m 'artifact {name}' {DVC_YAML}`, and run this again"
    raise PipelineError(what="posttrain added this entry, which DVC needs to find the model", where=where, fix=fix)


def with_artifact(text: str, name: str, path: str) -> str | None:
    """Return a dvc.yaml with one more artifact and unchanged other lines; None if its layout is not supported."""
    _, block = split_artifacts(text)
    indent = next((match[1] for match in [re.search(r"^( +)[^ #\n]", block, re.MULTILINE)] if match), "  ")
    label = name if _loaded(name) == name else f'"{name}"'
    lines = f"{indent}{label}:\n{2 * indent}path: {path}\n{2 * indent}type: model\n"
    lines += f"{2 * indent}desc: the evaluated policy {name}\n"
    if not block:
        new = joined(text.rstrip("\n") + "\n", f"artifacts:\n{lines}")
    else:
        head = block.splitlines(keepends=True)[0]
        new = text.replace(block, head + lines + block.removeprefix(head))
    before, after = _loaded(text), _loaded(new)
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return None
    added = _entries(after).pop(name, None)
    same = _entries(after) == _entries(before) and before | {"artifacts": None} == after | {"artifacts": None}
    return new if same and isinstance(added, dict) and added.get("path") == path else None


def _entries(data: Any) -> dict[str, Any]:
    entries = data.get("artifacts")
    return entries if isinstance(entries, dict) else {}


def _loaded(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        return None
