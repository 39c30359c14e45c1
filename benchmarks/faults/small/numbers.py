"""numbers: the table that everything starts from."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from posttrain.data.parquet import write_parquet
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.processes.stage import run_stage


def main() -> None:
    count = read_yaml("params.yaml")["numbers"]["count"]
    write_parquet(pl.DataFrame({"number": [float(n) for n in range(count)]}), Path("data/numbers.parquet"))


if __name__ == "__main__":
    run_stage(main)
