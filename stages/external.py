"""external: one run of `external.runs`, a model that a command of yours trains, checked before it counts."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.external_model import train_externally


def main(run: str) -> None:
    """Writes models/external/RUN, metrics/external/RUN.json and plots/external/RUN.csv."""
    train_externally(run)


if __name__ == "__main__":
    run_named_stage(main)
