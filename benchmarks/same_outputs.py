"""Do two workspaces hold the same bytes? Every output that dvc.lock of the second records, besides code/ and records/.

    python -m benchmarks.same_outputs OLD NEW [--stage sft@main ...]

The files themselves are read, not only the digests in dvc.lock. Records hold dates and code/ holds paths: both differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from posttrain.pipeline.lock.digests import read_lock

LEFT_OUT: Final = ("code/", "records/")


def outputs(workspace: Path, stages: list[str]) -> Iterator[str]:
    """The outputs that a workspace records, of some stages or of all."""
    for name, entry in read_lock(workspace).items():
        if not stages or name in stages:
            yield from (out["path"] for out in entry.get("outs", ()) if not out["path"].startswith(LEFT_OUT))


def digest(place: Path) -> str:
    """The digest of a file, or of a folder's files and their names; 'missing' if there is none."""
    if not place.exists():
        return "missing"
    whole = hashlib.sha256()
    for file in [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file()):
        whole.update(f"{file.relative_to(place)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Dotted key -> value, of nested mappings."""
    if not isinstance(value, dict):
        return {name: value}
    return {key: one for word, part in value.items() for key, one in flat(part, f"{name}.{word}".strip(".")).items()}


def changes(old: Path, new: Path) -> str:
    """What differs between two JSON files by key, or only that they differ."""
    if new.suffix != ".json" or not old.is_file():
        return "differs"
    before, after = (flat(json.loads(file.read_text(encoding="utf-8"))) for file in (old, new))
    changed = [key for key in before.keys() & after.keys() if before[key] != after[key]]
    said = {"new": after.keys() - before.keys(), "gone": before.keys() - after.keys(), "changed": changed}
    return "; ".join(f"{word}: {', '.join(sorted(keys))}" for word, keys in said.items() if keys) or "order or spaces"


def main() -> int:
    """0 when all are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--stage", nargs="*", default=[], help="these stages alone")
    given = parser.parse_args()
    paths = sorted(set(outputs(given.new, given.stage)))
    differ = [path for path in paths if digest(given.old / path) != digest(given.new / path)]
    for path in differ:
        print(f"{path}: {changes(given.old / path, given.new / path)}")
    print(f"{len(paths) - len(differ)} of {len(paths)} outputs are equal, byte for byte")
    return 1 if differ or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
