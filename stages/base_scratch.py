"""base_scratch: one run of `base.scratch`, a small model trained from scratch on a corpus."""

from __future__ import annotations

from posttrain.stage import run_named_stage
from posttrain.train.supervised import train_base


def main(run: str) -> None:
    """Writes models/base/RUN, metrics/base/RUN.json and plots/base/RUN.csv."""
    train_base(run)


if __name__ == "__main__":
    run_named_stage(main)
