"""docs/reference/algorithms.md from the algorithm tables: `python -m docs.make.algorithms` writes it.

What is written by hand outside the marks stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from posttrain.algorithms.objective import flat
from posttrain.pipeline.commands.params.describe import FAMILIES, OTHERS, shown
from posttrain.settings.choices import choices_of

PAGE = Path("docs/reference/algorithms.md")
BEGIN = "<!-- made by python -m docs.make.algorithms: do not edit below -->"
END = "<!-- end of what is made -->"


def page(existing: str) -> str:
    """Return the page with its made part renewed and the rest as it was."""
    head, mark, rest = existing.partition(BEGIN)
    _, _, tail = rest.partition(END)
    head = head if mark else "# Algorithms\n\n"
    return f"{head}{BEGIN}\n\n" + "\n".join(_markdown()) + f"\n{END}{tail or chr(10)}"


def _markdown() -> Iterator[str]:
    for family in FAMILIES:
        yield f"## {family.title}\n"
        yield f"`{family.section}.NAME.algorithm`\n"
        yield "| row | loss, to minimise | differs from the defaults | paper |"
        yield "|---|---|---|---|"
        for row in family.rows.values():
            differs = ", ".join(f"{path} {shown(value)}" for path, value in flat(row.values))
            unpaired = "" if getattr(row.settings(), "paired", True) else " (unpaired)"
            yield _line(f"`{row.name}`{unpaired}", f"`{row.formula}`", differs, row.paper)
        yield ""
    yield "## Other objectives\n"
    yield "| name | loss | paper |"
    yield "|---|---|---|"
    yield from (f"| `{name}` | `{formula}` | {paper} |" for name, paper, formula, _ in OTHERS)
    yield "\n## Types of settings\n"
    yield "`posttrain params` lists every setting, and the options of each type.\n"
    yield "| setting | type | formula |"
    yield "|---|---|---|"
    yield from _types()
    yield ""


def _types() -> Iterator[str]:
    """A line for each type that a setting may have; settings of several families with the same types come once."""
    shown: set[int] = set()
    for model in (model for family in FAMILIES for model in family.kinds):
        for name, choice in choices_of(model):
            if id(choice) not in shown:
                yield from (
                    _line(f"`{name}`", f"`{type_}`", f"`{entry.formula}`") for type_, entry in choice.table.items()
                )
            shown.add(id(choice))


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""), encoding="utf-8")
    print(f"{PAGE} renewed")
