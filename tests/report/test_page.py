"""The report's page in a real browser: what is on it, what clicks and keys do, and what hostile texts do not do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.report.build import PAGE, build_report
from posttrain.report.page import asset
from tests.report import browser, workspace
from tests.report.browser import Page

pytestmark = [
    pytest.mark.skipif(
        browser.program() is None,
        reason=f"needs a browser ({', '.join(browser.NAMES)}); on Debian: apt-get install chromium",
    ),
]

HOSTILE_SETTING = "<img src=x onerror=window.hacked=5>"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the small workspace, with a hostile setting as well."""
    params = workspace.PARAMS.replace("beta: 0.1", f"beta: 0.1, note: '{HOSTILE_SETTING}'")
    return built(workspace.make(tmp_path_factory.mktemp("page") / "finished", params))


def built(folder: Path) -> Path:
    """The page of a workspace."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        build_report({})
    finally:
        os.chdir(before)
    return folder / PAGE


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with browser.started(tmp_path_factory.mktemp("chromium") / "profile") as found:
        yield found


@pytest.fixture
def page(port: int, file: Path) -> Iterator[Page]:
    """The page on a laptop; at the end nothing was logged and nothing but the file was asked for."""
    with Page(port) as one:
        one.open(file)
        yield one
        assert one.complaints == []
        assert set(one.requests) == {file.as_uri()}


@pytest.mark.slow
def test_the_page_shows_every_policy_with_its_figures(page: Page) -> None:
    assert page.texts("#results-table tbody th") == ["grpo", "dpo", "sft", "base"]
    assert page.texts("#results-table tr[data-policy=grpo] td")[1] == "0.900 [0.850, 0.950]"
    assert page.run("document.querySelectorAll('#results-table svg.whiskers').length") == 4
    assert page.texts("#rewards") == ["Accuracy on held-out pairs: reward/main 0.875."]
    assert page.texts("#gain li")[0].startswith("grpo gained 0.60, of which")
    assert "1,500" in page.texts("#lineage-body")[0]
    assert "kl.beta" in page.texts("#settings-body tbody th")


def test_the_table_is_against_any_setting_and_sorts_by_any_column(page: Page) -> None:
    assert page.texts("#results-table tr[data-policy=dpo] td")[3] == "cannot tell"
    page.run("document.getElementById('against').value = 'base'")
    page.run("document.getElementById('against').dispatchEvent(new Event('change'))")
    assert page.texts("#results-table thead th")[3] == "less base"
    assert page.texts("#results-table tr[data-policy=dpo] td")[3] == "this training better"
    assert page.texts("#results-table tr[data-policy=base] td")[2] == "–"
    sort = "[...document.querySelectorAll('#results-table .sort')].find((b) => b.textContent === 'KL to sft').click()"
    page.run(sort)
    assert page.texts("#results-table tbody th") == ["base", "grpo", "dpo", "sft"]
    page.run(sort)
    assert page.texts("#results-table tbody th") == ["sft", "dpo", "grpo", "base"]


@pytest.mark.slow
def test_a_watched_run_shows_proxy_and_true_reward(port: int, tmp_path: Path) -> None:
    folder = workspace.make(tmp_path / "watched")
    workspace.watch(folder)
    with Page(port) as page:
        page.open(built(folder))
        assert page.texts("#watched-charts .legend button") == ["true", "proxy"]
        assert "best at step 30; the model is that of step 60. Over-optimised at step 60" in page.texts("#watched p")[1]
        assert page.run("document.querySelectorAll('#watched-charts path.curve').length") == 2
        assert page.complaints == []


@pytest.mark.slow
def test_ratings_have_a_table(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workspace.make(tmp_path / "rated")
    monkeypatch.chdir(folder)
    with Page(port) as page:
        page.open(built(workspace.rate(folder)))
        assert page.texts("#ratings h3") == ["Ratings main, by score"]
        assert page.texts("#ratings tbody th") == ["grpo", "dpo", "sft", "base"]
        assert page.texts("#ratings tr[data-rated=dpo] td")[1:] == ["9 [-16, 35]", "2 to 3"]
        assert page.run("document.querySelectorAll('#ratings svg.whiskers').length") == 4
        assert page.complaints == []


def test_a_run_that_is_not_watched_has_no_such_section(page: Page) -> None:
    assert page.run("document.getElementById('watched').hidden")


def computed(page: Page, expression: str) -> object:
    """An expression with the functions of the page, which keeps them to itself."""
    return page.run(f"(() => {{ {asset('elements.js')}\n{asset('curves.js')}\nreturn {expression}; }})()")


def test_60_policies_look_different(page: Page) -> None:
    assert computed(page, "new Set([...Array(60).keys()].map((n) => JSON.stringify(look(n)))).size") == 60


def test_two_policies_far_away_do_not_squeeze_the_others(page: Page) -> None:
    kls = "[...Array(10).fill(0.4), 5.5, 22].map((kl) => ({ metrics: { kl_k1: kl } }))"
    assert computed(page, f"farAway({kls}).filter(Boolean).length") == 2


def test_metric_is_chosen(page: Page) -> None:
    assert page.texts("#curves-chart .legend button") == ["grpo"]
    page.choose("#metric", "loss")
    assert page.texts("#curves-chart .legend button") == ["base", "dpo", "grpo"]
    assert page.run("document.querySelector('#curves-chart svg[role=img]').getAttribute('aria-label')").startswith(
        "loss: base from"
    )
    page.choose("#across", "share")
    assert "share of the run" in page.texts("#curves-chart svg text")


@pytest.mark.slow
def test_legend_switches_a_run_off_and_on(page: Page) -> None:
    page.choose("#metric", "loss")
    curves = "[...document.querySelectorAll('#curves-chart path.curve')].map((one) => one.dataset.series)"
    button = "#curves-chart .legend button[data-series=base]"
    pressed = f"document.querySelector('{button}').getAttribute('aria-pressed')"
    assert (page.run(curves), page.run(pressed)) == (["base", "dpo", "grpo"], "true")
    page.click(button)
    assert (page.run(curves), page.run(pressed)) == (["dpo", "grpo"], "false")
    assert page.run("document.activeElement.dataset.series") == "base", "the keyboard's place is kept"
    page.click(button)
    assert page.run(curves) == ["base", "dpo", "grpo"]


ZOOM = "document.querySelector('#curves-chart .plot').dataset.zoom.split(' ').filter(Boolean).map(Number)"


@pytest.mark.slow
def test_dragging_zooms_and_reset_shows_everything(page: Page) -> None:
    left, top, width, height = page.box("#curves-chart .plot")
    middle = top + height / 2
    page.drag((left + width * 0.3, middle), (left + width * 0.7, middle))
    low, high = page.run(ZOOM)
    assert 0 < low < high < 59
    page.click("#curves-chart figcaption button[aria-label='Show everything']")
    assert page.run(ZOOM) == []


@pytest.mark.slow
def test_keys_zoom_read_values_and_reset(page: Page) -> None:
    page.run("document.querySelector('#curves-chart .plot').focus()")
    page.key("ArrowRight")
    assert page.texts("#curves-chart [role=status]")[0].startswith("0: grpo 0.0")
    page.key("ArrowRight")
    assert page.texts("#curves-chart [role=status]")[0].startswith("1: grpo")
    page.key("+")
    low, high = page.run(ZOOM)
    assert high - low == pytest.approx(29.5)
    page.key("-")
    assert page.run(ZOOM) == []
    page.key("+")
    page.key("Escape")
    assert page.run(ZOOM) == []


def test_pointer_shows_values(page: Page) -> None:
    left, top, width, height = page.box("#curves-chart .plot")
    page.hover(left + width / 2, top + height / 2)
    assert not page.run("document.querySelector('#curves-chart .tip').hidden")
    assert "grpo" in page.texts("#curves-chart .tip")[0]
    page.hover(2, 2)
    assert page.run("document.querySelector('#curves-chart .tip').hidden")


@pytest.mark.slow
def test_a_policy_with_a_very_large_kl_is_off_until_switched_on(page: Page) -> None:
    points = "[...document.querySelectorAll('#frontier-chart circle.point')].map((one) => one.dataset.series)"
    assert page.run(points) == ["sft", "dpo", "grpo"]
    assert page.run("document.querySelectorAll('#frontier-chart .whisker').length") == 3
    page.click("#frontier-chart .legend button[data-series=base]")
    assert page.run(points) == ["base", "sft", "dpo", "grpo"]


SHOWN = "[...document.querySelectorAll('#prompts > li')].map((one) => parseInt(one.dataset.prompt, 16))"


@pytest.mark.slow
def test_more_prompts_on_demand(page: Page) -> None:
    assert page.run(SHOWN) == list(range(20))
    page.click("#more")
    assert page.run(SHOWN) == list(range(30))
    assert page.run("document.querySelector('#more').hidden")
    assert page.run("document.activeElement.dataset.prompt") == f"{20:016x}"


def test_filter_by_who_got_it_right(page: Page) -> None:
    page.choose("#who select[data-policy=sft]", "wrong")
    page.choose("#who select[data-policy=grpo]", "right")
    expected = [n for n in range(30) if not workspace.right("sft", n, 0) and workspace.right("grpo", n, 0)]
    assert page.texts("#found") == [f"{len(expected)} of 30 prompts"]
    assert page.run(SHOWN) == expected[:20]
    page.click("#clear")
    page.wait("document.querySelector('#found').textContent === '30 of 30 prompts'")


@pytest.mark.slow
def test_scores_other_than_right_or_wrong_are_shown_as_numbers(port: int, tmp_path: Path) -> None:
    file = built(workspace.graded(workspace.make(tmp_path / "finished")))
    with Page(port) as page:
        page.open(file)
        titles = page.texts("#results-table thead th")
        assert "-1 to 2.8" in titles and "score [95 %]" in titles and "my:brief" in titles
        assert page.texts("#results-table tr[data-policy=grpo] td")[1] == "2.600 [2.400, 2.800]"
        assert page.texts("#who label") == []
        assert page.texts("#prompts article[data-policy=sft] h3")[0] == "sftscore 3.000mean of 2 samples 1.063"
        assert page.texts("#gain li") == [] and page.complaints == []


@pytest.mark.slow
def test_without_stored_completions_the_rest_of_the_page_works(port: int, tmp_path: Path) -> None:
    file = built(workspace.rewritten(workspace.make(tmp_path / "none"), "none"))
    with Page(port) as page:
        page.open(file)
        assert page.texts("#completions-note") == [
            "Prompts and completions were not kept (evaluate.settings.completions)."
        ]
        assert page.run("document.querySelectorAll('#prompts li').length") == 0
        assert page.run("getComputedStyle(document.getElementById('filters')).display") == "none"
        assert page.texts("#results-table tbody th") == ["grpo", "dpo", "sft", "base"]
        assert page.run("document.querySelectorAll('#length-spread svg').length") > 0 and page.complaints == []
    file = built(workspace.rewritten(workspace.make(tmp_path / "sampled"), "sampled"))
    with Page(port) as page:
        page.open(file)
        assert page.texts("#completions-note")[0].startswith("20 held-out prompts.")
        assert page.texts("#found") == ["20 of 20 prompts"] and page.complaints == []


@pytest.mark.slow
def test_search_marks_what_it_finds(page: Page) -> None:
    page.type("#search", "SAMPLE 0 of sft to 17")
    assert page.run(SHOWN) == [17]
    assert page.texts("mark") == ["sample 0 of sft to 17"]
    page.choose("#which", "greedy")
    assert page.texts("#found") == ["0 of 30 prompts"]


@pytest.mark.slow
def test_hostile_texts_are_shown_and_do_nothing(page: Page) -> None:
    shown = page.texts("#prompts article[data-policy=grpo] pre")[: len(workspace.HOSTILE)]
    assert shown == list(workspace.HOSTILE)
    page.type("#search", "<img")
    assert page.texts("mark")[0] == "<img"
    assert HOSTILE_SETTING in page.texts("#settings-body td code")
    assert page.run("window.hacked") is None
    assert page.run("document.images.length") == 0
    assert page.run("document.scripts.length") == 2


@pytest.mark.slow
def test_the_content_security_policy_blocks_injected_markup(port: int, file: Path) -> None:
    with Page(port) as page:
        page.open(file)
        image = "<img src='http://127.0.0.1:9/x.png' onerror='window.hacked=7'>"
        page.run(f'document.body.insertAdjacentHTML("beforeend", "{image}")')
        page.run("fetch('http://127.0.0.1:9/').catch(() => 0)")
        page.run("new Promise((done) => setTimeout(done, 200))")
        assert page.run("window.hacked") is None
        refused = [text for text in page.complaints if "Content Security Policy" in text]
        assert len(refused) >= 3, "the image, its handler and the request"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_fits_the_screen(port: int, file: Path, width: int, scheme: str) -> None:
    with Page(port) as page:
        page.open(file, width=width, scheme=scheme)
        assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert page.run("document.documentElement.dataset.theme") == scheme
        ink, paper = page.run("((s) => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
        dark = sum(map(int, paper[4:-1].split(","))) < sum(map(int, ink[4:-1].split(",")))
        assert dark == (scheme == "dark")
        assert page.complaints == []


@pytest.mark.slow
def test_the_theme_button_switches_light_dark_and_auto(page: Page) -> None:
    for theme, text in (("light", "Theme: light"), ("dark", "Theme: dark"), ("light", "Theme: auto")):
        page.click("#theme")
        assert page.run("document.documentElement.dataset.theme") == theme
        assert page.texts("#theme") == [text]


@pytest.mark.slow
def test_every_control_has_a_label_and_is_reached_by_keyboard(page: Page) -> None:
    nameless = page.run(
        "[...document.querySelectorAll('button, select, input, a, [tabindex=\"0\"]')].filter((one) => !one.hidden && !("
        "one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.length)).map((one) => one.outerHTML)"
    )
    assert nameless == []
    unreachable = page.run(
        "[...document.querySelectorAll('button, select, input, a')].filter((one) => one.tabIndex < 0).length"
    )
    assert unreachable == 0
    assert page.run("[...document.querySelectorAll('svg[role=img]')].every((one) => one.getAttribute('aria-label'))")
    assert page.run("new Set([...document.querySelectorAll('[id]')].map((one) => one.id)).size") == page.run(
        "document.querySelectorAll('[id]').length"
    )
