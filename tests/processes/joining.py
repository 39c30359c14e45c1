"""Another host of the small run: python -m tests.processes.joining WORDS, the words of tests.processes.counting."""

from __future__ import annotations

import sys

from posttrain.errors import PosttrainError
from posttrain.processes.join import join_run

if __name__ == "__main__":
    try:
        print(join_run("sft@main", [sys.executable, "-m", "tests.processes.counting", *sys.argv[1:]]))
    except PosttrainError as error:
        sys.exit(f"error: {error}")
