"""sft: the base model trained on the demonstrations."""

from __future__ import annotations

from posttrain.params import load
from posttrain.stage import run_stage
from posttrain.train.supervised import SftParams, finetune


def main() -> None:
    """Writes models/sft, metrics/sft.json and plots/sft.csv."""
    finetune(load(SftParams, "sft"))


if __name__ == "__main__":
    run_stage(main)
