"""Bad input is refused with one clear error and nothing written; `make fuzz` tries every case."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults.cases import all_cases
from benchmarks.faults.fuzz import run_cases

SHARE = 12


def test_there_are_enough_cases_and_each_has_its_own_name() -> None:
    cases = all_cases()
    assert len(cases) >= 500
    assert len({(case.kind, case.name) for case in cases}) == len(cases)


@pytest.mark.slow
def test_a_share_of_the_cases(smoke_workspace: Path, tmp_path: Path) -> None:
    verdicts = run_cases(smoke_workspace, tmp_path, all_cases()[::SHARE])
    wrong = [f"{one.case.kind}: {one.case.name}: {one.why}" for one in verdicts if one.outcome == "wrong"]
    assert not wrong, "\n".join(wrong)
    assert sum(one.outcome == "refused" for one in verdicts) > len(verdicts) / 2
