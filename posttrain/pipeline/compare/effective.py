"""Give settings that mean the same the same text, so that a default that is written out is not another level."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from posttrain.errors import PosttrainError
from posttrain.pipeline.compare.factors import Flat
from posttrain.pipeline.lock.graph import value_at
from posttrain.pipeline.params.seeds import with_seed
from posttrain.pipeline.params.stage_table import STAGES, Settings, group_of, groups
from posttrain.settings.plain import flattened

if TYPE_CHECKING:  # a sweep uses this file and must not load polars, which takes Ctrl-C away from Prefect
    from posttrain.pipeline.compare.evaluated import EvaluatedPolicy

_SHARED = "evaluate.settings"
"""The only section with settings that is not a run."""


@dataclass
class _Run:
    """A section of one file: its written settings and all settings with their defaults, flat."""

    index: int
    """The number of the file."""
    section: str
    written: Flat
    effective: Flat = field(default_factory=dict)

    def meaning(self, top: str) -> Any:
        """Return the meaning of the settings at and below a key, as a value that can be compared."""
        ours, meant = _below(top, self.written), _below(top, self.effective)
        if all(any(_below(name, meant) for name in _names(key)) for key in ours):
            return tuple(meant.items())
        return "as written", tuple(ours.items())  # a class that keeps this setting in another form

    @property
    def algorithm(self) -> str | None:
        """Its algorithm, which decides its defaults."""
        return self.effective.get("algorithm")


class _Texts:
    """The texts of one key: one for each meaning, and never the text that has another meaning in the same algorithm.

    `kl: {beta: 0.02}` is in the loss of `grpo` and in the reward of `rloo`. Written alike, both are one level. But
    `rloo` with the KL of `grpo` written out must not get the text of its own default. If algorithms with different
    defaults leave a key out, all of them have its default: it does not vary with the algorithm.
    """

    def __init__(self, runs: Sequence[_Run], top: str) -> None:
        self._top = top
        self._anywhere: dict[Any, Flat] = {}
        self._of_algorithm: dict[Any, Flat] = {}
        self._taken: dict[Any, Any] = {}
        self._left_out: dict[str | None, Any] = {}
        for run in runs:
            algorithm, meaning = run.algorithm, run.meaning(top)
            if text := _below(top, run.written):
                self._anywhere.setdefault(meaning, text)
                self._of_algorithm.setdefault((algorithm, meaning), text)
                self._taken.setdefault((algorithm, tuple(text.items())), meaning)
            else:
                self._left_out[algorithm] = meaning

    def of(self, run: _Run) -> Flat:
        """Return the text of the key in a run; empty for a default that no run writes out."""
        algorithm, meaning = run.algorithm, run.meaning(self._top)
        if len(set(self._left_out.values())) > 1 and self._left_out.get(algorithm) == meaning:
            return {}
        text = self._anywhere.get(meaning, {})
        if self._taken.get((algorithm, tuple(text.items())), meaning) != meaning:
            text = self._of_algorithm.get((algorithm, meaning), {})
        default = run.effective.get(self._top, "null")
        return text or ({} if default == "null" else {self._top: default})


def same_texts(documents: Sequence[Settings], sections: Collection[str] = ()) -> list[Flat]:
    """Return the flat settings of several files, with the same text for settings with the same effective values.

    `sections`: more sections with runs to compare with each other. Sections that differ between the files are compared
    in any case. A default that one run writes out gets its text in the others; other defaults are left out.
    """
    flats = [flattened(document) for document in documents]
    wanted = {*sections, *_differing(documents)}
    replaced: list[dict[str, Flat]] = [{} for _ in documents]
    seeded = [dict(_sections(with_seed(document))) for document in documents]
    for group in dict.fromkeys(_group(section) for section in wanted):
        runs = list(_runs(group, wanted, documents, seeded))
        for top in _tops(run.written for run in runs):
            texts = _Texts(runs, top)
            for run in runs:
                text = texts.of(run)
                replaced[run.index][f"{run.section}.{top}"] = {f"{run.section}.{key}": of for key, of in text.items()}
    return [_replaced(flat, new) for flat, new in zip(flats, replaced, strict=True)]


def alike(
    policies: Sequence[EvaluatedPolicy], more: Sequence[Settings] = ()
) -> tuple[list[EvaluatedPolicy], list[Flat]]:
    """Return the policies, and the flat settings of more files, with the same text for settings that mean the same."""
    documents = [*(policy.document for policy in policies), *more]
    one_policy = len({policy.policy for policy in policies}) == 1
    between = [] if one_policy else [policy.section for policy in policies]
    flats = same_texts(documents, sections_behind(documents[0], between) if between else ())
    same = [replace(policy, settings=flat) for policy, flat in zip(policies, flats, strict=False)]
    return same, flats[len(policies) :]


def sections_behind(settings: Settings, sections: Collection[str]) -> set[str]:
    """Return these sections of params.yaml, and the sections of all runs that their runs are made from."""
    made = {stage.output(run): f"{stage.group}.{run}" for stage in STAGES for run in group_of(settings, stage.group)}
    found, queue = set[str](), list(sections)
    while queue:
        if (current := queue.pop()) not in found:
            found.add(current)
            for text in flattened(value_at(settings, current) or {}).values():
                above = made.get(text) or made.get(text.partition("/")[0])  # a model, or a table of a run
                queue += [above] if above else []
    return found


def _group(section: str) -> str:
    return section if section == _SHARED else section.rpartition(".")[0]


def _sections(document: Settings) -> Iterator[tuple[str, Any]]:
    """Yield each section with settings: `online.runs.grpo` and its mapping."""
    for name, inner in groups().items():
        for group in inner:
            runs = (document.get(name) or {}).get(group) or {}
            if f"{name}.{group}" == _SHARED:
                yield _SHARED, runs
            else:
                yield from ((f"{name}.{group}.{run}", settings) for run, settings in runs.items())


def _differing(documents: Sequence[Settings]) -> set[str]:
    """Return the sections that differ between files."""
    texts: dict[str, set[str]] = {}
    unique = {json.dumps(one, sort_keys=True, default=str): one for one in documents}.values()
    for document in unique:
        for section, settings in _sections(document):
            texts.setdefault(section, set()).add(json.dumps(settings, sort_keys=True, default=str))
    return {section for section, found in texts.items() if len(found) > 1}


def _runs(
    group: str, wanted: Collection[str], documents: Sequence[Settings], seeded: Sequence[Mapping[str, Any]]
) -> Iterator[_Run]:
    """Yield the wanted runs of a group. Without the class of one run, all of them are compared as written."""
    known: dict[str, Flat] = {}
    runs = []
    try:
        for index, (document, whole) in enumerate(zip(documents, seeded, strict=True)):
            for section, settings in _sections(document):
                if section in wanted and _group(section) == group and isinstance(settings, Mapping):
                    digest = json.dumps([section, whole[section]], sort_keys=True, default=str)
                    if digest not in known:
                        known[digest] = _effective(group, section, whole[section])
                    runs.append(_Run(index, section, flattened(settings), known[digest]))
    except PosttrainError as error:
        why = f"{group}: settings are compared as they are written, because this version cannot read one: {error.what}"
        print(why, file=sys.stderr)
        return
    yield from runs


def _effective(group: str, section: str, settings: Any) -> Flat:
    """Return the settings of a section with all defaults."""
    from posttrain.pipeline.runs.evaluation import EvaluateParams
    from posttrain.pipeline.runs.typed import settings_of
    from posttrain.settings.params import check

    typed = (
        check(EvaluateParams, settings, where=section) if group == _SHARED else settings_of(group, settings, section)
    )
    return flattened(typed.model_dump(mode="json"))


def _tops(written: Iterator[Flat] | Sequence[Flat]) -> list[str]:
    """Return the written keys that are not below another written key: `kl` for `kl: none` and `kl.beta: 0.04`."""
    keys = dict.fromkeys(key for flat in written for key in flat)
    return [key for key in keys if not any(key.startswith(f"{other}.") for other in keys)]


def _names(key: str) -> Iterator[str]:
    """Yield the names that a written key may have in the whole settings: a reward's own options are below `options`."""
    yield key
    parts = key.split(".")
    for place in range(1, len(parts)):
        yield ".".join([*parts[:place], "options", *parts[place:]])


def _below(top: str, flat: Flat) -> dict[str, str]:
    """Return the settings at and below a key."""
    return {key: of for key, of in flat.items() if f"{key}.".startswith(f"{top}.")}


def _replaced(flat: Flat, new: Mapping[str, Flat]) -> Flat:
    """Return flat settings with new ones at and below some keys, at the place of the old ones."""
    result: dict[str, str] = {}
    for key, of in flat.items():
        parts = key.split(".")
        top = next((one for size in range(1, len(parts) + 1) if (one := ".".join(parts[:size])) in new), None)
        result |= {key: of} if top is None else new[top]
    for added in new.values():
        result |= added
    return result
