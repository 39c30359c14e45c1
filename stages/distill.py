"""distill: one named run of learning a teacher's distribution, on given answers or on the student's own samples."""

from __future__ import annotations

from posttrain.online.run import train_distill
from posttrain.stage import run_named_stage


def main(run: str) -> None:
    """Writes models/distill/RUN, metrics/distill/RUN.json and plots/distill/RUN.csv."""
    train_distill(run)


if __name__ == "__main__":
    run_named_stage(main)
