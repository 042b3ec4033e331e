"""The report in a real browser: seen, read, walked through by keyboard, in light and in dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CONTRAST, NEEDS_BROWSER, open_browser
from report_folders import comparison

from ssl_toolkit.reports.html.page import write_report

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of eight rows, so that every color is there, with a failed run and long names."""
    folder = tmp_path_factory.mktemp("report")
    names = ["simple", "mixmatch_enhanced", *(f"row {k}: " + "long " * 8 for k in range(6))]
    classes = ("Abyssinian", "basset_hound", "a_class_of_one_very_long_name_without_any_space" * 2)
    compared = comparison(folder, names=names, seeds=2, classes=classes)
    first = compared.rows[0]
    failed = first.runs[1].model_copy(update={"status": "failed", "reason": "x" * 300})
    marked = first.model_copy(
        update={"runs": (first.runs[0], failed), "overrides": {"lr": "y" * 100}}
    )
    compared = compared.model_copy(
        update={"rows": (marked, *compared.rows[1:]), "notes": ("z" * 200,)}
    )
    write_report(compared, folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    opened = open_browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.quit()


Show = Callable[..., Any]


@pytest.fixture
def show(browser: Any, report: Path) -> Show:
    """Open the report in a window of a width, in a color scheme."""

    def show(width: int = 1280, scheme: str = "light") -> Any:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        browser.get(report.as_uri())
        return browser

    return show


def test_the_browser_console_is_silent_and_nothing_else_is_loaded(show: Show) -> None:
    page = show()
    assert page.get_log("browser") == []
    loaded = page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []


@pytest.mark.parametrize("width", [400, 1280])
def test_every_section_is_seen_and_the_page_never_scrolls_sideways(show: Show, width: int) -> None:
    page = show(width)
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    boxes = page.execute_script(
        "return [...document.querySelectorAll('header, section, svg.chart, table, img')].map("
        "e => [e.id || e.tagName, e.getBoundingClientRect().width, "
        "e.getBoundingClientRect().height])"
    )
    assert [name for name, wide, high in boxes if wide < 20 or high < 20] == []
    assert {"results", "curves", "health", "classes", "mistakes", "configuration"} <= {
        name for name, _, _ in boxes
    }
    assert page.execute_script("return innerWidth") == width
    assert page.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out_in_either_scheme(show: Show, scheme: str) -> None:
    page = show(scheme=scheme)
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    ground = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    result = page.execute_script(CONTRAST)
    assert {"P", "TD", "TH", "svg text", "line", "dot"} <= result.keys()
    graphics = {"line", "dot"}
    low = {k: v for k, v in result.items() if v < (3 if k in graphics else 4.5)}
    assert low == {}


def test_the_tab_key_reaches_every_table(show: Show) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    page = show()
    regions = "[...document.querySelectorAll('[role=region]')].filter(e => e.checkVisibility())"
    count = page.execute_script(f"return {regions}.length")
    assert count > 5
    reached = set()
    for _ in range(400):
        ActionChains(page).send_keys(Keys.TAB).perform()
        where, outline = page.execute_script(
            f"return [{regions}.indexOf(document.activeElement), "
            "getComputedStyle(document.activeElement).outlineStyle]"
        )
        if where >= 0:
            assert outline == "solid"
            reached.add(where)
        if len(reached) == count:
            break
    assert reached == set(range(count))


def test_every_region_and_chart_has_a_name_and_every_image_a_text(show: Show) -> None:
    page = show()
    names = page.execute_script(
        "return [...document.querySelectorAll('[role=region], svg[role=img], img')].map(e => "
        "e.getAttribute('aria-label') || e.alt || (e.getAttribute('aria-labelledby') || '')"
        ".split(' ').map(i => document.getElementById(i)?.textContent).join(' '))"
    )
    assert len(names) > 50
    assert [name for name in names if not name or "undefined" in name] == []
    identities = page.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(identities) == len(set(identities))
