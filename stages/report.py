"""report: compare all policies, in metrics, in a table of completions and on one page."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_stage
from posttrain.pipeline.report.build import build_report


def main() -> None:
    """Write headline.json, summary.json, samples.parquet and report.html under report/."""
    build_report()


if __name__ == "__main__":
    run_stage(main)
