"""Distributions for tests: a folder with a module and the metadata that installers write, put on sys.path."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from posttrain.settings import plugins


def install(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    name: str,
    points: Mapping[str, str],
    text: str,
    version: str = "1.0",
) -> Path:
    """Write a distribution with one module, put it on sys.path, and return the folder.

    `points`: `GROUP NAME` -> the object in the module, e.g. `{"tasks shout": "SHOUT"}`.
    """
    module = name.replace("-", "_")
    site = folder / f"site-{name}"
    about = site / f"{module}-{version}.dist-info"
    about.mkdir(parents=True)
    (site / f"{module}.py").write_text(text, encoding="utf-8")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    by_group: dict[str, list[str]] = {}
    for point, variable in points.items():
        group, registered = point.split()
        by_group.setdefault(group, []).append(f"{registered} = {module}:{variable}")
    blocks = [f"[posttrain.{group}]\n" + "\n".join(lines) for group, lines in by_group.items()]
    (about / "entry_points.txt").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    listed = [f"{module}.py,,", *(f"{about.name}/{file},," for file in ("METADATA", "entry_points.txt", "RECORD"))]
    (about / "RECORD").write_text("\n".join(listed) + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(plugins, "_all", cache(plugins._all.__wrapped__))  # what is installed is read again
    return site
