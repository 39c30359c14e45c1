"""preference: one named run of preference optimisation (DPO and its family) on the pairs or the feedback."""

from __future__ import annotations

from posttrain.stage import run_named_stage
from posttrain.train.preferences import train_preference


def main(run: str) -> None:
    """Writes models/preference/RUN, metrics/preference/RUN.json and plots/preference/RUN.csv."""
    train_preference(run)


if __name__ == "__main__":
    run_named_stage(main)
