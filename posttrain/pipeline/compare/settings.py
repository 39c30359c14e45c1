"""Group trainings into settings (the same parameters, other seeds), and name each setting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from posttrain.evaluate.intervals import SEED, interval
from posttrain.pipeline.compare.belonging import unlike
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy, scores
from posttrain.pipeline.compare.factors import DEFAULT, Factor, Flat, differing, factors, is_seed
from posttrain.pipeline.compare.paired import are_shares, with_scores
from posttrain.pipeline.compare.statistics import ALPHA, difference

LONGEST = 70
_SEEDS = re.compile(r"([-_.](s|seed)?[-_.]?)?\d*$")
"""The end of the common prefix of several seeds' names, which is removed."""

HOW = frozenset(
    {"policy", "data", "split", "prompts", "samples", "kl_samples", "device", "engine", "engine_args", "engine_servers"}
    | {"batch", "completions", "max_failed", "on_failures", "metrics", "must_not_fall"}
)
"""Settings of an evaluation that do not change its score's meaning. The prompts are compared by their ids."""


@dataclass(frozen=True)
class Setting:
    """One setting with its trainings."""

    label: str
    trained: list[EvaluatedPolicy]
    """The trainings whose scores or curves differ from those before."""
    names: tuple[str, ...] = ()
    """The names of all its trainings."""
    varied: Mapping[str, str] = field(default_factory=dict)
    """Key -> value of the parameters that differ between settings; empty for runs of one workspace."""


def meaning(policy: EvaluatedPolicy) -> Flat:
    """Return the evaluation settings that change the meaning of a policy's score: all except the keys in HOW."""
    settings = meaning_of(policy.policy, policy.settings)
    metric_keys = (f"reward.{policy.metric}", f"reward.{policy.metric}.weight")
    keys = (key for key in settings if not key.startswith("reward.") or key.startswith(f"{metric_keys[0]}."))
    return {key: settings[key] for key in keys if key not in metric_keys} if policy.metric else settings


def meaning_of(label: str, settings: Flat) -> Flat:
    """Return these settings for a folder under results/. `settings`: all of params.yaml."""
    group, _, name = label.rpartition("/")
    shared = f"evaluate.policies.{label}" in settings
    head = "evaluate.settings." if shared else f"evaluate.{group or 'runs'}.{name}."
    settings_there = {key.removeprefix(head): value for key, value in settings.items() if key.startswith(head)}
    only_seen = tuple(
        f"{key.removesuffix('.weight')}."
        for key, value in settings_there.items()
        if re.fullmatch(r"reward\.[^.]+(\.weight)?", key) and value in ("0", "0.0")
    )
    kl_alone = not settings_there.get("data", "").endswith("/pairs")
    return {
        key: value
        for key, value in settings_there.items()
        if key.partition(".")[0] not in HOW
        and not f"{key}.".startswith(only_seen)
        and (key != "reference" or not kl_alone)
    }


def grouped(policies: Sequence[EvaluatedPolicy]) -> tuple[list[Setting], list[str]]:
    """Return the settings with their trainings, and notes for the reader.

    Results that are not current are not pooled with results that are.
    """
    alike: dict[tuple[str | bool | None, ...], list[EvaluatedPolicy]] = {}
    compared = flat_settings(policies)
    keys = differing(compared)
    varying = [] if len({policy.policy for policy in policies}) > 1 else factors(compared)
    for evaluated, flat in zip(policies, compared, strict=True):
        alike.setdefault((*(flat.get(key) for key in keys), evaluated.is_current), []).append(evaluated)
    apart = [trained for (*key, current), trained in alike.items() if not current and (*key, True) in alike]
    notes: list[str] = []
    settings: list[Setting] = []
    for trained, other in _by_code(alike.values()):
        outdated = " (not current)" if any(trained[0] in one for one in apart) else ""
        label = f"{_label(varying, trained)}{other}{outdated}"
        unlike_ones = distinct(trained)
        if len(unlike_ones) < len(trained):
            notes.append(
                f"{label}: {len(trained)} trainings, of which {_are(len(unlike_ones))} distinct. Equal ones count once"
            )
        names = tuple(policy.name for policy in trained)
        settings.append(Setting(label, unlike_ones, names, _varied(varying, trained[0])))
    return _shortened(settings), notes


def _are(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"


def flat_settings(policies: Sequence[EvaluatedPolicy]) -> list[Flat]:
    """Return the compared settings of each training. Trainings with different values are different settings."""
    return [_compared(policy, policies) for policy in policies]


def _by_code(alike: Iterable[list[EvaluatedPolicy]]) -> Iterator[tuple[list[EvaluatedPolicy], str]]:
    """Yield the trainings per setting and code version, with a label suffix if there are several versions."""
    for trained in alike:
        parts = by_code(trained)
        yield from ((part, f" (code of {part[0].name})" * (len(parts) > 1)) for part in parts)


def by_code(trained: Sequence[EvaluatedPolicy]) -> list[list[EvaluatedPolicy]]:
    """Return the trainings in groups that ran the same code."""
    parts: list[list[EvaluatedPolicy]] = []
    for policy in trained:
        like = next((part for part in parts if not unlike([part[0].code, policy.code])), None)
        if like is None:
            parts.append([policy])
        else:
            like.append(policy)
    return parts


def mean_score(setting: Setting) -> tuple[float, float, float]:
    """Return a setting's mean and its interval: over prompts, and for several trainings over seeds too."""
    (scored,) = with_scores(scores(setting.trained))
    if len(scored) == 1:
        seed = int(setting.trained[0].settings.get("evaluate.settings.seed", SEED))
        return float(scored.mean()), *interval(scored[0], seed, shares=are_shares([scored]))
    least, most = (0.0, 1.0) if are_shares([scored]) else (-np.inf, np.inf)
    spread = difference(scored, np.zeros_like(scored))
    half = spread.half(ALPHA)
    if half == 0:  # all prompts and seeds have the same score, so it says nothing of other prompts
        return spread.mean, *interval(scored.mean(axis=0), SEED, shares=are_shares([scored]))
    return spread.mean, max(least, spread.mean - half), min(most, spread.mean + half)


def _shortened(settings: Sequence[Setting]) -> list[Setting]:
    """Name several seeds by their common prefix (`grpo` for grpo_s1 and grpo_s2), unless it is taken."""
    short = [_SEEDS.sub("", _shared(setting.names)) for setting in settings]
    shorter = []
    for place, (setting, name) in enumerate(zip(settings, short, strict=True)):
        others = [*settings[:place], *settings[place + 1 :]]
        taken = {text for other in others for text in (other.label, *other.names)} | {
            *short[:place],
            *short[place + 1 :],
        }
        by_names = len(setting.names) > 1 and setting.label == " + ".join(setting.names)
        by_names = by_names and all(_SEEDS.sub("", one) == name for one in setting.names)  # nothing but seeds differs
        shorter.append(replace(setting, label=name) if by_names and name and name not in taken else setting)
    return shorter


def _shared(names: Sequence[str]) -> str:
    """Return the common prefix of all names."""
    first, last = min(names), max(names)
    return next((first[:size] for size in range(len(first), 0, -1) if last.startswith(first[:size])), "")


def _compared(policy: EvaluatedPolicy, policies: Sequence[EvaluatedPolicy]) -> Flat:
    """Return all of params.yaml if one policy of several experiments is compared; else the run's own settings."""
    if len({other.policy for other in policies}) == 1:
        return policy.settings
    # The name of a run is not a setting: two runs that differ only in their seeds are one setting.
    run_settings = {key: _without_seeds(value, policy.settings) for key, value in policy.run_settings.items()}
    return {"policy": policy.section.rpartition(".")[0], **run_settings, **_measuring(policy)}


def _without_seeds(value: str, settings: Flat) -> str:
    """Return a value. A run's model or table is replaced by its settings, so that other seeds look alike."""
    head = _section_behind(value, settings)
    if head is None:
        return value
    made = {key.removeprefix(head): of for key, of in settings.items() if key.startswith(head) and not is_seed(key)}
    first, _, second = value.partition("/")
    kind = second if head.startswith("data.") else first
    return f"{kind} of { ({key: _without_seeds(of, settings) for key, of in sorted(made.items())}) }"


def _section_behind(value: str, settings: Flat) -> str | None:
    """Return the section, with a last '.', of the run whose model or table a value names; None if it names none."""
    first, _, second = map(re.escape, value.partition("/"))
    pattern = re.compile(rf"({first}\.\w+\.{second}|data\.\w+\.{first})\.") if second else None
    return next((match[0] for key in settings if pattern and (match := pattern.match(key))), None)


def seed_of(policy: EvaluatedPolicy, policies: Sequence[EvaluatedPolicy]) -> str:
    """Return a training's seed values that differ between the trainings, as text such as `2` or `2/3`."""
    if len({other.policy for other in policies}) == 1:
        keys = dict.fromkeys(key for other in policies for key in other.settings if is_seed(key))
        varying = [key for key in keys if len({other.settings.get(key) for other in policies}) > 1]
        trained = [key for key in varying if not key.startswith("evaluate.")]
        values = [policy.settings.get(key, DEFAULT) for key in trained]
    else:
        values = []
    if not values:  # the runs of one file, or experiments that all have the same seeds
        head, flat = f"{policy.section}.", policy.settings
        values = [flat.get(f"{head}seed", flat.get("seed", DEFAULT)), *_seeds_above(head, flat)]
    return "/".join(dict.fromkeys(values)) or DEFAULT


def _seeds_above(section: str, settings: Flat) -> list[str]:
    """Return the seeds that the runs above a run set, nearest first."""
    run_settings = {key: value for key, value in settings.items() if key.startswith(section)}
    above = dict.fromkeys(head for value in run_settings.values() if (head := _section_behind(value, settings)))
    return [
        seed
        for head in above
        for seed in (*(settings[key] for key in (f"{head}seed",) if key in settings), *_seeds_above(head, settings))
    ]


def _measuring(policy: EvaluatedPolicy) -> Flat:
    """Return how a run of `evaluate.runs` or `evaluate.lm_eval` measures. Another way is another setting."""
    group, _, name = policy.policy.rpartition("/")
    head = f"evaluate.{group or 'runs'}.{name}."
    run_settings = {key.removeprefix(head): value for key, value in policy.settings.items() if key.startswith(head)}
    return {f"evaluate.{key}": value for key, value in run_settings.items() if key != "policy"}


def _label(varying: Sequence[Factor], trained: Sequence[EvaluatedPolicy]) -> str:
    """Return what differs from the other settings (`cispo, kl none`); for runs of one workspace, their names."""
    names = " + ".join(policy.name for policy in trained)
    text = ", ".join(one.label(one.level(trained[0].settings)) for one in varying)
    return text if text and len(text) <= max(LONGEST, len(names)) else names


def _varied(varying: Sequence[Factor], policy: EvaluatedPolicy) -> dict[str, str]:
    """Return what differs from the other settings, with values; empty for runs of one workspace."""
    head = policy.section + "."
    return {one.path.removeprefix(head): one.text(one.level(policy.settings)) for one in varying}


def distinct(trained: Sequence[EvaluatedPolicy]) -> list[EvaluatedPolicy]:
    """Return the distinct trainings.

    Equal weights do not count as another seed, even if another seed evaluated them.
    """
    unique: list[EvaluatedPolicy] = []
    for policy in trained:
        if not any(_is_same(policy, other) for other in unique):
            unique.append(policy)
    return unique


def _is_same(policy: EvaluatedPolicy, other: EvaluatedPolicy) -> bool:
    """Tell whether two policies have the same weights; if a model is missing, the same curve or scores."""
    if policy.trained and other.trained:
        return policy.trained == other.trained
    same_scores = np.array_equal(policy.scores_P, other.scores_P, equal_nan=True)
    return policy.curve == other.curve and (bool(policy.curve) or same_scores)
