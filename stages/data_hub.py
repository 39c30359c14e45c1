"""data_hub: one run of `data.hub`, tables downloaded from the Hub."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.tables.prepare import prepare
from posttrain.pipeline.tables.sources import hub_tables
from posttrain.rewards.unread_answers import answer_notes


def main(run: str) -> None:
    """Writes data/RUN/KIND.parquet for each kind of table that the run has."""
    prepare(run, hub_tables, answer_notes)


if __name__ == "__main__":
    run_named_stage(main)
