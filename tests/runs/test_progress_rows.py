"""The rows of a run on the terminal: their columns, and a width that nothing exceeds."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import pytest
from rich.console import Console as RichConsole

from ssl_toolkit.console import Console
from ssl_toolkit.runs.progress import WIDTH, ProgressRows, TrainingProgress, clock, fit_number

VALIDATED = {"validation.accuracy", "train.pseudo_label_accuracy"}


def row(step: int, **more: float) -> dict[str, Any]:
    return {
        "step": step,
        "train.loss": 0.4719,
        "train.loss.supervised": 0.2835,
        "train.coverage": 0.2906,
        "images_per_second": 776.6,
        "seconds": 12.0,
        **{name.replace("__", "."): value for name, value in more.items()},
    }


def printed(
    rows: list[dict[str, Any]], steps: int, *, terminal: bool = False, **options: Any
) -> str:
    console = Console(verbose=options.pop("verbose", False))
    console.rich = RichConsole(
        file=io.StringIO(), force_terminal=terminal, width=WIDTH, soft_wrap=True, highlight=False
    )
    with TrainingProgress(console, steps, **options) as progress:
        for each in rows:
            progress.row(each)
            if progress._progress is not None:
                progress._progress.refresh()
    assert isinstance(console.rich.file, io.StringIO)
    return console.rich.file.getvalue()


def test_one_header_and_a_short_row_per_evaluation() -> None:
    rows = [
        row(10),
        row(50, validation__accuracy=0.8207, validation__loss=0.5),
        row(100, validation__accuracy=0.75, train__pseudo_label_accuracy=0.9785),
    ]
    assert printed(rows, 1000, expected=VALIDATED).splitlines() == [
        "step      loss  val acc    best  coverage  pl acc  images/s  time left",
        "  50    0.4719   0.8207  0.8207    0.2906               777    0:03:48",
        " 100    0.4719   0.7500  0.8207    0.2906  0.9785       777    0:01:48",
    ]


def test_columns_that_a_run_never_has_are_left_out() -> None:
    supervised = {k: v for k, v in row(5, validation__accuracy=0.5).items() if "cover" not in k}
    header = printed([supervised], 10, expected=VALIDATED).splitlines()[0]
    assert header.split("  ")[-1] == "time left"
    assert "coverage" not in header
    assert "pl acc" not in header
    unvalidated = printed([row(5, train__labeled__accuracy=0.5)], 10).splitlines()[0]
    assert "train acc" in unvalidated
    assert "best" not in unvalidated
    late = [supervised, row(10, validation__accuracy=0.5)]
    assert printed(late, 10).count("time left") == 2, "a column that comes late has a header too"


@pytest.mark.parametrize("steps", [10, 10**6, 10**9])
@pytest.mark.parametrize("value", [0.5, -0.5, math.nan, -1e-300, 1e6, -123456.789, 1e300, math.inf])
@pytest.mark.parametrize("seconds", [1.0, 1e5, 1e9])
def test_no_value_makes_a_row_wider(steps: int, value: float, seconds: float) -> None:
    names = ("train.loss", "validation.accuracy", "train.coverage", "images_per_second")
    names += ("train.pseudo_label_accuracy",)
    rows = ProgressRows(steps, VALIDATED)
    header = rows.header(dict.fromkeys(names, value))
    for step in (1, steps):
        each = {"step": step, **dict.fromkeys(names, value)}
        line = rows.line(each, value, seconds * (steps - step) / step)
        assert len(line) == len(header) <= WIDTH
        assert not re.search(r"[^ ] [^ ]", line.replace(" d", "")), "cells are apart"


def test_verbose_prints_every_row_with_all_its_values() -> None:
    many = {f"train__loss__term_{k}": 0.125 for k in range(9)}
    lines = printed([row(10, **many), row(20, **many)], 100, verbose=True).splitlines()
    text = "\n".join(lines)
    assert max(map(len, lines)) <= WIDTH
    assert text.count("loss.term_8 0.125") == 2
    assert "loss.supervised 0.2835" in text
    assert "\N{NO-BREAK SPACE}" not in text
    assert "loss.term" not in printed([row(10, **many, validation__accuracy=0.5)], 100)


def test_a_terminal_gets_a_progress_bar_with_the_same_fields() -> None:
    rows = [row(10), row(50, validation__accuracy=0.8207)]
    text = printed(rows, 1000, terminal=True, expected=VALIDATED)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = [line for line in re.split(r"[\r\n]+", plain) if line]
    assert max(map(len, lines)) <= WIDTH
    assert sum("time left" in line for line in lines) == 1
    bars = [line for line in lines if "━" in line]
    assert any(line.startswith("  10    0.4719") for line in bars)
    assert any(line.startswith("  50    0.4719   0.8207  0.8207") for line in bars)


def test_the_best_of_a_resumed_run_is_that_of_all_its_rows() -> None:
    before = [row(10, validation__accuracy=0.9)]
    (_, line) = printed([row(20, validation__accuracy=0.85)], 100, before=before).splitlines()
    assert line.split()[2:4] == ["0.8500", "0.9000"]


def test_numbers_and_times() -> None:
    assert fit_number(math.nan, 6, 4) == "nan"
    assert fit_number(1.0, 6, 4) == "1.0000"
    assert fit_number(1234567.0, 6, 4) == "1e+06"
    assert [clock(s) for s in (0, 59.6, 3599, 359999, 360000, math.inf)] == [
        "0:00:00", "0:01:00", "0:59:59", "99:59:59", "4 d", ""
    ]  # fmt: skip
