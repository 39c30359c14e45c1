"""code: what each run of params.yaml can load, as digests of files and versions of packages (code_manifest.py)."""

from __future__ import annotations

import argparse
import sys

from posttrain.errors import PosttrainError
from posttrain.pipeline.lock.check_inputs import check_input_names
from posttrain.pipeline.lock.code_manifest import write_code
from posttrain.pipeline.lock.plugin_check import lacks_plugins


def main() -> int:
    """Writes code/STAGE/RUN.json for every run, and code/report.json."""
    argparse.ArgumentParser(prog="python -m posttrain run code", description=__doc__).parse_args()
    try:
        check_input_names()
        if lacks_plugins():
            from posttrain.pipeline.runs.missing_plugins import refuse_missing_plugins  # it imports every kind of run

            refuse_missing_plugins()
        write_code()
    except PosttrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
