"""docs/reports/performance.md from all measured results; each benchmark writes it when it is done.

python -m docs.make.performance
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT
from docs.make.performance_data import data_lines
from docs.make.performance_overhead import overhead_lines
from docs.make.performance_speed import speed_lines

PAGE = ROOT / "docs" / "reports" / "performance.md"


def write_page(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Write the page; what is not measured yet is named."""
    lines = speed_lines(results)
    lines += [*_section(results / "overhead.json", "The pipeline itself", overhead_lines), ""]
    lines += _section(results / "data.json", "A million rows", data_lines)
    page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"written: {page}")


def _section(file: Path, title: str, lines: Callable[[dict[str, Any]], list[str]]) -> list[str]:
    if not file.is_file():
        return [f"## {title}", "", "Not measured yet."]
    return lines(json.loads(file.read_text(encoding="utf-8")))


if __name__ == "__main__":
    write_page()
