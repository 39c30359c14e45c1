"""external_rollouts: one run of `external.rollouts`. Reads another library's rollouts into a table."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.external_rollouts import read_rollouts


def main(run: str) -> None:
    """Write rollouts/external/RUN, metrics/external/RUN.json and plots/external/RUN.csv."""
    read_rollouts(run)


if __name__ == "__main__":
    run_named_stage(main)
