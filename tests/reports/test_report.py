"""The report as a file: what it says, what it leaves out, and what it must never do."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_folders import comparison, run_folder, spread

from ssl_toolkit.comparisons.schema import ComparedRun, Comparison
from ssl_toolkit.reports.html.charts import Axis, Curve, Line, line_chart
from ssl_toolkit.reports.html.curves import draw_charts, join, read_logs, thin
from ssl_toolkit.reports.html.page import write_report
from ssl_toolkit.runs.metrics_log import last_step, metric_rows
from ssl_toolkit.runs.summary import Imbalance

SECTIONS = ("results", "curves", "health", "classes", "mistakes", "configuration")
HOSTILE = ("<script>alert(1)</script>", '"onmouseover=alert(2) x="', "'&\u202e\udc80")


class Page(HTMLParser):
    """What a browser would make of a page: elements with attributes, and text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.lasttag != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def replace(part: Any, **changes: object) -> Any:
    return part.model_copy(update=changes)


def written(compared: Comparison, folder: Path) -> Page:
    write_report(compared, folder / "report.html")
    return Page(folder / "report.html")


def with_member(compared: Comparison, row: int, seed: int, **changes: object) -> Comparison:
    """The comparison with one run changed, and its seed taken out of the scores if it failed."""
    rows = list(compared.rows)
    own = rows[row]
    member: ComparedRun = replace(own.runs[seed], **changes)
    members = (*own.runs[:seed], member, *own.runs[seed + 1 :])
    scores = own.scores
    if not member.completed:
        scores = {
            name: spread({s: v for s, v in result.values.items() if s != seed})
            for name, result in scores.items()
        }
    rows[row] = replace(own, runs=members, scores=scores)
    return replace(compared, rows=tuple(rows))


def test_every_section_is_there_and_named_in_the_contents(tmp_path: Path) -> None:
    page = written(comparison(tmp_path), tmp_path)
    assert tuple(section["id"] for section in page.all("section")) == SECTIONS
    assert [s["aria-labelledby"] for s in page.all("section")] == [f"{id}-h" for id in SECTIONS]
    for chart in page.all("svg"):
        assert chart["class"] == "swatch" or chart.get("aria-labelledby")
    links = [link["href"] for link in page.all("a")]
    assert links == [f"#{name}" for name in SECTIONS]
    assert page.all("html") == [{"lang": "en"}]


def test_the_page_loads_and_executes_nothing_external(tmp_path: Path) -> None:
    page = written(comparison(tmp_path), tmp_path)
    assert page.all("script") == page.all("iframe") == page.all("object") == []
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, value)
    assert re.findall(r"url\(|@import|https?://", page.source) == []
    (policy,) = [m for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in str(policy["content"])


def test_results_are_reported_with_spread_difference_and_p_value(tmp_path: Path) -> None:
    compared = comparison(tmp_path)
    first, second = (row.scores["test.accuracy"] for row in compared.rows)
    text = written(compared, tmp_path).text
    for result in (first, second):
        assert f"{result.mean:.4f} ± {result.deviation:.4f}" in text
    better = max(compared.rows, key=lambda row: row.scores["test.accuracy"].mean).name
    assert f"{better} has the highest mean test accuracy" in text
    difference = compared.rows[1].difference
    assert difference is not None
    assert f"{difference.mean:+.4f}" in text
    assert "0.034" in text
    assert "difference to simple" in text


def test_a_large_p_value_is_not_reported_as_a_difference(tmp_path: Path) -> None:
    compared = comparison(tmp_path)
    second = compared.rows[1]
    assert second.difference is not None
    lucky = replace(
        second,
        scores={**second.scores, "test.accuracy": spread({0: 0.99, 1: 0.98, 2: 0.97})},
        difference=replace(second.difference, p_value=0.034, adjusted_p_value=0.4),
    )
    compared = replace(compared, rows=(compared.rows[0], lucky))
    assert (
        "adjusted for the number of rows, p = 0.4000): these seeds do not distinguish the two."
        in written(compared, tmp_path).text
    )


def test_rows_with_equal_means_are_named_together(tmp_path: Path) -> None:
    compared = comparison(tmp_path)
    values: tuple[dict[int, float], ...] = ({0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.2, 1: 0.2, 2: 0.2})
    rows = [
        replace(row, scores={**row.scores, "test.accuracy": spread(of)})
        for row, of in zip(compared.rows, values, strict=True)
    ]
    names = " and ".join(row.name for row in rows)
    text = written(replace(compared, rows=tuple(rows)), tmp_path).text
    assert f"{names} have the same highest mean test accuracy: 0.2000." in text
    assert "has the highest mean" not in text


def test_every_long_tail_is_reported(tmp_path: Path) -> None:
    compared = comparison(tmp_path)
    for seed, most in enumerate((4, 8)):
        tail = Imbalance(ratios=("labels 4",), labels={"a": most, "b": 1}, pool=None)
        summary = replace(compared.rows[0].runs[seed].summary, imbalance=tail)
        compared = with_member(compared, 0, seed, summary=summary)
    tails = "labels 4 (4 to 1 labels in a class); labels 4 (8 to 1 labels in a class)"
    assert f"Drawn with an imbalance of {tails}." in written(compared, tmp_path).text


def test_an_upper_bound_does_not_win_and_an_allowed_difference_is_marked(tmp_path: Path) -> None:
    compared = comparison(tmp_path)
    bound = replace(
        compared.rows[1],
        uses_hidden_labels=True,
        overrides={"lr": 0.01, "labels": None},
        scores={"test.accuracy": spread({0: 0.99, 1: 0.99, 2: 0.98})},
    )
    text = written(replace(compared, rows=(compared.rows[0], bound)), tmp_path).text
    assert "simple has the highest mean test accuracy of the rows that do not use" in text
    assert "upper bound: uses the hidden labels" in text
    assert "by permission: lr=0.01" in text
    assert "by permission: labels=null" in text


def test_a_single_run_has_no_spread_and_no_comparison(tmp_path: Path) -> None:
    compared = comparison(tmp_path, names=["simple"], seeds=1)
    page = written(compared, tmp_path)
    for word in ("±", "interval", "baseline", "paired"):
        assert word not in page.text
    assert 'class="band' not in page.source
    assert page.text.count("seeds") == page.text.count("how much the result varies over seeds") == 1
    assert "Report of one run" in page.text


def test_one_seed_per_row_shows_no_spread(tmp_path: Path) -> None:
    page = written(comparison(tmp_path, seeds=1), tmp_path)
    assert "±" not in page.text
    assert 'class="band' not in page.source
    assert "One completed seed per row, so there is no spread to show" in page.text


def test_a_failed_run_is_named_with_its_reason_and_never_counted(tmp_path: Path) -> None:
    compared = comparison(tmp_path)
    reason = "loss 'pair' is not finite at step 310"
    compared = with_member(compared, 1, 2, status="failed", reason=reason, summary=None)
    page = written(compared, tmp_path)
    assert f"mixmatch, seed 2 : failed. {reason}" in page.text.replace("seed 2:", "seed 2 :")
    assert "Of 6 runs, 1 failed: not in any mean below." in page.text
    assert "mixmatch, 2 seeds" in page.text  # its confusion matrix
    assert "nan" not in page.text.lower().split()


def test_rows_without_any_result_are_shown_as_such(tmp_path: Path) -> None:
    compared = comparison(tmp_path, seeds=1)
    for row in (0, 1):
        compared = replace(
            compared,
            rows=tuple(
                replace(
                    own,
                    scores={},
                    difference=None,
                    runs=(
                        ComparedRun(
                            row=own.name,
                            seed=0,
                            folder=tmp_path / "absent" / own.name,
                            status="missing",
                            reason="not started",
                        ),
                    ),
                )
                if place == row
                else own
                for place, own in enumerate(compared.rows)
            ),
        )
        text = written(compared, tmp_path).text
        assert f"{compared.rows[row].name}, seed 0: missing. not started" in text
    assert "No run is completed, so there are no results yet." in text
    assert "No run has a readable log." in text


@pytest.mark.parametrize("hostile", HOSTILE)
def test_foreign_text_is_not_markup(tmp_path: Path, hostile: str) -> None:
    classes = ("plain", hostile.replace("\udc80", "?"))
    compared = comparison(tmp_path, names=["simple", hostile], classes=classes)
    reason = f"class {hostile} has no images"
    compared = with_member(compared, 1, 0, status="failed", reason=reason)
    marked = replace(compared.rows[1], overrides={hostile: hostile})
    compared = replace(
        compared,
        name=hostile,
        rows=(compared.rows[0], marked),
        notes=(hostile,),
        shared={"data": hostile, "nested": {hostile: [hostile]}},
    )
    clean = written(comparison(tmp_path / "clean", names=["simple", "other"]), tmp_path)
    page = written(compared, tmp_path)
    assert page.all("script") == []
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in clean.elements} | {"br", "li"}
    names = {name for _, attributes in page.elements for name in attributes}
    assert names <= {name for _, attributes in clean.elements for name in attributes}
    assert hostile.replace("\udc80", "\\udc80") in "".join(page.texts)


def test_runs_of_older_versions_report_missing_fields(tmp_path: Path) -> None:
    new = written(comparison(tmp_path / "new"), tmp_path)
    old = written(comparison(tmp_path / "old", old=True), tmp_path)
    for key in ("train.largest_class_share", "train.pair_both_false"):
        assert (key in new.text, key in old.text) == (True, False)
    assert "train.pair_confidence" in old.text
    assert "so without a chart: Share of the most frequent pseudo label; Shift" in old.text
    assert "The class distribution of the pseudo labels was not recorded" in old.text
    assert "No images of mistakes are stored" in old.text
    assert "Pseudo labels by class" in new.text
    assert len(new.all("img")) == 24
    assert old.all("img") == []


def test_a_row_without_a_metric_is_named_beside_the_chart(tmp_path: Path) -> None:
    compared = comparison(tmp_path / "new", names=["simple", "mixmatch", "fixmatch"])
    for seed in range(3):
        run_folder(tmp_path / "old" / str(seed), seed, old=True)
        compared = with_member(compared, 2, seed, folder=tmp_path / "old" / str(seed))
    assert "; not logged by fixmatch" in written(compared, tmp_path).text


def test_metrics_are_charted_under_the_titles_that_algorithms_declare(tmp_path: Path) -> None:
    compared = comparison(tmp_path / "runs", names=["simple", "not_installed"], seeds=1)
    for row in compared.rows:
        log = row.runs[0].folder / "metrics.jsonl"
        rows = log.read_text("utf-8").splitlines()
        more = [{**json.loads(line), "train.undeclared": 0.25} for line in rows]
        log.write_text("".join(f"{json.dumps(row)}\n" for row in more), encoding="utf-8")
    text = written(compared, tmp_path).text
    charts = text[text.index("Metrics of the algorithms") :]
    for title in (
        "Pairs above the confidence threshold share of all pairs",
        "False pairs above both thresholds share of those pairs whose hidden labels differ",
        "Numbers: undeclared train.undeclared",
    ):
        assert title in charts
    alone = comparison(tmp_path / "alone", names=["not_installed"], seeds=1)
    assert "Pairs above" not in written(alone, tmp_path).text
    assert "pair_both_false" in written(alone, tmp_path).text


def test_alarms_are_reported_with_their_runs(tmp_path: Path) -> None:
    compared = comparison(tmp_path, seeds=2)
    folder = compared.rows[0].runs[1].folder
    rows = [
        f'{{"format": 1, "step": {10 * k}, "validation.accuracy": {0.9 if k < 5 else 0.3}}}'
        for k in range(1, 11)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    text = written(compared, tmp_path).text
    assert "Training raised 1 alarm." in text
    assert re.search(r"simple, seed 1 ?: the validation accuracy fell from 0\.9000", text)
    calm = written(comparison(tmp_path / "calm", seeds=2), tmp_path).text
    assert "No alarm" in calm
    assert "Training raised" not in calm


def test_many_classes_give_pairs_and_a_sorted_table_in_place_of_a_matrix(tmp_path: Path) -> None:
    classes = [f"kind {k}" for k in range(31)]
    text = written(comparison(tmp_path, seeds=1, classes=classes), tmp_path).text
    assert "Most confused pairs of simple" in text
    assert "worst first" in text
    assert "Confusion matri" not in text
    few = written(comparison(tmp_path / "few", seeds=1), tmp_path).text
    assert "Confusion matrices" in few
    assert "worst first" not in few


def test_the_confusion_matrix_sums_the_seeds(tmp_path: Path) -> None:
    compared = comparison(tmp_path, names=["simple"], seeds=2, classes=("cat", "dog"))
    counts = np.zeros((2, 2), int)
    for member in compared.rows[0].runs:
        with np.load(member.folder / "predictions.npz") as arrays:
            predicted = arrays["test_probabilities"].argmax(axis=1)
            np.add.at(counts, (arrays["test_labels"], predicted), 1)
    page = written(compared, tmp_path)
    heat = page.source.partition('<table class="heat">')[2].partition("</table>")[0]
    cells = [int(cell or 0) for cell in re.findall(r"<td[^>]*>(\d*)</td>", heat)]
    assert cells == counts.ravel().tolist()


def test_damaged_files_are_skipped(tmp_path: Path) -> None:
    compared = comparison(tmp_path, seeds=1)
    folder = compared.rows[0].runs[0].folder
    (folder / "predictions.npz").write_bytes(b"PK\x03\x04 cut")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"format": 1, "step": 410, "train.lo')
    text = written(compared, tmp_path).text
    assert "Without readable predictions: simple." in text
    assert "Validation accuracy" in text


def test_a_log_is_read_up_to_the_truncated_line(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(
        b'{"format": 1, "step": 1, "a": 0.5}\n{"format": 1, "step": 2}\n'
        b'{"format": 1, "step": 3, "a"\xe2'
    )
    assert list(metric_rows(log)) == [{"step": 1, "a": 0.5}, {"step": 2}]
    assert last_step(log) == 2
    assert list(metric_rows(tmp_path / "absent")) == []
    assert last_step(tmp_path / "absent") == 0


def test_the_last_step_is_read_from_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    rows = "".join(f'{{"format": 1, "step": {n}, "train.loss": 0.5}}\n' for n in range(1, 4000))
    log.write_text(rows + '{"format": 1, "step": 4000, "tr', encoding="utf-8")
    assert log.stat().st_size > 1 << 16
    assert last_step(log) == 3999


def test_accuracy_is_drawn_over_steps_and_over_seconds(tmp_path: Path) -> None:
    compared = comparison(tmp_path, seeds=2)
    charts = draw_charts(compared, read_logs(compared))["learning"][0]
    steps, time = (chart for chart in charts if chart.title.startswith("Validation accuracy"))
    assert (steps.title, time.title) == ("Validation accuracy", "Validation accuracy over time")
    assert "over steps" in steps.drawing
    assert "over seconds" in time.drawing
    assert time.table.rows[0][:2] == ["40", "1.2 (1.2 to 1.2)"]  # of 0.3 s a step
    assert time.table.rows[-1][1] == "12 (12 to 12)"


def test_thinning_keeps_the_mean_and_the_last_step() -> None:
    rows = [{"step": float(k), "a": float(k % 7)} for k in range(1, 1001)]
    curve = join([thin(rows, 1000)])["a"]
    assert len(curve.steps) == 200
    assert curve.steps[-1] == 1000
    assert curve.mean.mean() == pytest.approx(np.mean([row["a"] for row in rows]))


def test_seeds_are_averaged_if_each_has_a_value() -> None:
    first = [{"step": 1.0, "a": 1.0}, {"step": 2.0, "a": 2.0}]
    second = [{"step": 1.0, "a": 3.0}]
    curve = join([thin(first, 2), thin(second, 2)])["a"]
    assert curve.steps.tolist() == [1, 2]
    assert curve.mean.tolist() == [2.0, 2.0]
    assert (curve.low.tolist(), curve.high.tolist()) == ([1.0, 2.0], [3.0, 2.0])
    assert curve.seeds == 2


@pytest.mark.parametrize(
    ("ends", "ticks"),
    [
        ((0.0, 1.0), [0, 0.25, 0.5, 0.75, 1]),
        ((0.0, 1000.0), [0, 250, 500, 750, 1000]),
        ((-0.3, 0.9), [0, 0.5]),
        ((93.7, 97.9), [94, 95, 96, 97]),
    ],
)
def test_ticks_are_round(ends: tuple[float, float], ticks: list[float]) -> None:
    assert Axis(*ends, 0, 1).ticks == pytest.approx(ticks)


def test_a_logarithmic_axis_ticks_at_powers_of_ten() -> None:
    assert Axis(0.0005, 20, 0, 1, log=True).ticks == pytest.approx([0.001, 0.01, 0.1, 1, 10])


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [1e-9, 1e9], [-1.0, 1.0]])
def test_a_line_of_any_values_stays_inside_its_chart(values: list[float]) -> None:
    numbers = np.array(values)
    curve = Curve(np.arange(1, len(values) + 1), numbers, numbers, numbers, 1)
    drawing = str(line_chart("a", "Loss", [Line("simple", 0, curve)]))
    assert "nan" not in drawing
    assert "inf" not in drawing
    path = re.search(r'class="line c0 d0" d="M([\d.]+) ([\d.]+)', drawing)
    assert path is not None
    assert 44 <= float(path[1]) <= 480
    assert 8 <= float(path[2]) <= 208


def test_six_rows_of_five_seeds_stay_small(tmp_path: Path) -> None:
    names = ["simple", "mixmatch_enhanced", "mixmatch", "fixmatch", "supervised", "fully"]
    compared = comparison(tmp_path, names=names, seeds=5, logged=1000, evaluated=100, side=64)
    write_report(compared, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


def test_the_report_is_complete_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = comparison(tmp_path, seeds=1)
    target = tmp_path / "report.html"
    target.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_report(compared, target)
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.glob(".*")] == []
