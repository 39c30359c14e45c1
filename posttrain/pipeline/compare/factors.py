"""Factors: the settings that differ between the compared trainings, and the levels of each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from posttrain.errors import PipelineError
from posttrain.settings.params import nearest

Flat = Mapping[str, str]
"""Dotted key -> value as text."""
DEFAULT: Final = "default"
"""The text of a level whose key is not in params.yaml."""
OWN_NAME: Final = "algorithm"
"""The setting whose values name themselves: `cispo`, not `algorithm cispo`."""
MOST: Final = 4
"""The most keys in an error."""
Level = tuple[str | None, ...]
"""The values of a factor's keys; None: the key is not in params.yaml."""


def is_seed(key: str) -> bool:
    """Tell whether a key is a seed."""
    return key.rpartition(".")[2] == "seed"


def differing(flats: Sequence[Flat]) -> list[str]:
    """Return the keys that differ between flat settings, without seeds, in the file's order."""
    keys = dict.fromkeys(key for flat in flats for key in flat)
    return [key for key in keys if not is_seed(key) and len({flat.get(key) for flat in flats}) > 1]


@dataclass(frozen=True)
class Factor:
    """A setting that differs between the compared trainings, or a family of settings below one key."""

    path: str
    """The whole key, e.g. `online.runs.grpo.kl`."""
    keys: tuple[str, ...]
    """The keys that differ: the path itself, keys below it, or both (`kl: none` and `kl.beta: 0.04`)."""
    short: str = ""
    """The shortest ending of the path that no other factor has."""

    def level(self, flat: Flat) -> Level:
        """Return the factor's values in one training."""
        return tuple(flat.get(key) for key in self.keys)

    def text(self, level: Level) -> str:
        """Return a level as text: `0.04`, `none`, or for a mapping `loss beta 0.04`."""
        names = [key.removeprefix(self.path).removeprefix(".") for key in self.keys]
        given = [(name, value) for name, value in zip(names, level, strict=True) if value is not None]
        alone = [value for name, value in given if name in ("", "type")]
        return " ".join([*alone, *(f"{name} {value}" for name, value in given if name not in ("", "type"))]) or DEFAULT

    def label(self, level: Level) -> str:
        """Return a level with the factor's name, as in the label of a setting."""
        return self.text(level) if self.short.rpartition(".")[2] == OWN_NAME else f"{self.short} {self.text(level)}"

    def levels(self, flats: Iterable[Flat]) -> list[Level]:
        """Return all levels, in the order of the trainings."""
        return list(dict.fromkeys(self.level(flat) for flat in flats))


def factors(flats: Sequence[Flat]) -> list[Factor]:
    """Return the factors that differ between flat settings, without seeds.

    A key with a value in one training and keys below it in another (`kl: none`, `kl.beta: 0.04`) is one factor.
    """
    keys = differing(flats)
    tops = [key for key in keys if not any(key.startswith(f"{other}.") for other in keys)]
    candidates = [Factor(top, tuple(key for key in keys if f"{key}.".startswith(f"{top}."))) for top in tops]
    return [Factor(one.path, one.keys, _shortest(one.path, tops)) for one in candidates]


def _shortest(path: str, paths: Sequence[str]) -> str:
    """Return the shortest ending of a path that no other path has."""
    parts = path.split(".")
    endings = [".".join(parts[-size:]) for size in range(1, len(parts) + 1)]
    return next((end for end in endings if sum(_ends_in(other, end) for other in paths) == 1), path)


def _ends_in(path: str, name: str) -> bool:
    return f".{path}".endswith(f".{name}")


def factor_named(name: str, flats: Sequence[Flat], section: str = "") -> Factor:
    """Return the factor with this name: its whole key, a unique ending of the key, or a key above several factors.

    `section`: the section of the compared run, which is not a factor itself.
    """
    known = factors(flats)
    families = {
        ".".join(one.path.split(".")[:size]): None for one in known for size in range(1, one.path.count(".") + 1)
    }
    matches = [one for one in known if _ends_in(one.path, name)]
    for path in families:
        below = [one for one in known if one.path.startswith(f"{path}.")]
        of_run = f"{section}.".startswith(f"{path}.")
        if _ends_in(path, name) and below and not of_run and path not in {one.path for one in known}:
            keys = tuple(key for one in below for key in one.keys)
            matches.append(below[0] if len(below) == 1 else Factor(path, keys, name))
    matches = matches or [one for one in known if any(_ends_in(key, name) for key in one.keys)]
    matches = list(dict.fromkeys(matches))
    if len(matches) == 1:
        return matches[0]
    what = _refusal(name, matches, flats, section)
    raise PipelineError(what=what, where="compare --factor", fix=_fix(name, matches, known))


def _refusal(name: str, matches: Sequence[Factor], flats: Sequence[Flat], section: str) -> str:
    """Return why a name is not a factor. `section`: the settings of this run come first."""
    if matches:
        return f"'{name:.80}' can be {' or '.join(one.path for one in matches)}"
    if is_seed(name):
        return "a seed is not a factor: trainings that differ only in their seeds are repeats of one setting"
    above = section.split(".")
    if any(_ends_in(".".join(above[:size]), name) for size in range(1, len(above) + 1) if section):
        return f"'{name:.80}' is the whole run, not one of its settings"
    same = list(dict.fromkeys(key for flat in flats for key in flat if _ends_in(key, name)))
    same.sort(key=lambda key: not f"{key}.".startswith(f"{section}."))
    if same:
        values = ", ".join(f"{key} is {flats[0].get(key, DEFAULT)}" for key in same[:MOST])
        more = f", and {len(same) - MOST} more" * (len(same) > MOST)
        return f"'{name:.80}' does not vary between the {len(flats)} trainings: {values}{more}"
    return f"no setting '{name:.80}' varies between the {len(flats)} trainings"


def _fix(name: str, matches: Sequence[Factor], known: Sequence[Factor]) -> str:
    if matches:
        return "Write more of the key"
    names = [one.short for one in known]
    near = nearest(name, list(dict.fromkeys([*names, *(key.rpartition(".")[2] for one in known for key in one.keys)])))
    meant = f"Did you mean '{near}'? " if near else ""
    return f"{meant}What varies: {', '.join(names)}" if names else "Nothing but seeds varies here"


def level_named(name: str, factor: Factor, levels: Sequence[Level]) -> Level | None:
    """Return the level for this text: as printed by `compare`, as YAML or JSON, or a unique value of the level."""
    exact = [one for one in levels if _same(name, factor.text(one)) or _same(name, factor.label(one))]
    inside = [one for one in levels if any(value is not None and _same(name, value) for value in one)]
    matches = exact or inside
    return matches[0] if len(matches) == 1 else None


def _same(name: str, text: str) -> bool:
    """Tell whether two texts mean the same value: `0.040` and `0.04`, `[1,2]` and `[1, 2]`."""
    if name.strip() == text:
        return True
    with suppress(ValueError):
        return bool(json.loads(name) == json.loads(text))
    return False
