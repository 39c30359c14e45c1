"""The description of all settings that `posttrain params` prints, and the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.algorithms.distillation import DISTILL_ROWS, DistillObjective
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardConfig
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.errors import PosttrainError
from posttrain.online.sampled import SAMPLED_ROWS
from posttrain.online.sampled.best import SampledBestConfig
from posttrain.online.sampled.pairs import SampledPairConfig
from posttrain.pipeline.checks.meta_models import rate_of
from posttrain.pipeline.checks.params_schema import section_texts
from posttrain.pipeline.commands.params.stored import Stored, plugins
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.runs.typed import load_settings
from posttrain.settings.choices import choices_of
from posttrain.settings.params import Params
from posttrain.settings.plain import flattened

COSTS: Mapping[str, str] = {
    "ref_logp": "a frozen reference model (weights, no gradient)",
    "value": "a critic (weights, gradients, optimizer state)",
    "step_start_logp": "one more forward pass per step",
    "step_start_entropy": "one more forward pass per step",
    "recomputed_logp": "one more forward pass per batch",
    "kl_old": "the sampling policy (weights) and its distribution, in tiles",
    "teacher_kl": "a teacher model (weights) and its distribution, in tiles",
}
"""The extra cost of a need besides the trained policy. Needs that are not listed are columns of numbers."""


@dataclass(frozen=True)
class Family:
    """A table of presets, and the sections of params.yaml that can use them."""

    title: str
    section: str
    rows: Mapping[str, AlgorithmRow]
    needs: Callable[[Any], frozenset[str]]
    kinds: tuple[type[Params], ...]
    """The settings classes of its presets."""


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
"""Objectives that are not presets in a table: name, paper, formula, settings."""


def description() -> Stored:
    """Return the description of all settings, from their classes."""
    presets = {name: "\n".join(_in_full(family, row)) for family in FAMILIES for name, row in family.rows.items()}
    for name, paper, formula, model in OTHERS:
        presets[name] = "\n".join(
            [f"{name}: {paper}", f"  {formula}", "settings", *_setting_lines(model.model_validate({}))]
        )
    return {
        "plugins": plugins(),
        "sections": section_texts(),
        "overview": "\n".join(_overview()),
        "algorithms": presets,
    }


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
    """Yield each setting with its value; for a choice, also its options."""
    model, choices = type(settings), dict(choices_of(type(settings)))
    for name, field in model.model_fields.items():
        value, default = getattr(settings, name), field.get_default(call_default_factory=True)
        if name not in choices:
            yield f" {'*' if value != default else ' '} {name} = {shown(value)}  {field.description}"
            continue
        entry = choices[name].entry(value.type)
        yield f" {'*' if value.type != default else ' '} {name} = {value.type}  {entry.formula}"
        for option, of in _options(entry.options):
            given, usual = getattr(value, option), of.get_default()
            yield f" {'*' if given != usual else ' '}   {name}.{option} = {shown(given)}  {of.description}"


def _options(options: type[Params]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of an entry's options, without its name."""
    return ((name, field) for name, field in options.model_fields.items() if name != "type")


def _memory(needs: frozenset[str]) -> str:
    costs = [text for need, text in COSTS.items() if need in needs]
    return "the policy" + "".join(f" + {text}" for text in costs)


def shown(value: Any) -> str:
    """Return a value in the notation of params.yaml."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(shown(item) for item in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _default_rate(group: str, run: str) -> str:
    """Return the default learning rate of a run, and where it comes from."""
    try:
        return rate_of(group, run) or ""
    except PosttrainError:  # the model's shape is not known yet
        return "decided by the run's kind, its model's size and its adapter when it starts"


def _is_given(key: str, name: str) -> bool:
    """Tell whether a written key gives a setting. A short form gives one: `reward.correct: 1.0` gives the weight."""
    return key == name or name.startswith(f"{key}.") or key in (f"{name}.weight", f"{name}.type")


def effective(group: str, run: str) -> str:
    """Return a line for each setting, with a star if params.yaml sets it."""
    settings = load_settings(group, run).model_dump(mode="json")
    given = flattened(at(read(), f"{group}.{run}") or {})
    lines = [f"{group}.{run}   (* given in params.yaml; the others are defaults)"]
    for key, value in ((key.replace(".options.", "."), value) for key, value in flattened(settings).items()):
        is_given = any(_is_given(key, name) for name in given)
        source = f"   ({_default_rate(group, run)})" if key == "optimizer.lr" and value == "null" else ""
        lines.append(f"{'*' if is_given else ' '} {key}: {value}{source}")
    return "\n".join(lines)
