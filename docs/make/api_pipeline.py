"""docs/reference/api-pipeline.md, the names that our stages import: `python -m docs.make.api_pipeline` writes it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

from docs.make.api import entry
from docs.make.structure import undocumented

PAGE: Final = Path("docs/reference/api-pipeline.md")
HEAD: Final = """# Names that stages import

<!-- Written by `python -m docs.make.api_pipeline` from the docstrings; do not edit. -->

Read this page if you write a stage of your own in a checkout. Our stages import these names, and the public names of
[posttrain in Python](api.md). They may change in any version; the changelog has a line for each change.

A stage turns the names of `params.yaml` into values, calls the library, and writes what the call returns:

```python
def main(run: str) -> None:
    stage = training_stage("sft", run)  # settings, processes, permission to resume
    rows = sft_rows(stage)  # models and rows with their tokens
    trained = train_model(
        rows.models,
        rows.text,
        rows.examples,
        config=stage.params,
        checkpoints=stage.checkpoints(rows.models),
        recorder=stage.recorder,
        name=stage.name,
    )
    stage.save(trained, {"steps": trained.steps})
```

`dvc.yaml` has a stanza for each stage, and `posttrain/pipeline/params/stage_table.py` a line.
"""


def names() -> list[tuple[str, str]]:
    """Return module and name of everything on the page."""
    return sorted(undocumented())


def page() -> str:
    """Return the whole page."""
    found: dict[str, list[str]] = {}
    for module, name in names():
        found.setdefault(module, []).append(name)
    parts = [HEAD]
    for module, inside in found.items():
        parts.append(f"## {module}\n")
        for name in inside:
            parts += entry(f"{module}.{name}", getattr(import_module(module), name))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} written")
