"""Faults other than kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.faults.processes import Server


def damaged(server: Server, smoke: Path, folder: Path, count: int) -> dict[str, dict[str, Any]]:
    return {}
