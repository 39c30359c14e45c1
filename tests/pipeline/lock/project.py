"""A small DVC project that is written by hand, as if DVC had just run its three stages: `raw`, `mine@main`, `last`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from posttrain.measure.record import PYTHON

DVC_YAML = """
stages:
  raw:
    cmd: make raw
    outs: [data/raw.txt]
  mine:
    foreach: ${mine.runs}
    do:
      cmd: make mine ${key}
      deps: [data/raw.txt, 'code/mine/${key}.json']
      params: ['mine.runs.${key}']
      outs: ['models/mine/${key}', 'records/mine/${key}.json']
  last:
    cmd: make last
    deps: [models/mine]
    outs: [{last.txt: {cache: false}}]
"""
CODE = {"files": {}, "packages": {"python": PYTHON}}
FILES = {
    "dvc.yaml": DVC_YAML,
    "params.yaml": "mine: {runs: {main: {lr: 0.1, name: a}}}\n",
    ".dvc/config": "[core]\n    no_scm = true\n    analytics = false\n",
    "data/raw.txt": "raw",
    "code/mine/main.json": json.dumps(CODE, indent=2) + "\n",
    "models/mine/main/a.txt": "weights",
    "last.txt": "last",
}
RECORD = Path("records/mine/main.json")


def md5(content: bytes | str) -> str:
    return hashlib.md5(content.encode() if isinstance(content, str) else content, usedforsecurity=False).hexdigest()


def make(root: Path) -> dict[str, dict[str, Any]]:
    """Write the project; every output is in DVC's cache. Return the stages of its dvc.lock."""
    for name, text in FILES.items():
        put(root / name, text)
    (root / ".dvc/tmp").mkdir()
    raw, model, weights = md5("raw"), folder({"a.txt": "weights"}), md5("weights")
    code, above = md5(FILES["code/mine/main.json"]), folder({"main/a.txt": "weights"})
    record = {
        "stage": "mine@main", "code": CODE, "inputs": {"data/raw.txt": raw, "code/mine/main.json": code},
        "params": {"params.yaml": {"mine.runs.main": {"lr": 0.1, "name": "a"}}}, "outputs": {"models/mine/main": model},
    }  # fmt: skip
    put(root / RECORD, json.dumps(record, indent=2) + "\n")
    recorded = md5((root / RECORD).read_bytes())
    stages = {
        "raw": {"cmd": "make raw", "outs": [out("data/raw.txt", raw, 3)]},
        "mine@main": {
            "cmd": "make mine main",
            "deps": [out("code/mine/main.json", code, 9), out("data/raw.txt", raw, 3)],
            "params": {"params.yaml": {"mine.runs.main": {"lr": 0.1, "name": "a"}}},
            "outs": [out("models/mine/main", model, 7, 1), out(RECORD.as_posix(), recorded, 9)],
        },
        "last": {
            "cmd": "make last",
            "deps": [out("models/mine", above, 7, 1)],
            "outs": [out("last.txt", md5("last"), 4)],
        },
    }
    put_lock(root, stages)
    listed = json.dumps([{"md5": weights, "relpath": "a.txt"}]).encode()
    for digest, content in {
        raw: b"raw", weights: b"weights", recorded: (root / RECORD).read_bytes(), model: listed,
    }.items():  # fmt: skip
        cache(root, digest).parent.mkdir(parents=True, exist_ok=True)
        cache(root, digest).write_bytes(content)
    return stages


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def put_lock(root: Path, stages: dict[str, Any]) -> None:
    put(root / "dvc.lock", json.dumps({"schema": "2.0", "stages": stages}))


def cache(root: Path, digest: str) -> Path:
    """The object with this digest in DVC's cache."""
    return root / ".dvc/cache/files/md5" / digest[:2] / digest[2:]


def folder(files: dict[str, str]) -> str:
    """The digest of a folder with these files."""
    listed = [{"md5": md5(text), "relpath": path} for path, text in files.items()]
    return f"{md5(json.dumps(listed))}.dir"


def out(path: str, digest: str, size: int, files: int = 0) -> dict[str, Any]:
    """A dependency or an output as dvc.lock has it."""
    return {"path": path, "hash": "md5", "md5": digest, "size": size, **({"nfiles": files} if files else {})}
