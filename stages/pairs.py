"""pairs: comparisons and feedback, from samples of the SFT policy or from given data."""

from __future__ import annotations

from posttrain.params import load
from posttrain.rollout.pairs import PairsParams, make_pairs
from posttrain.stage import run_stage


def main() -> None:
    """Writes data/pairs.parquet, data/feedback.parquet and metrics/pairs.json."""
    make_pairs(load(PairsParams, "pairs"))


if __name__ == "__main__":
    run_stage(main)
