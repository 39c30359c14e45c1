"""summary: the figures of all runs side by side."""

from __future__ import annotations

from pathlib import Path

from posttrain.files import read_finite_json, write_json
from posttrain.pipeline.processes.stage import run_stage


def main() -> None:
    scores = {file.stem: read_finite_json(file)["score"] for file in sorted(Path("metrics/fit").glob("*.json"))}
    write_json(Path("report/summary.json"), scores)


if __name__ == "__main__":
    run_stage(main)
