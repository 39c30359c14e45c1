"""data_samples: one run of `data.samples`, tables made from a policy's own samples."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.data_samples import sample_tables


def main(run: str) -> None:
    """Writes what the run asks for of data/RUN/{pairs,feedback,chat,prompts}.parquet, and metrics/data/RUN.json."""
    sample_tables(run)


if __name__ == "__main__":
    run_named_stage(main)
