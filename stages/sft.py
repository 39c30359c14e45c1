"""sft: one run of supervised fine-tuning on demonstrations."""

from __future__ import annotations

from posttrain.stage import run_named_stage
from posttrain.train.supervised import finetune


def main(run: str) -> None:
    """Writes models/sft/RUN, metrics/sft/RUN.json and plots/sft/RUN.csv."""
    finetune(run)


if __name__ == "__main__":
    run_named_stage(main)
