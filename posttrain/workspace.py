"""Where a stage's outputs lie in the workspace, and the plain files among them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


def model_path(name: str) -> Path:
    """Where a stage's model lies: `online@grpo` -> models/online/grpo."""
    return Path("models") / name.replace("@", "/")


def metrics_path(name: str) -> Path:
    """Where a stage's summary lies."""
    return Path("metrics") / f"{name.replace('@', '/')}.json"


def plot_path(name: str) -> Path:
    """Where a stage's metrics per step lie."""
    return Path("plots") / f"{name.replace('@', '/')}.csv"


def write_json(path: Path, data: object) -> None:
    """Plain data as a JSON file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.tmp")
    fresh.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    os.replace(fresh, path)


def rounded(values: Mapping[str, float], digits: int = 6) -> dict[str, float]:
    """The numbers to so many significant digits."""
    return {name: float(f"{value:.{digits}g}") for name, value in values.items()}
