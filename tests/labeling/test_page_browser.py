"""The labeling page in a real browser: a whole round by keys, in light, dark and on a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CONTRAST, NEEDS_BROWSER, open_browser
from labeling_data import Client, make_data, opened, served, write_queue

from ssl_toolkit.labeling.labels_table import LabelsTable

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    opened = open_browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.quit()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = make_data(tmp_path)
    (data / "unlabeled" / "evil.png").write_text("<svg onload='alert(1)'/>")
    rows = [(f"unlabeled/{number}.png", "cat" if number % 2 else "", "0.75") for number in range(4)]
    write_queue(tmp_path, [*rows, ("unlabeled/evil.png", "dog", "0.5")])
    return tmp_path


ARGUMENTS = ("data", "--labels", "labels.csv", "--queue", "queue.csv")


def paths(folder: Path) -> tuple[Path, Path]:
    return folder / "data", folder / "labels.csv"


Wait = Callable[[str], Any]


def visit(browser: Any, page: Client, width: int = 1280, scheme: str = "light") -> Wait:
    """Open the page; return a function that waits until a condition in JavaScript holds."""
    from selenium.webdriver.support.ui import WebDriverWait

    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(page.url)

    def wait(condition: str) -> Any:
        return WebDriverWait(browser, 20).until(
            lambda driver: driver.execute_script(f"return !busy && ({condition})")
        )

    wait("state && loaded")
    return wait


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def shown(browser: Any, selector: str) -> list[str]:
    """Return the texts of elements that can be seen."""
    return list(
        browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility())"
            ".map(e => e.textContent)",
            selector,
        )
    )


def test_a_round_by_keys_with_a_break(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    labels = folder / "labels.csv"
    with served(*ARGUMENTS, cwd=folder) as page:
        wait = visit(browser, page)
        assert shown(browser, "#progress") == ["0 of 5 labeled"]
        assert shown(browser, "#classes button") == ["1 cat", "2 dog"]
        press(browser, "2")
        wait("state.index == 1 && loaded")
        assert LabelsTable(labels).rows == {"unlabeled/0.png": "dog"}
        assert shown(browser, "#classes button") == ["1 cat guess 75% ↵", "2 dog"]
        press(browser, Keys.ENTER)  # accept the guess
        wait("state.index == 2 && loaded")
        press(browser, Keys.BACKSPACE)  # no, rather
        wait("state.index == 1 && loaded")
        assert LabelsTable(labels).rows == {"unlabeled/0.png": "dog"}
        press(browser, "+")
        press(browser, "1 fox", Keys.ENTER)  # letters and digits are no keys of classes here
        wait("state.index == 2 && loaded")
        assert LabelsTable(labels).rows == {"unlabeled/0.png": "dog", "unlabeled/1.png": "1 fox"}
        assert shown(browser, "#classes button") == ["1 cat", "2 dog", "3 1 fox"]
        press(browser, "0")
        wait("state.index == 3 && loaded")
        assert shown(browser, "#progress") == ["2 of 5 labeled, 1 skipped"]
        press(browser, Keys.ARROW_LEFT)
        wait("state.index == 2 && loaded")
        assert shown(browser, "#note") == ["Skipped"]
        browser.get("about:blank")  # the page is closed
        page.process.kill()  # and so is the program
    with served(*ARGUMENTS, cwd=folder) as page:
        wait = visit(browser, page)
        assert browser.execute_script("return state.index") == 3
        assert shown(browser, "#classes button") == ["1 cat guess 75% ↵", "2 dog", "3 1 fox"]
        press(browser, "3")
        wait("state.index == 4 && state.path.includes('evil') && element('problem').textContent")
        assert "can't be shown: not an image. Skip it." in shown(browser, "#problem")[0]
        press(browser, "1")  # what nobody can see gets no label
        press(browser, "0")
        wait("state.index == 5")
        assert "No image is left: 3 of 5 labeled, 2 skipped" in shown(browser, "#done")[0]
        press(browser, Keys.BACKSPACE)
        wait("state.index == 4 && element('problem').textContent")
        press(browser, "0")
        wait("state.index == 5")
        browser.execute_script("element('finish').click()")
        wait("finished")
        assert shown(browser, "#done") == [
            "Saved in labels.csv: 3 of 5 labeled, 2 skipped. You can close this page."
        ]
        assert page.process.wait(timeout=20) == 0
    assert LabelsTable(labels).rows == {
        "unlabeled/0.png": "dog",
        "unlabeled/1.png": "1 fox",
        "unlabeled/2.png": "",
        "unlabeled/3.png": "1 fox",
        "unlabeled/evil.png": "",
    }


def test_the_end_of_the_program_is_shown_and_the_answer_not_counted(
    browser: Any, folder: Path
) -> None:
    with served(*ARGUMENTS, cwd=folder) as page:
        wait = visit(browser, page)
        page.process.kill()
        page.process.wait()
        press(browser, "1")
        wait("!element('problem').hidden")
        assert (
            "Not saved: the program has ended; start `ssl-toolkit label serve` again"
            in (shown(browser, "#problem")[0])
        )
        assert shown(browser, "#progress") == ["0 of 5 labeled"]


def test_a_key_that_stays_down_labels_one_image(browser: Any, folder: Path) -> None:
    with opened(*paths(folder), queue=folder / "queue.csv") as page:
        wait = visit(browser, page)
        for repeated in (False, True, True, True):
            browser.execute_cdp_cmd(
                "Input.dispatchKeyEvent",
                {"type": "keyDown", "key": "1", "text": "1", "autoRepeat": repeated},
            )
        wait("state.index == 1 && loaded")
        assert len(LabelsTable(folder / "labels.csv").rows) == 1


def test_several_classes_are_chosen_and_saved(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    labels, queue = folder / "labels.csv", folder / "several.csv"
    queue.write_text("path,guess,confidence\n" + "".join(f"{n}.png,cat,0.9\n" for n in range(4)))
    options: Any = {"queue": queue, "classes": ["cat", "dog"], "several": True}
    with opened(folder / "data" / "unlabeled", labels, **options) as page:
        wait = visit(browser, page)
        assert shown(browser, "#classes button") == ["1 cat", "2 dog"]
        press(browser, "2", "1", "2", "2")
        assert shown(browser, "#classes .chosen") == ["1 cat", "2 dog"]
        assert not labels.exists()
        press(browser, Keys.ENTER)
        wait("state.index == 1 && loaded")
        press(browser, Keys.ENTER)
        wait("state.index == 2 && loaded")
        press(browser, "+", "fox", Keys.ENTER, "2", Keys.ARROW_RIGHT)
        wait("state.index == 3 && loaded")
        assert shown(browser, "#classes button") == ["1 cat", "2 dog", "3 fox"]
        press(browser, Keys.ARROW_LEFT)
        wait("state.index == 2 && loaded")
        assert shown(browser, "#note") == ["Labeled: dog, fox"]
        press(browser, "3", Keys.ENTER)
        wait("state.index == 3 && loaded")
        press(browser, "0")
        wait("state.index == 4")
    expected = {"0.png": "cat|dog", "1.png": "|", "2.png": "dog", "3.png": ""}
    assert LabelsTable(labels).rows == expected


def test_no_choice_of_several_classes_is_lost(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    labels, queue = folder / "labels.csv", folder / "several.csv"
    queue.write_text("path\n" + "".join(f"{n}.png\n" for n in range(4)))
    options: Any = {"queue": queue, "classes": ["cat", "dog"], "several": True}
    with opened(folder / "data" / "unlabeled", labels, **options) as page:
        wait = visit(browser, page)
        press(browser, Keys.ARROW_RIGHT)
        wait("state.index == 1 && loaded")
        press(browser, "2", Keys.ARROW_LEFT)
        wait("state.index == 0 && loaded")
        assert LabelsTable(labels).rows == {"1.png": "dog"}
        assert shown(browser, "#status") == ["1.png: dog. Saved."]
        press(browser, "1", Keys.BACKSPACE)  # the choice, not the answer before
        assert shown(browser, "#classes .chosen") == []
        press(browser, "+", "a|b", Keys.ENTER)
        assert shown(browser, "#problem") == ["a|b: a class can't have |, which separates classes."]
        assert shown(browser, "#classes button") == ["1 cat", "2 dog"]
        press(browser, "+", Keys.ESCAPE, "+", "fox", Keys.ENTER, "+", "owl", Keys.ENTER)
        assert shown(browser, "#problem") == []
        browser.execute_script("element('finish').click()")
        wait("finished")
    assert LabelsTable(labels).rows == {"1.png": "dog", "0.png": "fox|owl"}


def test_a_correction_by_another_program_is_kept(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    with opened(*paths(folder), queue=folder / "queue.csv") as page:
        wait = visit(browser, page)
        press(browser, "2")
        wait("state.index == 1 && loaded")
        other = LabelsTable(folder / "labels.csv")
        other.put("unlabeled/0.png", "cat")
        other.write()
        press(browser, Keys.BACKSPACE)
        wait("state.index == 0 && loaded")
        assert shown(browser, "#note") == ["Labeled: cat"]
        (status,) = shown(browser, "#status")
        assert "another program changed this answer, which is kept" in status


def test_many_classes_are_found_by_typing(browser: Any, folder: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    names = [f"species {number}" for number in range(100)]
    with opened(*paths(folder), queue=folder / "queue.csv", classes=names) as page:
        wait = visit(browser, page)
        assert len(shown(browser, "#classes button")) == 60
        press(browser, "/")
        press(browser, "species 77")
        assert shown(browser, "#classes button") == ["species 77"]
        press(browser, Keys.ENTER)
        wait("state.index == 1 && loaded")
        assert [*LabelsTable(folder / "labels.csv").rows.values()] == ["species 77"]


def test_the_console_is_silent_and_nothing_else_is_loaded(browser: Any, folder: Path) -> None:
    with opened(*paths(folder), queue=folder / "queue.csv") as page:
        browser.get_log("browser")
        visit(browser, page)
        assert browser.get_log("browser") == []
        loaded = browser.execute_script(
            "return performance.getEntriesByType('resource').map(e => e.name)"
        )
        names = [name for name in loaded if not name.startswith("data:")]
        assert names
        assert [name for name in names if not name.startswith(page.url)] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_is_seen_in_any_width_and_scheme(
    browser: Any, folder: Path, width: int, scheme: str
) -> None:
    names = ["a_class_of_one_very_long_name_without_any_space" * 2, "cat", "dog"]
    with opened(*paths(folder), queue=folder / "queue.csv", classes=names) as page:
        wait = visit(browser, page, width, scheme)
        press(browser, "2")
        wait("state.index == 1 && loaded")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        result = browser.execute_script(CONTRAST)
        assert {"P", "BUTTON", "KBD", "LABEL"} <= result.keys()
        assert {name: value for name, value in result.items() if value < 4.5} == {}
        small = browser.execute_script(
            "return [...document.querySelectorAll('button, input')].filter(e => "
            "e.checkVisibility()).map(e => [e.id || e.textContent, "
            "e.getBoundingClientRect().height]).filter(([, high]) => high < 40)"
        )
        assert small == []
        unnamed = browser.execute_script(
            "return [...document.querySelectorAll('button, input, img, progress')].filter(e => "
            "!(e.textContent.trim() || e.alt || e.labels?.length || "
            "e.getAttribute('aria-labelledby'))).map(e => e.id)"
        )
        assert unnamed == []
