"""The page of `posttrain compare --to`: what it says it shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from posttrain.pipeline.commands.compare import _typed, run
from posttrain.pipeline.commands.line import parser
from posttrain.pipeline.compare.comparison import compare
from posttrain.pipeline.compare.importance import importance
from posttrain.pipeline.compare.planned import planned
from posttrain.pipeline.report.comparison_page import comparison_page
from tests.pipeline.compare.trained import study
from tests.pipeline.report import browser
from tests.workspace import ROOT


def test_the_page_names_the_command_and_the_score_that_it_shows(finished: Path) -> None:
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    typed = "compare dpo grpo --against dpo --task two_step --greedy"
    said = run(parser("compare").parse_args([*typed.split(), "--to", "page.html"]))
    page = (finished / "page.html").read_text(encoding="utf-8")
    assert f"<h1>{typed}</h1>" in page
    assert f"Greedy scores on the same 30 held-out prompts, as <code>posttrain {typed}</code>." in page
    assert "greedy score [95 %]" in re.findall(r"<th[^>]*>([^<]*)<", page) and "greedy score on the same 30" in said
    run(parser("compare").parse_args(["compare", "dpo", "grpo", "--to", "page.html"]))
    page = (finished / "page.html").read_text(encoding="utf-8")
    assert "<p>Scores on the same 30 held-out prompts, as <code>posttrain compare dpo grpo</code>." in page
    assert "score [95 %]" in re.findall(r"<th[^>]*>([^<]*)<", page)


def test_the_options_of_a_sweep_are_named() -> None:
    typed = "compare kl --policy grpo --table facts/prompts"
    assert _typed(parser("compare").parse_args([*typed.split(), "--to", "page.html"])) == typed


def test_planned_questions_are_above_the_table_and_what_mattered_below() -> None:
    found, answers = compare(study()), planned(study(), ["kl"])
    page = comparison_page(found, "compare s --factor kl", "sampled", None, None, answers, importance(study()))
    headings = re.findall(r"<h[12]>([^<]*)</h[12]>", page)
    assert headings == ["compare s --factor kl", "Planned questions", "All settings", "Which setting mattered"]
    assert "kl beta 0.04 minus kl none" in page and "kl none is better" in page
    cells = [
        re.findall(r"<td[^>]*>([^<]*)<", row) for row in page.split("<tr")[1:] if "online.runs.grpo.algorithm" in row
    ]
    assert cells[-1][0] == "3" and cells[-1][1].endswith("%") and cells[-1][3] == "it mattered"
    titles = re.findall(r"<th[^>]*columnheader[^>]*>([^<]*)<", page)
    assert {"algorithm", "kl"} <= set(titles) and "kl.beta" not in titles, "a column for each factor"
    plain = comparison_page(found, "compare s", "sampled", None)
    assert "Planned questions" not in plain and "Which setting mattered" not in plain


@pytest.mark.slow
@pytest.mark.skipif(browser.program() is None, reason="needs a browser: apt-get install chromium")
def test_the_order_of_a_table_is_in_the_address(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(comparison_page(compare(study()), "compare s", "sampled", None), encoding="utf-8")
    first = "document.querySelector('tbody tr').textContent"
    with browser.started(tmp_path / "profile") as port, browser.Page(port) as page:
        page.open(file)
        best = page.run(first)
        for _ in range(2):
            page.run("document.querySelectorAll('thead .sort')[0].click()")
        address, sorted_first = page.run("location.hash"), page.run(first)
        assert address == "#0:0:up" and sorted_first.startswith("cispo")
        page.call("Page.navigate", url="about:blank")
        page.visit(f"{file.as_uri()}#0:0:down")
        last = page.run(first)
        assert last != sorted_first and {last, sorted_first} != {best}
        assert page.run("document.querySelector('thead th').getAttribute('aria-sort')") == "descending"
