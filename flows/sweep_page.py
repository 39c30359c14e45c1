"""The page of a sweep: its settings, best first, and the importance of each varied key."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from posttrain.isolation.library import library_command, library_environment
from posttrain.pipeline.compare.experiments import TIMES

LONG = 600
"""The seconds after which a page is given up."""


def write_page(name: str, policies: Sequence[str]) -> str:
    """Write .sweeps/NAME.html and return a line for the reader. If this fails, the line is the error.

    A process of its own writes it, because polars takes Ctrl-C away from a flow.
    """
    page = TIMES / f"{name}.html"
    words = ["compare", name, "--to", page.as_posix(), *(word for one in policies[-1:] for word in ("--policy", one))]
    page.parent.mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            library_command("posttrain", *words),
            env=library_environment(),
            check=False,
            capture_output=True,
            text=True,
            timeout=LONG,
        )
    except subprocess.TimeoutExpired:
        return f"No page of it: `posttrain compare` took more than {LONG} s"
    if done.returncode or not Path(page).is_file():
        why = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no reason given")
        return f"No page of it: {why}"
    return f"Its settings, and which of them mattered: {page}"
