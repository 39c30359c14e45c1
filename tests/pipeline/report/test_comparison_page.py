"""The page of `posttrain compare --to`: what it says it shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from posttrain.pipeline.commands.compare import _typed, run
from posttrain.pipeline.commands.line import parser
from tests.workspace import ROOT


def test_the_page_names_the_command_and_the_score_that_it_shows(finished: Path) -> None:
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    typed = "compare dpo grpo --against dpo --task two_step --greedy"
    said = run(parser("compare").parse_args([*typed.split(), "--to", "page.html"]))
    page = (finished / "page.html").read_text(encoding="utf-8")
    assert f"<h1>{typed}</h1>" in page
    assert f"Greedy scores on the same 30 held-out prompts, as `posttrain {typed}` tests them." in page
    assert "greedy score [95 %]" in re.findall(r"<th[^>]*>([^<]*)<", page) and "greedy score on the same 30" in said
    run(parser("compare").parse_args(["compare", "dpo", "grpo", "--to", "page.html"]))
    page = (finished / "page.html").read_text(encoding="utf-8")
    assert "<p>Scores on the same 30 held-out prompts, as `posttrain compare dpo grpo` tests them." in page
    assert "score [95 %]" in re.findall(r"<th[^>]*>([^<]*)<", page)


def test_the_options_of_a_sweep_are_named() -> None:
    typed = "compare kl --policy grpo --table facts/prompts"
    assert _typed(parser("compare").parse_args([*typed.split(), "--to", "page.html"])) == typed
