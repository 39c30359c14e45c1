"""The algorithm tables as text: for `posttrain params [NAME]`, and as docs/reference/algorithms.md.

`python -m posttrain.algorithms.describe` renews the page; what is written by hand outside the marks stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.algorithms.objective import AlgorithmRow, flat
from posttrain.algorithms.policy import PolicyObjective
from posttrain.algorithms.policy_rows import POLICY_ROWS
from posttrain.algorithms.preference import PreferenceObjective
from posttrain.algorithms.preference_rows import PREFERENCE_ROWS
from posttrain.algorithms.reward import RewardConfig
from posttrain.algorithms.sampled_rows import SAMPLED_ROWS, SampledBestConfig, SampledPairConfig
from posttrain.algorithms.supervised import DISTILL_ROWS, DistillObjective, LikelihoodConfig, LikelihoodObjective
from posttrain.errors import ParamsError
from posttrain.params.choices import choices_of
from posttrain.params.params import Params, did_you_mean

PAGE = Path("docs/reference/algorithms.md")
BEGIN = "<!-- made by python -m posttrain.algorithms.describe: do not edit below -->"
END = "<!-- end of what is made -->"

COSTS: Mapping[str, str] = {
    "ref_logp": "a frozen reference model (weights, no gradient)",
    "value": "a critic (weights, gradients, optimizer state)",
    "step_start_logp": "one more forward pass per step",
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
    rows: Mapping[str, AlgorithmRow]
    needs: Callable[[Any], frozenset[str]]
    kinds: tuple[type[Params], ...]
    """The models of its rows' settings."""


def _sampled_needs(settings: Any) -> frozenset[str]:
    if isinstance(settings, SampledPairConfig):
        return PreferenceObjective(settings).needs
    return LikelihoodObjective(settings).needs


FAMILIES: tuple[Family, ...] = (
    Family(
        "Policy objectives",
        "online.runs",
        POLICY_ROWS,
        lambda settings: PolicyObjective(settings, 1).needs,
        (POLICY_ROWS["grpo"].model,),
    ),
    Family(
        "Learning from chosen samples of one's own",
        "online.runs",
        SAMPLED_ROWS,
        _sampled_needs,
        (SampledPairConfig, SampledBestConfig),
    ),
    Family(
        "Preference objectives",
        "preference.runs",
        PREFERENCE_ROWS,
        lambda settings: PreferenceObjective(settings).needs,
        (PREFERENCE_ROWS["dpo"].model,),
    ),
    Family(
        "Distillation",
        "distill.runs",
        DISTILL_ROWS,
        lambda settings: DistillObjective(settings).needs,
        (DISTILL_ROWS["gkd"].model,),
    ),
)

OTHERS: tuple[tuple[str, str, str, type[Params]], ...] = (
    ("likelihood", "pretraining and SFT", "-mean logp", LikelihoodConfig),
    ("reward", "Ouyang 2022, arXiv:2203.02155", "-logsigmoid(s_c - s_r - margin), pairs or ranks", RewardConfig),
)
"""Objectives that are not rows of a table: name, paper, formula, settings."""


def describe(name: str | None = None) -> str:
    """Return all rows in a line each, or one row in full."""
    if name is None:
        return "\n".join(_overview())
    for family in FAMILIES:
        if name in family.rows:
            return "\n".join(_in_full(family, family.rows[name]))
    for other, paper, formula, model in OTHERS:
        if other == name:
            return "\n".join(
                [f"{name}: {paper}", f"  {formula}", "settings", *_setting_lines(model.model_validate({}))]
            )
    known = sorted([*(row for family in FAMILIES for row in family.rows), *(other[0] for other in OTHERS)])
    raise ParamsError(what=f"no algorithm '{name}'", where="algorithms", fix=did_you_mean(name, known))


def page(existing: str) -> str:
    """Return the page with its made part renewed and the rest as it was."""
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


def _in_full(family: Family, row: AlgorithmRow) -> Iterator[str]:
    settings = row.settings()
    needs = family.needs(settings)
    yield f"{row.name}: {row.paper}"
    yield f"  {row.formula}"
    yield f"set as: {family.section}.NAME.algorithm"
    yield f"needs: {', '.join(sorted(needs)) or 'nothing but the log-probs'}"
    yield f"memory: {_memory(needs)}"
    yield "settings (* differs from the default)"
    yield from _setting_lines(settings)


def _setting_lines(settings: Params) -> Iterator[str]:
    """Yield each setting with its value, a choice with the options that it has."""
    model, choices = type(settings), dict(choices_of(type(settings)))
    for name, field in model.model_fields.items():
        value, default = getattr(settings, name), field.get_default(call_default_factory=True)
        if name not in choices:
            yield f" {'*' if value != default else ' '} {name} = {_shown(value)}  {field.description}"
            continue
        entry = choices[name].entry(value.type)
        yield f" {'*' if value.type != default else ' '} {name} = {value.type}  {entry.formula}"
        for option, of in _options(entry.options):
            given, usual = getattr(value, option), of.get_default()
            yield f" {'*' if given != usual else ' '}   {name}.{option} = {_shown(given)}  {of.description}"


def _options(options: type[Params]) -> Iterator[tuple[str, Any]]:
    """Return the fields of an entry's options, without its name."""
    return ((name, field) for name, field in options.model_fields.items() if name != "type")


def _memory(needs: frozenset[str]) -> str:
    costs = [text for need, text in COSTS.items() if need in needs]
    return "the policy" + "".join(f" + {text}" for text in costs)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(_shown(item) for item in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _markdown() -> Iterator[str]:
    for family in FAMILIES:
        yield f"## {family.title}\n"
        yield f"`{family.section}.NAME.algorithm`\n"
        yield "| row | loss, to minimise | differs from the defaults | paper |"
        yield "|---|---|---|---|"
        for row in family.rows.values():
            differs = ", ".join(f"{path} {_shown(value)}" for path, value in flat(row.values))
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
