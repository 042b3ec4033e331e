"""Tables and page of a label curve whose runs are few, missing, equal or oddly named."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
from fake_runs import fake_run

from ssl_toolkit.comparisons.gather import gather
from ssl_toolkit.comparisons.schema import Comparison, RunLocation
from ssl_toolkit.reports.html.page import write_report
from ssl_toolkit.reports.label_curve import curve_sentences
from ssl_toolkit.reports.tables import write_tables

Run = tuple[str, int, int]


def curve_of(
    folder: Path,
    methods: Sequence[str] = ("a", "b"),
    counts: Sequence[int] = (1, 2),
    seeds: Sequence[int] = (0, 1),
    missing: Collection[Run] = (),
    accuracy: Callable[[str, int, int], float] = lambda method, count, seed: 0.5,
) -> Comparison:
    """Write runs, and all files of their comparison; return it."""
    runs = []
    for count in counts:
        for number, method in enumerate(methods):
            for seed in seeds:
                path = folder / f"{number}-{count}-{seed}"
                if (method, count, seed) not in missing:
                    split = {"split": f"{count}-{seed}", "initial_weights": f"{count}-{seed}"}
                    config = {"labels_per_class": count}
                    score = accuracy(method, count, seed)
                    fake_run(path, seed=seed, accuracy=score, config=config, record=split)
                name = f"{method}, {count} per class"
                runs.append(RunLocation(name, seed, path, "supervised", method, count))
    allow = ["labels_per_class"]
    comparison = gather(
        runs, name="toy", baseline=methods[0], allow=allow, curve="labels_per_class"
    )
    json, _, markdown = write_tables(comparison, folder)
    write_report(comparison, folder / "report.html")
    Comparison.read(json)
    assert "nan" not in markdown.read_text(encoding="utf-8").lower()
    return comparison


def sentences(comparison: Comparison) -> list[str]:
    assert comparison.curve is not None
    return curve_sentences(comparison, comparison.curve)


def test_one_method_is_compared_with_none(tmp_path: Path) -> None:
    assert sentences(curve_of(tmp_path, methods=["a"])) == []
    assert "how many labels" not in (tmp_path / "comparison.md").read_text(encoding="utf-8")


def test_equal_scores_are_worth_the_smallest_number(tmp_path: Path) -> None:
    made = curve_of(tmp_path, accuracy=lambda method, count, seed: 1.0)
    assert sentences(made) == ["b with 1 label per class is worth about 1 label per class of a"]


@pytest.mark.parametrize(
    "missing",
    [
        [(method, count, seed) for method in "ab" for count in (1, 2) for seed in (0, 1)],
        [("a", count, seed) for count in (1, 2) for seed in (0, 1)],
        [("a", 1, 0), ("a", 2, 0), ("b", 1, 1), ("b", 2, 1)],
    ],
    ids=["all", "a method", "no common seed"],
)
def test_missing_runs_leave_what_is_there(tmp_path: Path, missing: list[Run]) -> None:
    def accuracy(method: str, count: int, seed: int) -> float:
        return 0.5 + 0.1 * count + 0.05 * (method == "b")

    made = curve_of(tmp_path, missing=missing, accuracy=accuracy)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ("there is no curve yet" in page) == (len(missing) == 8)
    assert f"{len(missing)} of 8 runs have no results" in " ".join(made.notes)


def test_beyond_the_range_is_said_in_words(tmp_path: Path) -> None:
    def accuracy(method: str, count: int, seed: int) -> float:
        return 0.5 + 0.02 * count + 0.3 * (method == "b") + 0.01 * seed

    made = curve_of(tmp_path, accuracy=accuracy)
    assert sentences(made) == [
        "b with 1 label per class is worth more than 2 labels per class of a"
    ]
    assert "| b | more than 2 | more than 2 |" in (tmp_path / "comparison.md").read_text("utf-8")


def test_odd_names_are_escaped(tmp_path: Path) -> None:
    def accuracy(method: str, count: int, seed: int) -> float:
        return 0.5 + 0.0004 * count + (0.05 + 0.01 * seed) * (method == "b")

    curve_of(tmp_path, methods=["x|y <i>[red]\udcff", "b"], counts=(1, 1000), accuracy=accuracy)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<i>[red]" not in page
    table = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    assert "<i>" not in table.replace("\\<i", "")
