"""What docs/reports/performance.md says of a million rows, from the measured results."""

from __future__ import annotations

from typing import Any, Final

SECONDS, MEGABYTES = 300.0, 2000.0
"""The target for reading, checking, deduplicating, splitting and tokenizing a million rows."""
WHAT: Final = {
    "tables": "read, check, exact duplicates, split, write (`stages.data_files`)",
    "tokens": "tokenize both splits (what `stages.sft` does before it trains)",
    "tokens again": "the same from the cached files",
    "near-duplicates": "near-duplicates at 0.8 (`data.filters`), the table read and written",
    "13-grams": "13-grams against 1,000 evaluation prompts (`data.filters`), the table read and written",
    "datasets": "`datasets`: read, check, exact duplicates, split, `map` with two processes",
}
HEAD: Final = """## A million rows

Generated prompts and answers, about 100 tokens together; 1 % exact duplicates, 1 % near-duplicates (`make
bench-data`). Each step is its own process; memory includes children (shared memory once) and mapped files.
`datasets` does the same work: blank rows, duplicates by hash, a random split, tokenizing with the same template,
but no schema checks and no protection against special tokens in content.
"""


def data_lines(found: dict[str, Any]) -> list[str]:
    """Return the section from what was measured."""
    steps = found["steps"]
    table = [
        f"| {WHAT[name]} | {one['wall_s']:.0f} | {one['cpu_s']:.0f} | {one['peak_mb']:,} |"
        for name, one in steps.items()
    ]
    measured = f"{found['rows']:,} rows. Machine: {found['machine']}; {found['versions']}."
    head = [HEAD, measured, "", "| step | wall s | CPU s | peak MB |", "|---|---|---|---|"]
    return [*head, *table, "", *_verdict(steps)]


def _verdict(steps: dict[str, Any]) -> list[str]:
    missing = [name for name in WHAT if name not in steps]
    if {"tables", "tokens"} & set(missing):
        return [f"Not measured yet: {', '.join(missing)}."]
    ours = [steps["tables"], steps["tokens"]]
    wall, cpu = (sum(our[name] for our in ours) for name in ("wall_s", "cpu_s"))
    peak = max(our["peak_mb"] for our in ours)
    time, memory = ("reached" if good else "missed" for good in (wall <= SECONDS, peak <= MEGABYTES))
    text = f"Tables and tokens together: {wall:.0f} s of at most {SECONDS:.0f} ({time})"
    lines = [f"{text}, {peak:,} MB of at most {MEGABYTES:,.0f} ({memory})."]
    if peer := steps.get("datasets"):
        by_wall, by_cpu = peer["wall_s"] / wall, peer["cpu_s"] / cpu
        lines.append(f"`datasets` took {by_wall:.2f} times as long and {by_cpu:.2f} times the CPU time.")
    return lines
