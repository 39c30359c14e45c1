"""Store verdicts on disk by a hash of the question: one small file each, without text, safe for several processes."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.files import atomic_path
from posttrain.rewards.usage import Usage


class VerdictCache:
    """Verdicts by content hash. A file that cannot be read counts as missing."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._full = folder, False

    def read(self, asked: Mapping[str, Any], count: int = 1) -> tuple[float, ...] | None:
        """Return the cached verdicts on a question if all are cached."""
        known = self._known(asked, "verdict")
        values = known if isinstance(known, list) else [known]
        finite = all(isinstance(value, int | float) and math.isfinite(value) for value in values)
        return tuple(map(float, values)) if finite and len(values) == count else None

    def usage(self, asked: Mapping[str, Any]) -> Usage:
        """Return the usage of known verdicts; empty for files of an earlier version."""
        known = self._known(asked, "used")
        return Usage({name: int(known[name]) for name in known} if isinstance(known, dict) else {})

    def write(self, asked: Mapping[str, Any], verdicts: Sequence[float], used: Usage) -> None:
        """Store verdicts and their usage. A single verdict is stored as a plain number."""
        self._remember(asked, {"verdict": verdicts[0] if len(verdicts) == 1 else list(verdicts), "used": used})

    def weights(self, connection: Mapping[str, Any], served: str | None) -> str:
        """Return the digest of the served weights; the last known digest if no server answers (None)."""
        if served is None:
            return str(self._known(connection, "weights") or "")
        if served and served != self._known(connection, "weights"):
            self._remember(connection, {"weights": served})
        return served

    def _known(self, asked: Mapping[str, Any], name: str) -> Any:
        try:
            return json.loads(self._file(asked).read_bytes())[name]
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def _remember(self, asked: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        """Write a file atomically. A verdict that cannot be stored is still used."""
        file = self._file(asked)
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_path(file, shared=True) as temporary:
                temporary.write_text(json.dumps(content), encoding="utf-8")
        except OSError as error:
            if not self._full:
                print(f"verdicts are not cached in {self._folder}: {error.strerror}", file=sys.stderr)
            self._full = True

    def _file(self, asked: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return self._folder / digest[:2] / f"{digest}.json"
