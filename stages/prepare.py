"""prepare: the corpus, the demonstrations and the prompts, from the source that params.yaml names."""

from __future__ import annotations

from posttrain.params import load
from posttrain.stage import run_stage
from posttrain.tables.prepare import prepare, summary, write_tables
from posttrain.tables.sources import PrepareParams


def main() -> None:
    """Writes data/corpus.parquet, data/chat.parquet and data/prompts.parquet."""
    tables = prepare(load(PrepareParams, "prepare"))
    write_tables(tables)
    print(summary(tables))


if __name__ == "__main__":
    run_stage(main)
