"""How far the weights and metrics of several processes are from those of one.

python -m tests.pipeline.processes.differences     the table of docs/reports/processes-table.md
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from safetensors.torch import load_file

from tests.pipeline.processes.launched import launch

PAGE = Path("docs/reports/processes-table.md")
COLUMNS = ((2, "float64"), (4, "float64"), (2, "float32"), (4, "float32"))


def largest(one: Path, several: Path) -> dict[str, tuple[float, float]]:
    """Objective -> the largest difference of a weight, and of a metric (relative to it where it is above 1)."""
    weights, others = (load_file(str(folder / "weights.safetensors")) for folder in (one, several))
    metrics, other_metrics = (json.loads((folder / "metrics.json").read_text()) for folder in (one, several))
    assert weights.keys() == others.keys() and metrics.keys() == other_metrics.keys()
    found: dict[str, tuple[float, float]] = {}
    for name, steps in metrics.items():
        of_weights = max(
            float((part.double() - others[key].double()).abs().max())
            for key, part in weights.items()
            if key.startswith(f"{name}/")
        )
        found[name] = of_weights, max(map(_difference, steps, other_metrics[name]))
    return found


def _difference(step: dict[str, float], other: dict[str, float]) -> float:
    assert step.keys() == other.keys()
    return max(abs(step[key] - other[key]) / max(1.0, abs(step[key])) for key in step)


def main() -> None:
    """Write the table."""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        folders = {}
        for size, dtype in [*COLUMNS, (1, "float64"), (1, "float32")]:
            folders[size, dtype] = Path(place) / f"{size}-{dtype}"
            launch(
                "tests.pipeline.processes.every_objective",
                size,
                folders[size, dtype],
                str(folders[size, dtype]),
                dtype,
                "0",
            )
        for column in COLUMNS:
            found[column] = largest(folders[1, column[1]], folders[column])
    lines = [
        "# Every algorithm at one, two and four processes",
        "",
        "Three optimizer steps of a small model by one process and by several that share it (gloo, CPU), uneven",
        "micro-batches. Each cell: the largest difference of a weight, and of a metric (relative above 1). Written by",
        "`python -m tests.pipeline.processes.differences`; the test is",
        "`tests/pipeline/processes/test_every_objective.py`.",
        "",
        "| objective | " + " | ".join(f"{size} processes, {dtype}" for size, dtype in COLUMNS) + " |",
        "| --- |" + " --- |" * len(COLUMNS),
    ]
    for name in found[COLUMNS[0]]:
        lines.append(f"| {name} | " + " | ".join("{:.0e}, {:.0e}".format(*found[column][name]) for column in COLUMNS))
        lines[-1] += " |"
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
