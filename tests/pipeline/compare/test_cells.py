"""Cells: which training of one level meets which of another one, and why two levels never meet."""

from __future__ import annotations

from dataclasses import replace

from posttrain.pipeline.compare.cells import LeftOut, Trainings
from posttrain.pipeline.compare.factors import factor_named
from tests.pipeline.compare.trained import study, trained


def test_cells_are_the_other_settings_and_the_seed() -> None:
    have = Trainings(study())
    kl = factor_named("kl", have.flats)
    none, beta = kl.levels(have.flats)
    (mine, notes), (theirs, _) = have.cells(kl, none), have.cells(kl, beta)
    assert mine.keys() == theirs.keys() and len(mine) == 9 and notes == []
    assert [have.cell_label(cell, kl) for cell in mine][:2] == ["grpo, seed 1", "grpo, seed 2"]
    assert all(theirs[cell].name == mine[cell].name.replace("none", "0.04") for cell in mine)


def test_equal_weights_count_once_and_so_does_a_seed() -> None:
    twin = trained("grpo", seed=2, trained="grpo-none-1")
    again = trained("grpo", seed=1, name="again", trained="other")
    have = Trainings([trained("grpo"), twin, again, trained("cispo")])
    algorithm = factor_named("algorithm", have.flats)
    cells, notes = have.cells(algorithm, ("grpo",))
    assert [policy.name for policy in cells.values()] == ["grpo-none-1"]
    assert notes == [
        "grpo-none-2 is not counted: grpo-none-1 has the same weights",
        "again is not counted: grpo-none-1 has the same seed",
    ]


def test_why_two_levels_never_meet() -> None:
    together = [trained("grpo", own={"lr": "1"}), trained("cispo", own={"lr": "2"})]
    have = Trainings(together)
    algorithm = factor_named("algorithm", have.flats)
    grpo, cispo = algorithm.levels(have.flats)
    why = have.why_apart(algorithm, cispo, grpo)
    assert why == "algorithm and lr vary together, so no difference is of algorithm alone"
    seeds = Trainings([trained("grpo", seed=1), trained("cispo", seed=2)])
    assert seeds.why_apart(algorithm, cispo, grpo) == "no seed is on both sides"
    coded = [replace(one, code={"online: a.py": one.name}) for one in (trained("grpo"), trained("cispo"))]
    assert Trainings(coded).why_apart(algorithm, cispo, grpo) == "the two were trained with different code"
    crossed = [trained("grpo", "none"), trained("cispo", "0.04"), trained("grpo", "0.1"), trained("cispo", "0.2")]
    both = Trainings([*crossed, trained("gspo")])
    assert both.why_apart(algorithm, cispo, grpo).startswith("algorithm and kl vary together")
    partly = [("grpo", "1", "2"), ("cispo", "1", "3"), ("grpo", "4", "5"), ("cispo", "6", "5")]
    mixed = Trainings([trained(name, own={"a": a, "b": b}) for name, a, b in partly])
    assert mixed.why_apart(algorithm, cispo, grpo) == "no two trainings differ in algorithm alone"
    stale = LeftOut("old", {**together[0].settings, "online.runs.grpo.algorithm": "gspo"}, "stale")
    have = Trainings(study(), [stale])
    assert have.why_apart(algorithm, ("gspo",), grpo) == "no training of gspo can be compared"


def test_a_training_without_readable_answers_is_named() -> None:
    have = Trainings([*study(), trained("gspo", parsed=False)])
    assert len(have.policies) == 18 and have.notes == [
        "gspo, kl none is not compared, because none of its completions has a readable answer"
    ]
