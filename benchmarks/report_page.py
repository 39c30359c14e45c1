"""How fast the report's page is with many policies and long answers: `python -m benchmarks.report_page [POLICIES]`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from posttrain.pipeline.report.build import PAGE, build_report
from tests.pipeline.report import workspace
from tests.pipeline.report.browser import Page, started

SEEDS = 2
ACTIONS = {
    "key in search": "input('search', 'sample 1')",
    "key in search, found nowhere": "input('search', 'zzz')",
    "search is cleared": "input('search', '')",
    "filter by kind": "input('kind', 'wrong answer')",
    "sort by difference": "input('order', order.options[1].value)",
    "20 more": "byId('more').click()",
    "next sample": "document.querySelectorAll('.steps button')[1].click()",
    "run off": "document.querySelector('#runs-list input').click()",
    "metric": "input('metric', 'kl_k3')",
}
TIMED = """(() => {{
  const byId = (id) => document.getElementById(id), order = byId('order'), begin = performance.now();
  const said = new Event('input', {{ bubbles: true }});
  const input = (id, value) => {{ byId(id).value = value; byId(id).dispatchEvent(said); }};
  {action};
  document.body.getBoundingClientRect();
  return performance.now() - begin;
}})()"""


def main() -> None:
    """Print the size of the page and the milliseconds of each action, its layout included."""
    policies = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    with tempfile.TemporaryDirectory() as folder, started(Path(folder) / "profile") as port:
        os.chdir(workspace.many(Path(folder) / "many", settings=policies // SEEDS, seeds=SEEDS))
        build_report()
        print(f"{policies} policies: {PAGE.stat().st_size / 1e6:.1f} MB")
        with Page(port) as page:
            begin = time.monotonic()
            page.open(PAGE, width=1366, height=768)
            print(f"ready: {1000 * (time.monotonic() - begin):.0f} ms")
            for name, action in ACTIONS.items():
                print(f"{name}: {page.run(TIMED.format(action=action)):.0f} ms")


if __name__ == "__main__":
    main()
