"""base: the model that everything starts from, trained from scratch on the corpus or taken from a folder or the Hub."""

from __future__ import annotations

from posttrain.params import load
from posttrain.stage import run_stage
from posttrain.train.supervised import BaseParams, make_base


def main() -> None:
    """Writes models/base, metrics/base.json and plots/base.csv."""
    make_base(load(BaseParams, "base"))


if __name__ == "__main__":
    run_stage(main)
