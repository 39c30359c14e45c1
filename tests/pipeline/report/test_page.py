"""The report's page in a real browser: what is on it, what clicks and keys do, and what hostile texts do not do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.measure.terminal import ACTIVE, visible
from posttrain.pipeline.report.build import PAGE, build_report
from posttrain.pipeline.report.page import asset
from tests.pipeline.report import browser, workspace
from tests.pipeline.report.browser import Page

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
        build_report()
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
    assert page.texts("#results-table tr[data-policy=grpo] td")[1] == "0.900 [0.850,\u00a00.950]"
    assert page.run("document.querySelectorAll('#results-table svg.whiskers').length") == 4
    assert page.texts("#rewards") == ["Accuracy on held-out pairs: reward/main 0.875."]
    assert page.texts("#gain li")[0].startswith("grpo gained 0.60, of which")
    assert "1,500" in page.texts("#lineage-body")[0]
    assert "kl.beta" in page.texts("#settings-body tbody th")


def test_the_table_is_against_any_setting_and_sorts_by_any_column(page: Page) -> None:
    assert page.texts("#results-table tr[data-policy=dpo] td")[3] == "cannot tell"
    page.run("document.getElementById('against').value = 'base'")
    page.run("document.getElementById('against').dispatchEvent(new Event('change'))")
    assert page.texts("#results-table thead th")[3] == "minus base"
    assert page.texts("#results-table tr[data-policy=dpo] td")[3] == "better\N{NO-BREAK SPACE}(1\N{NO-BREAK SPACE}seed)"
    assert page.texts("#results-table tr[data-policy=base] td")[2] == "–"
    sort = "[...document.querySelectorAll('#results-table .sort')].find((b) => b.textContent === 'KL to sft').click()"
    page.run(sort)
    assert page.texts("#results-table tbody th") == ["base", "grpo", "dpo", "sft"]
    page.run(sort)
    assert page.texts("#results-table tbody th") == ["sft", "dpo", "grpo", "base"]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1366, 1024, 390])
def test_the_results_do_not_scroll_sideways(port: int, file: Path, width: int) -> None:
    with Page(port) as page:
        page.open(file, width=width)
        assert (
            page.run("((box) => box.scrollWidth - box.clientWidth)(document.querySelector('#results-table .scroll'))")
            <= 1
        )


@pytest.mark.slow
@pytest.mark.parametrize("width", [1366, 390])
def test_metrics_have_intervals_and_a_measured_0_is_shown(port: int, tmp_path: Path, width: int) -> None:
    folder = workspace.make(tmp_path / "measured")
    ends = {"reward_format_low": 0.85, "reward_format_high": 0.95, "reward_format_failed": 3}
    for policy, more in {"grpo": ends, "base": {"parsed": 0.0}}.items():
        file = folder / "results" / policy / "metrics.json"
        workspace.put_json(file, {**json.loads(file.read_text()), **more})
    with Page(port) as page:
        page.open(built(folder), width=width)
        assert "format low" not in page.texts("#results-table thead th")
        cells = [text.replace("\u00a0", " ") for text in page.texts("#results-table tr[data-policy=grpo] td")]
        assert "0.900 [0.850, 0.950] (3 failed)" in cells
        cells = [text.replace("\u00a0", " ") for text in page.texts("#results-table tr[data-policy=base] td")]
        assert "0.000 [0.000, 0.000] (no readable answer)" in cells and "not measured" not in cells
        assert page.complaints == []
        wide = "((box) => box.scrollWidth - box.clientWidth)(document.querySelector('#results-table .scroll'))"
        assert page.run(wide) <= 1


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
        assert page.texts("#ratings tr[data-rated=dpo] td")[1:] == ["9 [-16,\u00a035]", "2 to 3"]
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


@pytest.mark.slow
def test_filter_by_what_is_wrong_counts_all_samples(page: Page) -> None:
    page.choose("#of", "dpo")
    page.choose("#kind", "wrong answer")
    assert page.texts("#found") == ["30 of 30 prompts"], "the second sample is always wrong"
    assert page.texts("#prompts article[data-policy=dpo] .steps span")[0] == "sample 2 of 2"
    page.choose("#kind", "half")
    assert page.run(SHOWN) == list(range(1, 30, 2))
    page.choose("#kind", "right")
    assert page.run(SHOWN) == list(range(0, 30, 2))
    page.click("#clear")
    page.wait("document.querySelector('#found').textContent === '30 of 30 prompts'")


@pytest.mark.slow
def test_sorted_by_the_difference_of_two_policies(page: Page) -> None:
    page.choose("#order", "1 3")
    assert "grpo better than sft" in page.texts("#order option")
    assert page.run(SHOWN) == [n for n in range(30) if workspace.right("grpo", n, 0) and n % 3][:20]
    page.choose("#order", "3 1")
    assert page.run(SHOWN) == [0], "only there sft is better"


def test_a_prompt_without_a_score_is_neither_wrong_nor_worse(port: int, tmp_path: Path) -> None:
    folder = workspace.make(tmp_path / "failed")
    rows = workspace.rollouts("dpo")
    for row in rows[3:6]:
        row |= {"reward": None, "status": "infrastructure"}
    workspace.put_policy(folder, "dpo", rows)
    with Page(port) as page:
        page.open(built(folder))
        page.choose("#of", "dpo")
        page.choose("#kind", "half")
        assert page.run(SHOWN) == list(range(3, 30, 2))
        page.choose("#kind", "")
        page.choose("#order", "2 3")
        assert page.run(SHOWN) == list(range(3, 30, 2)), "grpo is right there, and dpo was not scored at 1"
        assert page.complaints == []


@pytest.mark.slow
def test_all_samples_of_a_prompt_are_stepped_through(page: Page) -> None:
    card = "#prompts > li:first-child article[data-policy=sft]"

    def shown() -> tuple[str, ...]:
        return tuple(page.texts(f"{card} {part}")[0] for part in (".steps span", ".badge", "pre"))

    assert shown() == ("sample 1 of 2", "✓ right", "sample 0 of sft to 0\n#### 1")
    page.click(f"{card} .steps button:nth-child(3)")
    assert shown() == ("sample 2 of 2", "✗ wrong answer", "sample 1 of sft to 0\n#### 1")
    assert page.texts("#spoken")[0].startswith("sft sample 2 of 2: ✗ wrong answer")
    assert page.run("document.activeElement.ariaLabel") == "next sample of sft", "the keyboard's place is kept"
    page.click(f"{card} .steps button:nth-child(3)")
    assert shown()[0] == "likeliest"
    page.click(f"{card} .steps button:nth-child(3)")
    assert shown()[0] == "sample 1 of 2"
    page.click(f"{card} .steps button:nth-child(1)")
    assert shown()[0] == "likeliest"
    assert page.texts(f"{card} h3 small") == ["1 of 2 right"]
    assert page.texts(f"{card} .parts")[0].endswith("correct 1, 1 token")


@pytest.mark.slow
def test_a_completion_and_the_command_that_explains_it_are_copied(page: Page) -> None:
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.call("Emulation.setFocusEmulationEnabled", enabled=True)
    copied = "navigator.clipboard.readText()"
    page.click("#prompts > li:first-child article[data-policy=sft] .steps button:nth-child(4)")
    page.wait("document.querySelector('#spoken').textContent === 'copied'")
    assert page.run(copied) == "sample 0 of sft to 0\n#### 1"
    page.click("#prompts > li:first-child article[data-policy=sft] .steps button:nth-child(5)")
    page.wait(f"{copied}.then((text) => text.startsWith('posttrain why '))")


@pytest.mark.slow
def test_reasons_and_states_are_on_the_cards(port: int, tmp_path: Path) -> None:
    folder = workspace.make(tmp_path / "states")
    rows = workspace.rollouts("dpo")
    workspace.unread(rows[0], "13+2=15\n1")
    rows[1] |= {"status": "timeout", "truncated": True, "scores": [{**rows[1]["scores"][0], "status": "timeout"}]}
    workspace.put_policy(folder, "dpo", rows)
    with Page(port) as page:
        page.open(built(folder))
        card = "#prompts > li:first-child article[data-policy=dpo]"
        assert page.texts(f"{card} .parts")[0] == (
            "✗ no readable answer it does not end with `#### N`. correct 0 (unparseable), 1 token"
        )
        page.click(f"{card} .steps button:nth-child(3)")
        assert page.texts(f"{card} .badge") == ["✗ failed", "cut"]
        assert "correct (timeout)" in page.texts(f"{card} .parts")[0], "a failed score is never a 0"
        counts = page.run("[...document.querySelectorAll('#completions tr')[3].cells].map((cell) => cell.textContent)")
        assert counts == ["dpo", "60", "46", "44", "1", "1", "1", "1"]
        assert page.complaints == []


@pytest.mark.slow
def test_of_many_policies_four_are_next_to_each_other(port: int, tmp_path: Path) -> None:
    folder = workspace.many(tmp_path / "many", settings=9, seeds=2, prompts=4, letters=40)
    with Page(port) as page:
        page.open(built(folder))
        boxes = "[...document.querySelectorAll('#who input')].filter((box) => box.{}).length"
        assert page.run(boxes.format("checked")) == 4 and page.run(boxes.format("disabled")) == 19 - 4
        assert page.run("document.querySelectorAll('#prompts > li:first-child article').length") == 4
        page.click("#who input:checked")
        assert page.run(boxes.format("disabled")) == 0
        assert page.run("document.querySelectorAll('#prompts > li:first-child article').length") == 3
        runs = "[...document.querySelectorAll('#runs-list input')].filter((box) => box.checked).length"
        assert page.run(runs) == 8, "of ten settings the reference and the best"
        assert page.run("document.querySelectorAll('#curves-chart path.curve').length") == 14, "two seeds of seven"
        looks = "((one) => one.style.stroke + one.getAttribute('stroke-dasharray'))"
        drawn = f"[...document.querySelectorAll('#curves-chart path.curve')].map{looks}"
        assert page.run(f"new Set({drawn}).size") == 7, "one look for each setting"
        page.click("#runs-none")
        assert page.run("document.querySelectorAll('path.curve, circle.point').length") == 0
        page.type("#runs-filter", "lr8")
        page.click("#runs-all")
        assert page.run("document.querySelectorAll('#curves-chart path.curve').length") == 2
        assert page.run("document.querySelectorAll('#frontier-chart circle.point').length") == 2
        assert page.complaints == []


@pytest.mark.slow
def test_a_log_axis_and_the_cursor_of_all_charts(page: Page) -> None:
    page.choose("#metric", "loss")
    page.click("#log")
    assert {"0.5", "1", "2", "5"} <= set(page.texts("#curves-chart svg text"))
    left, top, width, height = page.box("#curves-chart .plot")
    page.hover(left + width / 2, top + height / 2)
    assert page.run("document.querySelectorAll('#multiples .tip:not([hidden])').length") >= 3
    page.hover(2, 2)
    assert page.run("document.querySelectorAll('#multiples .tip:not([hidden])').length") == 0


@pytest.mark.slow
def test_print_has_all_columns_and_no_completions(port: int, file: Path) -> None:
    with Page(port) as page:
        page.open(file, width=720, scheme="dark")
        page.call("Emulation.setEmulatedMedia", media="print")
        assert page.run("document.querySelector('#results-table table').getBoundingClientRect().right <= innerWidth")
        assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.run("document.querySelector('#prompts').getBoundingClientRect().height") == 0
        assert page.run("document.querySelector('h1').getBoundingClientRect().height") > 0
        assert page.run("document.querySelectorAll('#runs-list label')[0].getBoundingClientRect().height") > 0


@pytest.mark.slow
def test_scores_other_than_right_or_wrong_are_shown_as_numbers(port: int, tmp_path: Path) -> None:
    file = built(workspace.graded(workspace.make(tmp_path / "finished")))
    with Page(port) as page:
        page.open(file)
        titles = page.texts("#results-table thead th")
        assert "-1 to 2.8" in titles and "score [95 %]" in titles and "my:brief" in titles
        assert page.texts("#results-table tr[data-policy=grpo] td")[1] == "2.600 [2.400,\u00a02.800]"
        assert page.texts("#kind option") == ["any", "no readable answer", "failed", "cut"]
        assert page.texts("#prompts article[data-policy=sft] h3")[0] == "sftmean of 2 1.063"
        assert page.texts("#prompts article[data-policy=sft] .badge")[0] == "score 3.000"
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
        assert page.texts("#completions-note")[0].startswith("20 of 30 prompts with 2 samples")
        assert page.texts("#found") == ["20 of 20 prompts"] and page.complaints == []


@pytest.mark.slow
def test_search_marks_what_it_finds(page: Page) -> None:
    page.type("#search", "SAMPLE 0 of sft to 17")
    assert page.run(SHOWN) == [17]
    assert page.texts("mark") == ["sample 0 of sft to 17"]
    page.type("#search", "X")
    assert page.texts("#found") == ["0 of 30 prompts"]
    page.run("document.getElementById('search').value = ''")
    page.type("#search", "sample 1 of sft to 17")
    assert page.texts("#prompts article[data-policy=sft] .steps span") == ["sample 2 of 2"], "the one that has it"


@pytest.mark.slow
def test_hostile_texts_are_shown_and_do_nothing(page: Page) -> None:
    shown = page.texts("#prompts article[data-policy=grpo] pre")[: len(workspace.HOSTILE)]
    assert shown == [visible(text) for text in workspace.HOSTILE]
    assert "⟨U+202E⟩⟨U+2066⟩" in shown[3] and "\u202e" in workspace.HOSTILE[3], (
        "marks of direction are shown, not obeyed"
    )
    assert not ACTIVE.search(page.run("document.body.innerText"))
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


@pytest.mark.slow
def test_the_keyboard_reaches_every_box_that_scrolls(port: int, tmp_path: Path) -> None:
    folder = workspace.many(tmp_path / "many", settings=15, seeds=2, prompts=20)
    with Page(port) as page:
        page.open(built(folder))
        page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        scrolls = "one.scrollHeight > one.clientHeight + 14 && /auto|scroll/.test(getComputedStyle(one).overflowY)"
        boxes = f"[...document.querySelectorAll('main *')].filter((one) => {scrolls})"
        assert page.run(f"{boxes}.length") >= 80
        unreached = "one.tabIndex < 0 && !one.querySelector('button, a, input, select, [tabindex=\"0\"]')"
        assert page.run(f"{boxes}.filter((one) => {unreached}).length") == 0
        top = "document.querySelector('#results-table thead th').getBoundingClientRect().top"
        page.run("document.querySelector('#results-table .scroll').scrollTop = 200")
        box = "document.querySelector('#results-table .scroll').getBoundingClientRect().top"
        assert abs(page.run(top) - page.run(box)) < 2, "the table's titles stay visible"
