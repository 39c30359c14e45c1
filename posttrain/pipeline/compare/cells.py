"""Cells: trainings by their other settings and seed, so that two levels of a factor can be paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.pipeline.compare.evaluated import EvaluatedPolicy
from posttrain.pipeline.compare.factors import Factor, Flat, Level, factors
from posttrain.pipeline.compare.notes import readable
from posttrain.pipeline.compare.settings import by_code, distinct, flat_settings, grouped, seed_of

MOST = 3
"""The most settings in a sentence."""
Context = tuple[str | None, ...]
"""The values of all other settings that vary, and the version of the code."""
Cells = dict[tuple[Context, str], EvaluatedPolicy]
"""Other settings and seed -> the training."""


@dataclass(frozen=True)
class LeftOut:
    """A training of a sweep whose results cannot be compared."""

    name: str
    settings: Flat
    why: str


class Trainings:
    """The comparable trainings, the settings that vary between them, and the trainings left out."""

    def __init__(self, policies: Sequence[EvaluatedPolicy], left_out: Sequence[LeftOut] = ()) -> None:
        settings, self.notes = readable(grouped(policies)[0])
        names = {name for setting in settings for name in setting.names}
        self.policies = [policy for policy in policies if policy.name in names]
        self.flats: list[Flat] = [*flat_settings(policies), *(one.settings for one in left_out)]
        self.factors = factors(self.flats)
        self.policy_settings = [
            flat for policy, flat in zip(policies, self.flats, strict=False) if policy.name in names
        ]
        code = {id(policy): str(number) for number, part in enumerate(by_code(self.policies)) for policy in part}
        self._code = [code[id(policy)] for policy in self.policies]
        self._seeds = [seed_of(policy, policies) for policy in self.policies]

    def cells(self, factor: Factor, level: Level) -> tuple[Cells, list[str]]:
        """Return the trainings of a level by their other settings and seed, and a note for each excluded training.

        Equal weights count once, as another seed that trains the same shows no variance.
        """
        keys = self._other_keys(factor)
        alike: dict[Context, list[tuple[str, EvaluatedPolicy]]] = {}
        for policy, flat, code, seed in zip(self.policies, self.policy_settings, self._code, self._seeds, strict=True):
            if factor.level(flat) == level:
                alike.setdefault((*map(flat.get, keys), code), []).append((seed, policy))
        cells: Cells = {}
        notes = []
        for context, trained in alike.items():
            counted = {policy.name for policy in distinct([policy for _, policy in trained])}
            for seed, policy in trained:
                if policy.name in counted and (context, seed) not in cells:
                    cells[context, seed] = policy
                else:
                    why = "seed" if policy.name in counted else "weights"
                    twin = cells.get((context, seed)) if why == "seed" else self._twin(policy, trained)
                    notes.append(f"{policy.name} is not counted: {twin.name if twin else 'another'} has the same {why}")
        return cells, notes

    @staticmethod
    def _twin(policy: EvaluatedPolicy, trained: Sequence[tuple[str, EvaluatedPolicy]]) -> EvaluatedPolicy | None:
        """Return the training that counts in place of one with the same weights."""
        return next((one for _, one in trained if len(distinct([one, policy])) == 1), None)

    def cell_label(self, cell: tuple[Context, str], factor: Factor) -> str:
        """Return a cell as text: the other settings that vary, and the seed."""
        context, seed = cell
        flat = {key: value for key, value in zip(self._other_keys(factor), context, strict=False) if value is not None}
        others = [one.label(one.level(flat)) for one in self.factors if one.keys[0] not in factor.keys]
        return ", ".join([*others, f"seed {seed}"])

    def why_apart(self, factor: Factor, level: Level, base: Level) -> str:
        """Return the reason why two levels share no cell."""
        ours, theirs = self.cells(factor, level)[0], self.cells(factor, base)[0]
        for side, cells in ((level, ours), (base, theirs)):
            if not cells:
                return f"no training of {factor.label(side)} can be compared"
        contexts = [{context for context, _ in cells} for cells in (ours, theirs)]
        if contexts[0] & contexts[1]:
            return "no seed is on both sides"
        if {context[:-1] for context in contexts[0]} & {context[:-1] for context in contexts[1]}:
            return "the two were trained with different code"
        sides = [[flat for flat in self.flats if factor.level(flat) == side] for side in (level, base)]
        others = [one for one in self.factors if one.keys[0] not in factor.keys]
        along = [one.short for one in others if not set(one.levels(sides[0])) & set(one.levels(sides[1]))]
        if along:
            return f"{_together(factor.short, along)} vary together, so no difference is of {factor.short} alone"
        return f"no two trainings differ in {factor.short} alone"

    def _other_keys(self, factor: Factor) -> list[str]:
        return sorted(key for one in self.factors for key in one.keys if key not in factor.keys)


def _together(name: str, others: Sequence[str]) -> str:
    """Return a factor with the others that vary with it: all of them, or their number and the first ones."""
    if len(others) <= MOST:
        return " and ".join([name, *others])
    return f"{name} and {len(others)} other settings ({', '.join(others[:MOST])}, ...)"
