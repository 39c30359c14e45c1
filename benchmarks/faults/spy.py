"""Runs a stage and writes down what it was given and what it made: `python spy.py LEDGER stages.NAME [RUN]`.

It stands in dvc.yaml before each stage, and uses nothing of posttrain: what it writes is the truth by which the
readers are judged.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml


def digest(place: Path) -> str:
    """The content of a file or folder."""
    files = sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.relative_to(place) if file != place else ''}\0".encode())
        found.update(file.read_bytes() if file.is_file() else b"missing")
    return found.hexdigest()


def given(kind: str, run: str) -> dict[str, Any]:
    """The settings and the inputs of a training or an evaluation, as they are now."""
    settings = yaml.safe_load(Path("params.yaml").read_text())
    if kind == "evaluate":
        model = settings["evaluate"]["policies"][run]
        judge = digest(Path("custom/spread.py"))
        return {"settings": settings["evaluate"]["settings"], "code": judge, "model": digest(Path("models", model))}
    section = settings[kind]["runs"][run]
    return {"settings": section, "code": digest(Path("my/train.py")) if kind == "external" else ""}


def made(kind: str, run: str) -> dict[str, Any]:
    """What a training or an evaluation wrote."""
    if kind == "evaluate":
        folder = Path("results", run)
        score = json.loads((folder / "metrics.json").read_text())["score"]
        return {"score": score, "rows": digest(folder / "rollouts.parquet")}
    return {"model": digest(Path("models", kind, run))}


def main(ledger: str, module: str, *run: str) -> int:
    """Run the stage; a line in the ledger if it is a training or an evaluation that ended well."""
    kind = module.rpartition(".")[2]
    noted = kind in ("external", "sft", "evaluate")
    before = given(kind, run[0]) if noted else {}
    status = subprocess.run([sys.executable, "-m", module, *run], check=False).returncode
    if noted and status == 0 and given(kind, run[0]) == before:
        with Path(ledger).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, "run": run[0], "given": before, "made": made(kind, run[0])}) + "\n")
    return status


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
