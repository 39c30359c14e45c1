"""data_samples: one run of `data.samples`, comparisons and feedback from a policy's own samples."""

from __future__ import annotations

from posttrain.rollout.pairs import make_pairs
from posttrain.stage import run_named_stage


def main(run: str) -> None:
    """Writes data/RUN/pairs.parquet, data/RUN/feedback.parquet and metrics/data/RUN.json."""
    make_pairs(run)


if __name__ == "__main__":
    run_named_stage(main)
