"""external: one run of `external.runs`. Your own command trains a model, which is then checked."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.external_model import train_externally


def main(run: str) -> None:
    """Write models/external/RUN, metrics/external/RUN.json and plots/external/RUN.csv."""
    train_externally(run)


if __name__ == "__main__":
    run_named_stage(main)
