"""Read a run's record by its digest in dvc.lock, and find contradictions between entry and record.

git can merge one entry of dvc.lock from two runs, and `dvc commit -f` records whatever is on the disk. The run itself
writes its record: its inputs, its settings, and the digests of its outputs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from posttrain.measure.record import FOLDER, record_path
from posttrain.pipeline.lock.fsync import cache_folder, object_path
from posttrain.pipeline.lock.graph import NOT_SET, changed

MOST: Final = 4
"""The most differences in a line."""
LONGEST: Final = 60
"""Longer values of settings are cut."""

Entry = Mapping[str, Any]
Record = Mapping[str, Any]


class RunRecords:
    """The records of the runs in a workspace's dvc.lock."""

    def __init__(self, root: Path = Path()) -> None:
        self._root = root

    @cached_property
    def _cache(self) -> Path:
        return cache_folder(self._root)

    def of(self, entry: Entry) -> Record | None:
        """Return an entry's record from DVC's cache or from an intact file; None if there is neither."""
        for out in entry.get("outs", ()):
            if is_record(out["path"]) and (digest := out.get("md5")):
                places = (object_path(self._cache, digest), self._root / out["path"])
                return next((record for place in places if (record := _intact(place, digest)) is not None), None)
        return None

    def contradictions(self, name: str, entry: Entry) -> list[str]:
        """Return the contradictions between an entry and its run, as text; empty if the record agrees or is missing."""
        record = self.of(entry)
        return [] if record is None else contradictions(name, entry, record)

    def is_verified(self, entry: Entry) -> bool:
        """Tell whether the entry's record exists, or the stage has no records."""
        return not any(is_record(out["path"]) for out in entry.get("outs", ())) or self.of(entry) is not None


def is_record(path: str) -> bool:
    """Tell whether an output is the record of a run."""
    return path.startswith(f"{FOLDER.as_posix()}/")


def contradictions(name: str, entry: Entry, record: Record) -> list[str]:
    """Return the facts in an entry of dvc.lock that its record does not confirm. Records up to 0.2 list no outputs."""
    outs = {out["path"]: out.get("md5") for out in entry.get("outs", ())}
    written = record_path(str(record.get("stage", ""))).as_posix()
    if (listed := next(filter(is_record, outs), written)) != written:
        return [f"{listed} is the record of {record.get('stage')}, not of {name}"]
    facts = [*_settings(entry, record), *_inputs(entry, record), *_outputs(outs, record)]
    return [*facts[:MOST], f"{len(facts) - MOST} more"] if len(facts) > MOST else facts


def _settings(entry: Entry, record: Record) -> Iterator[str]:
    """Yield the settings that differ, with both values."""
    if "params" not in record:
        return
    for file in {**record["params"], **entry.get("params", {})}:
        ran, named = _plain(record["params"].get(file, {})), _plain(entry.get("params", {}).get(file, {}))
        for key in {**ran, **named}:
            pairs = changed(ran.get(key, NOT_SET), named.get(key, NOT_SET), NOT_SET, (key,))
            yield from (
                f"{file}: {'.'.join(path)} {_short(new)} (the run had {_short(old)})" for path, old, new in pairs
            )


def _inputs(entry: Entry, record: Record) -> Iterator[str]:
    """Yield the inputs that differ."""
    if "inputs" not in record:
        return
    named = {dep["path"]: dep.get("md5") for dep in entry.get("deps", ())}
    for path in {**record["inputs"], **named}:
        if named.get(path) != record["inputs"].get(path):
            yield f"{path} (the run read another version)"


def _outputs(outs: Mapping[str, str | None], record: Record) -> Iterator[str]:
    """Yield the outputs that differ."""
    if "outputs" not in record:
        return
    for path in {**record["outputs"], **outs}:
        if not is_record(path) and outs.get(path) != record["outputs"].get(path):
            yield f"{path} (the run wrote another version)"


def _intact(file: Path, digest: str) -> Record | None:
    """Return a record whose bytes match this digest; None if there is none."""
    try:
        content = file.read_bytes()
        record = json.loads(content) if hashlib.md5(content, usedforsecurity=False).hexdigest() == digest else None
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _plain(value: Any) -> Any:
    """Return a value in JSON's types."""
    return json.loads(json.dumps(value, default=str))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
