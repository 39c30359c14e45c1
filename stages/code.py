"""code: list the code that each run in params.yaml can load, as digests of files and versions of packages."""

from __future__ import annotations

import argparse
import sys

from posttrain.errors import PosttrainError
from posttrain.pipeline.runs.code import write_code_of_runs


def main() -> int:
    """Write code/STAGE/RUN.json for every run, and code/report.json."""
    argparse.ArgumentParser(prog="python -m posttrain run code", description=__doc__).parse_args()
    try:
        write_code_of_runs()
    except PosttrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
