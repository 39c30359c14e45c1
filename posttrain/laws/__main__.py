"""`python -m posttrain.laws MODULE`: like `posttrain laws MODULE`, without the pipeline's packages."""

from __future__ import annotations

import argparse
import sys

from posttrain.errors import PosttrainError
from posttrain.laws.own import check_module


def main() -> int:
    """Check the surrogates and losses of a module. Exit with 1 if a law fails."""
    parser = argparse.ArgumentParser(prog="python -m posttrain.laws", description=check_module.__doc__)
    parser.add_argument("module", metavar="MODULE", help="e.g. my_losses for custom/my_losses.py")
    parser.add_argument("--all", action="store_true", help="also show the laws that hold")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    try:
        print(check_module(arguments.module, as_json=arguments.json, every=arguments.all))
    except PosttrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
