from __future__ import annotations

from pathlib import Path

import pytest

from docs.make import algorithms as page
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.errors import ParamsError
from posttrain.pipeline.commands.params.describe import OTHERS
from posttrain.pipeline.commands.params.stored import algorithm_text

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_current() -> None:
    text = (ROOT / page.PAGE).read_text(encoding="utf-8")
    assert page.page(text) == text, "run: python -m docs.make.algorithms"


def test_what_is_written_by_hand_stays() -> None:
    old = f"# Mine\n\nwords\n\n{page.BEGIN}\nstale\n{page.END}\nmore words\n"
    new = page.page(old)
    assert new.startswith("# Mine\n\nwords\n")
    assert new.endswith("more words\n")
    assert "stale" not in new


@pytest.mark.parametrize("name", [*POLICY_ROWS, *PREFERENCE_ROWS, *(other[0] for other in OTHERS)])
def test_every_objective_can_be_described(name: str) -> None:
    text = algorithm_text(name)
    assert text.startswith(f"{name}: ")
    assert "allow_unsupported" in text or "aggregation" in text or "margin" in text


def test_only_options_that_a_row_reads_are_shown() -> None:
    assert "lam =" in algorithm_text("ppo")
    assert "lam =" not in algorithm_text("grpo")
    assert "surrogate." not in algorithm_text("rloo")


def test_an_unknown_name_has_a_suggestion() -> None:
    with pytest.raises(ParamsError, match="Did you mean 'gspo'"):
        algorithm_text("gsp")


def test_the_laws_page_names_every_row_and_law() -> None:
    from tests.library.laws.oracle_laws import LAWS
    from tests.library.laws.subjects import subjects

    text = (ROOT / "docs" / "reports" / "conformance.md").read_text(encoding="utf-8")
    missing = [name for name in subjects() if f"| {name} |" not in text] + [law for law in LAWS if law not in text]
    assert not missing, "run: python -m docs.make.conformance"
    assert "**" not in text, "a law is broken: see docs/reports/conformance.md"
