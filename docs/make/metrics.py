"""docs/reference/metrics.md, from the catalogue of metrics: `python -m docs.make.metrics`."""

from __future__ import annotations

from pathlib import Path

from posttrain.pipeline.metrics.catalog import tables

PAGE = Path(__file__).resolve().parents[1] / "reference" / "metrics.md"
HEAD = """# Metrics: what each number means

`posttrain params metrics` prints this page, and `posttrain params metrics NAME` one entry. The report page shows the
entry below each curve. Under *Health* it warns if the mean of the last tenth of a run's steps is beyond the limit in
the column *warns*, or rose or fell against the first tenth. The other ranges are for your own reading. Trackers get the
same texts.

NAME stands for the name of a reward or a metric, and K for a number of samples. `_low` and `_high` after a name are the
ends of its 95 % interval. Custom tasks and losses add metrics of their own, which this page does not list.

"""


def page() -> str:
    """Return the whole page."""
    return HEAD + tables()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
