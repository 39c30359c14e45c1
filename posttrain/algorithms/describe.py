"""The algorithm tables as text: for `python -m posttrain algorithms [NAME]`, and as docs/algorithms.md.

`python -m posttrain.algorithms.describe` renews the page; what is written by hand outside the marks stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.algorithms.distill_rows import DISTILL_ROWS, DistillRunKnobs
from posttrain.algorithms.distill_rows import READERS as DISTILL
from posttrain.algorithms.policy import POLICY_ROWS, PolicyKnobs, PolicyObjective
from posttrain.algorithms.policy_knobs import READERS as POLICY
from posttrain.algorithms.preference import FEEDBACK, PREFERENCE_ROWS, PreferenceKnobs, PreferenceObjective
from posttrain.algorithms.preference_rows import READERS as PREFERENCE
from posttrain.algorithms.reward import ProcessKnobs, RewardKnobs
from posttrain.algorithms.row import Readers, Row, flat, unread
from posttrain.algorithms.sampled_rows import READERS as SAMPLED
from posttrain.algorithms.sampled_rows import SAMPLED_ROWS, SampledBestKnobs, SampledPairKnobs
from posttrain.algorithms.supervised import DistillObjective, LikelihoodKnobs, LikelihoodObjective
from posttrain.errors import ParamsError
from posttrain.params import Params, did_you_mean, merge

PAGE = Path("docs/algorithms.md")
BEGIN = "<!-- made by python -m posttrain.algorithms.describe: do not edit below -->"
END = "<!-- end of what is made -->"

COSTS: Mapping[str, str] = {
    "ref_logp": "a frozen reference model (weights, no gradient)",
    "value": "a critic (weights, gradients, optimizer state)",
    "anchor": "one more forward pass per step",
    "recomputed_logp": "one more forward pass per batch",
    "kl_old": "the sampling policy (weights) and its distribution, in tiles",
    "teacher_kl": "a teacher model (weights) and its distribution, in tiles",
}
"""What a need costs beyond the trained policy; needs that are not here are columns of numbers."""


@dataclass(frozen=True)
class Family:
    """One table of rows and where in params.yaml its names are used."""

    title: str
    section: str
    rows: Mapping[str, Row[Any]]
    readers: Readers
    needs: Callable[[Any], frozenset[str]]
    models: Mapping[str, type[Params]]

    def model(self, row: Row[Any]) -> type[Params]:
        """What types the knobs of a row."""
        return getattr(row, "model", None) or next(iter(self.models.values()))


def _sampled_needs(knobs: Any) -> frozenset[str]:
    if isinstance(knobs, SampledPairKnobs):
        return PreferenceObjective(knobs).needs
    return LikelihoodObjective(knobs).needs


FAMILIES: tuple[Family, ...] = (
    Family(
        "Policy objectives",
        "online.runs",
        POLICY_ROWS,
        POLICY,
        lambda knobs: PolicyObjective(knobs, 1).needs,
        {"policy": PolicyKnobs},
    ),
    Family(
        "Learning from chosen samples of one's own",
        "online.runs",
        SAMPLED_ROWS,
        SAMPLED,
        _sampled_needs,
        {"pairs of own samples": SampledPairKnobs, "best of own samples": SampledBestKnobs},
    ),
    Family(
        "Preference objectives",
        "preference.runs",
        PREFERENCE_ROWS,
        PREFERENCE,
        lambda knobs: PreferenceObjective(knobs).needs,
        {"preference": PreferenceKnobs},
    ),
    Family(
        "Distillation",
        "distill.runs",
        DISTILL_ROWS,
        DISTILL,
        lambda knobs: DistillObjective(knobs).needs,
        {"distillation": DistillRunKnobs},
    ),
)

OTHERS: tuple[tuple[str, str, str, type[Params]], ...] = (
    ("likelihood", "pretraining and SFT", "-mean logp", LikelihoodKnobs),
    ("reward", "Ouyang 2022, arXiv:2203.02155", "-logsigmoid(s_c - s_r - margin), pairs or ranks", RewardKnobs),
    ("process", "Lightman 2023, arXiv:2305.20050", "cross-entropy of a score per step", ProcessKnobs),
)
"""Objectives that are no rows of a table: name, paper, formula, knobs."""


def describe(name: str | None = None) -> str:
    """All rows in a line each, or one row in full."""
    if name is None:
        return "\n".join(_overview())
    for family in FAMILIES:
        if name in family.rows:
            return "\n".join(_in_full(family, family.rows[name]))
    for other, paper, formula, model in OTHERS:
        if other == name:
            return "\n".join([f"{name}: {paper}", f"  {formula}", "knobs", *_knob_lines(model, {}, {})])
    known = sorted([*(row for family in FAMILIES for row in family.rows), *(other[0] for other in OTHERS)])
    raise ParamsError(what=f"no algorithm '{name}'", where="algorithms", fix=did_you_mean(name, known))


def page(existing: str) -> str:
    """The page with its made part renewed and the rest as it was."""
    head, mark, rest = existing.partition(BEGIN)
    _, _, tail = rest.partition(END)
    head = head if mark else "# Algorithms\n\n"
    return f"{head}{BEGIN}\n\n" + "\n".join(_markdown()) + f"\n{END}{tail or chr(10)}"


def _overview() -> Iterator[str]:
    width = max(len(name) for family in FAMILIES for name in family.rows)
    for family in FAMILIES:
        yield f"{family.title} ({family.section}.NAME.algorithm)"
        yield from (f"  {row.name:{width}}  {row.formula}" for row in family.rows.values())
    yield "Other objectives"
    yield from (f"  {name:{width}}  {formula}" for name, _, formula, _ in OTHERS)


def _in_full(family: Family, row: Row[Any]) -> Iterator[str]:
    model, needs = family.model(row), _needs(family, row)
    yield f"{row.name}: {row.paper}"
    yield f"  {row.formula}"
    yield f"set as: {family.section}.NAME.algorithm"
    yield f"needs: {', '.join(sorted(needs)) or 'nothing but the log-probs'}"
    yield f"memory: {_memory(needs)}"
    yield "knobs that it reads (* differs from the default)"
    idle = unread(merge(model.model_validate({}).model_dump(), row.knobs), family.readers)
    yield from _knob_lines(model, row.knobs, idle)


def _knob_lines(model: type[Params], over: Mapping[str, Any], idle: Mapping[str, str]) -> Iterator[str]:
    mine = dict(flat(over))
    for path, default, text in _fields(model):
        if path in idle or path.partition(".")[0] in idle:
            continue
        value = mine.get(path, default)
        mark = "*" if path in mine and value != default else " "
        yield f" {mark} {path} = {_shown(value)}  {text}"


def _fields(model: type[Params], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """(dotted path, default, description) of each leaf."""
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Params):
            yield from _fields(type(default), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", default, field.description or ""


def _needs(family: Family, row: Row[Any]) -> frozenset[str]:
    return family.needs(family.model(row).model_validate(row.knobs))


def _memory(needs: frozenset[str]) -> str:
    costs = [text for need, text in COSTS.items() if need in needs]
    return "the policy" + "".join(f" + {text}" for text in costs)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(_shown(one) for one in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _markdown() -> Iterator[str]:
    for family in FAMILIES:
        yield f"## {family.title}\n"
        yield f"`{family.section}.NAME.algorithm`\n"
        yield "| row | loss, to minimise | differs from the defaults | in memory | paper |"
        yield "|---|---|---|---|---|"
        for row in family.rows.values():
            differs = ", ".join(f"{path} {_shown(value)}" for path, value in flat(row.knobs))
            unpaired = " (unpaired)" if row.knobs.get("loss") in FEEDBACK else ""
            cells = (f"`{row.name}`{unpaired}", f"`{row.formula}`", differs, _memory(_needs(family, row)), row.paper)
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""
    yield "## Other objectives\n"
    yield "| name | loss | paper |"
    yield "|---|---|---|"
    yield from (f"| `{name}` | `{formula}` | {paper} |" for name, paper, formula, _ in OTHERS)
    models = {name: model for family in FAMILIES for name, model in family.models.items()}
    for name, model in {**models, **{name: knobs for name, _, _, knobs in OTHERS}}.items():
        yield f"\n## Knobs: {name}\n"
        yield "| knob | default | |"
        yield "|---|---|---|"
        yield from (f"| `{path}` | {_shown(default)} | {text} |" for path, default, text in _fields(model))
    yield ""


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""), encoding="utf-8")
    print(f"{PAGE} renewed")
