"""Show the progress of training, and its results."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Self

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from ssl_toolkit.console import Console
from ssl_toolkit.engine import logged_metrics as logged
from ssl_toolkit.errors import visible
from ssl_toolkit.models.known_scores import are_many
from ssl_toolkit.recipes import recipe_name
from ssl_toolkit.runs.health import alarms, collapse, is_evaluation
from ssl_toolkit.runs.scoring import are_uneven, uneven_text
from ssl_toolkit.text import duration

Row = dict[str, Any]

WIDTH = 80
"""Maximum width of a row, unless the number of steps has more than 13 digits."""

MOST_CLASSES = 20
"""Maximum number of classes with a line each in the final table."""

WORST_CLASSES = 10
"""Number of least accurate classes to list if there are more."""


@dataclass(frozen=True)
class _Column:
    head: str
    width: int
    decimals: int = 4


_HARD_SPACE = "\N{NO-BREAK SPACE}"
_STEP, _BEST, _TIME_LEFT = "step", "best", "time left"
_COLUMNS = {
    _STEP: _Column("step", 4, 0),
    logged.LOSS.name: _Column("loss", 8),
    logged.VALIDATION_ACCURACY.name: _Column("val acc", 7),
    logged.LABELED_ACCURACY.name: _Column("train acc", 9),
    logged.VALIDATION_MAP.name: _Column("val mAP", 7),
    logged.LABELED_MAP.name: _Column("train mAP", 9),
    _BEST: _Column("best", 6),
    logged.COVERAGE.name: _Column("coverage", 8),
    logged.PSEUDO_LABEL_ACCURACY.name: _Column("pl acc", 6),
    logged.IMAGES_PER_SECOND.name: _Column("images/s", 8, 0),
    _TIME_LEFT: _Column("time left", 9),
}
"""Columns by metric, in their order."""


_CHOOSING = {logged.VALIDATION_ACCURACY.name, logged.VALIDATION_MAP.name}
"""Metrics that choose the best weights."""


def _choosing(row: Row) -> float | None:
    return next((row[name] for name in _CHOOSING if name in row), None)


class ProgressRows:
    """Format rows of metrics under one header, with the columns of the run.

    Args:
        steps: of the whole run.
        expected: names of metrics that the first row may lack. The accuracy of pseudo labels has
            a column only if the coverage has one.
    """

    def __init__(self, steps: int, expected: Collection[str] = ()) -> None:
        self._step_width = max(_COLUMNS[_STEP].width, len(str(steps)))
        self._expected = set(expected)
        self._seen: set[str] = set()
        self._names: list[str] = []

    @property
    def has_header(self) -> bool:
        """True once there is a header."""
        return bool(self._names)

    def header(self, row: Mapping[str, float]) -> str:
        """Return the header if the row needs one: the first row, or one with a new column."""
        self._seen |= row.keys()
        names = self._seen | self._expected
        if logged.COVERAGE.name not in self._seen:
            names.discard(logged.PSEUDO_LABEL_ACCURACY.name)
        if names & _CHOOSING:
            names.add(_BEST)
        columns = [name for name in _COLUMNS if name in {*names, _STEP, _TIME_LEFT}]
        if columns == self._names:
            return ""
        self._names = columns
        return self._line({name: _COLUMNS[name].head for name in columns})

    def line(self, row: Mapping[str, float], best: float | None, seconds_left: float) -> str:
        """Format a row under the last header; a missing value leaves its cell empty."""
        values = {_BEST: best, **row}
        cells = {_TIME_LEFT: clock(seconds_left)}
        for name in self._names:
            if (value := values.get(name)) is not None:
                cells[name] = fit_number(value, self._width(name), _COLUMNS[name].decimals)
        return self._line(cells)

    def others(self, row: Mapping[str, float]) -> list[str]:
        """Return the metrics without a column, as lines of the same width."""
        parts = [
            f"{name.removeprefix(logged.TRAIN)} {value:.4g}"
            for name, value in row.items()
            if name not in _COLUMNS and name != "seconds"
        ]
        # Lines must not be broken within a part.
        text = "  ".join(part.replace(" ", _HARD_SPACE) for part in parts)
        indent = " " * (self._step_width + 2)
        lines = wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
        return [line.replace(_HARD_SPACE, " ") for line in lines]

    def _width(self, name: str) -> int:
        return self._step_width if name == _STEP else _COLUMNS[name].width

    def _line(self, cells: Mapping[str, str]) -> str:
        return "  ".join(cells.get(name, "").rjust(self._width(name)) for name in self._names)


def fit_number(value: float, width: int, decimals: int) -> str:
    """Format a number with the decimals that fit.

    >>> fit_number(0.98765, 6, 4), fit_number(-123456.789, 7, 4), fit_number(-1.25e10, 8, 4)
    ('0.9877', '-123457', '-1.2e+10')
    """
    fixed = (f"{value:.{digits}f}" for digits in range(decimals, -1, -1))
    scientific = (f"{value:.{digits}e}" for digits in (1, 0))
    texts = [*fixed, *scientific]
    return next((text for text in texts if len(text) <= width), texts[-1])


def clock(seconds: float) -> str:
    """Format a time as h:mm:ss, or in days from 100 hours on.

    >>> clock(3725), clock(1e6)
    ('1:02:05', '12 d')
    """
    if not math.isfinite(seconds):
        return ""
    hours, rest = divmod(max(0, round(seconds)), 3600)
    if hours < 100:
        return f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{fit_number(hours / 24, 7, 0)} d"


class TrainingProgress:
    """Show the progress of training: a context manager whose `row` takes rows of metrics.

    A row per evaluation is printed under one header; on a terminal a progress bar with the same
    fields follows every row of metrics.

    Args:
        console: prints it.
        steps: of the whole run.
        before: earlier rows of a resumed run; their alarms are not repeated.
        expected: as for `ProgressRows`.
    """

    def __init__(
        self,
        console: Console,
        steps: int,
        before: Iterable[Row] = (),
        expected: Collection[str] = (),
    ) -> None:
        self._console = console
        self._steps = steps
        self._evaluations = [row for row in before if is_evaluation(row)]
        self._alarms = alarms(self._evaluations, steps=steps)
        self._before = collapse(self._evaluations, steps=steps)
        self.collapsed: bool = False
        """True if training has collapsed; stays False for a run resumed after a collapse."""
        scores = map(_choosing, self._evaluations)
        self._best = max((value for value in scores if value is not None), default=None)
        self._rows = ProgressRows(steps, expected)
        self._bar = BarColumn(bar_width=20)
        self._progress = (
            Progress(
                TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
                self._bar,
                console=console.rich,
                transient=True,
                refresh_per_second=4,
            )
            if console.live()
            else None
        )

    @property
    def has_header(self) -> bool:
        """True once the header is printed."""
        return self._rows.has_header

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task(f"0 of {self._steps} steps", total=self._steps)
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def row(self, row: Row) -> None:
        """Show one row of metrics."""
        accuracy = _choosing(row)
        if accuracy is not None:
            self._best = accuracy if self._best is None else max(accuracy, self._best)
        printed = self._console.verbose or is_evaluation(row)
        if printed or self._progress is not None:
            if header := self._rows.header(row):
                self._console.say(header)
            left = row["seconds"] / row["step"] * (self._steps - row["step"])
            line = self._rows.line(row, self._best, left)
        if printed:
            self._console.say(line)
        if self._console.verbose:
            for text in self._rows.others(row):
                self._console.say(text)
        if self._progress is not None:
            self._bar.bar_width = max(4, min(20, WIDTH - len(line) - 2))
            self._progress.update(self._task, completed=row["step"], description=line)
        if is_evaluation(row):
            self._alarm(row)

    def _alarm(self, row: Row) -> None:
        """Warn of new problems."""
        self._evaluations.append(row)
        texts = alarms(self._evaluations, steps=self._steps)
        for text in texts:
            if text not in self._alarms:
                self._console.warn(text)
        self._alarms = texts
        self.collapsed = collapse(self._evaluations, steps=self._steps) != self._before


def show_results(console: Console, summary: dict[str, Any]) -> None:
    """Print the final table."""
    rows = result_rows(summary)
    if console.rich.is_terminal:
        table = Table(show_header=False, title=Text(f"{summary['algorithm']}: results"))
        for name, value in rows:
            table.add_row(Text(visible(name)), Text(visible(value)))
        console.rich.print(table)
    for name, value in rows:
        line = f"{name}: {value}"
        if console.rich.is_terminal:
            console.log(visible(line))
        else:
            console.say(line, important=True)


def result_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of the final table."""
    rows = [("algorithm", f"{summary['algorithm']} (profile {summary['profile']})")]
    if summary["recipe"] is not None:
        rows.append(("recipe", recipe_name(summary["recipe"], summary["scale"])))
    rows.append(("backbone", str(summary["backbone"])))
    rows.append(("images", ", ".join(f"{v} {k}" for k, v in summary["counts"].items())))
    steps = f"{summary['steps']}"
    if summary["best_step"] is not None:
        steps += f", best validation at {summary['best_step']}"
    rows.append(("steps", steps))
    if (several := summary["multilabel"]) is None:
        rows += score_rows({part: summary[part] for part in ("validation", "test")})
    else:
        rows += multilabel_rows(several)
    if summary["dropped"] is not None:
        rows.append(("unlabeled images left out", _dropped_text(summary)))
    rows.append(("time", duration(summary["seconds"])))
    return rows


def _dropped_text(summary: dict[str, Any]) -> str:
    dropped, total = summary["dropped"], summary["counts"]["unlabeled"]
    text = f"{dropped['images']:,} of {total:,}"
    if dropped["strangers"] is not None:
        share = f"{dropped['strangers']:,} of {summary['strangers']:,} strangers"
        text += f", with {share} (AUROC {dropped['auroc']:.3f})"
    expected = dropped["expected"]
    if expected is not None and not are_many(**expected):
        text += f"; validation images show few strangers or none ({expected['share']:.0%})"
    return text


def score_rows(
    results: dict[str, dict[str, Any] | None], *, all_in: str = "summary.json"
) -> list[tuple[str, str]]:
    """Return names and values of the scores of parts; only the accuracy of ``validation``.

    Args:
        results: scores by part, None for an empty one.
        all_in: file or option that lists all classes if the terminal shows only some.
    """
    rows = []
    for part, scores in results.items():
        if part == "validation":
            text = "none: the last weights are reported"
            text = text if scores is None else f"{scores['accuracy']:.4f}"
            rows.append(("validation" if scores is None else "validation accuracy", text))
        elif scores is None:
            rows.append((part, f"none: there are no {part} images"))
        else:
            rows += _part_rows(part, scores, all_in)
    return rows


def multilabel_rows(
    results: Mapping[str, dict[str, Any] | None], *, all_in: str = "summary.json"
) -> list[tuple[str, str]]:
    """Return names and values of the scores of parts under ``--task multilabel``.

    Args:
        results: as for `score_rows`, of `MultiLabelScores`.
        all_in: as for `score_rows`.
    """
    rows = []
    for part, scores in results.items():
        if scores is None:
            rows.append((part, f"none: there are no {part} images"))
            continue
        rows.append((f"{part} mAP", f"{scores['map']:.4f} of {scores['count']} images"))
        if part == "validation":
            continue
        lower, upper = scores["interval"]
        rows += [
            (f"{part} mAP, 95 % interval", f"{lower:.4f} to {upper:.4f}"),
            (f"{part} micro F1", f"{scores['micro_f1']:.4f}"),
            (f"{part} macro F1", f"{scores['macro_f1']:.4f}"),
            (f"{part} all classes right", f"{scores['exact']:.4f}"),
        ]
        classes = [*scores["per_class"].items()]
        if len(classes) > MOST_CLASSES:
            classes.sort(key=lambda item: item[1]["average_precision"] or 2.0)
            text = f"the {WORST_CLASSES} least precise of {len(classes):,} ({all_in} lists all)"
            rows.append((f"{part} classes", text))
            classes = classes[:WORST_CLASSES]
        for name, score in classes:
            precision, count = score["average_precision"], score["count"]
            text = "no images" if precision is None else f"AP {precision:.4f} of {count} images"
            f1 = f"F1 {score['f1']:.4f} with threshold {score['threshold']:.3f}"
            rows.append((f"  {name}", f"{text}, {f1}"))
    return rows


def _part_rows(part: str, scores: dict[str, Any], all_in: str) -> list[tuple[str, str]]:
    lower, upper = scores["interval"]
    accuracy = [
        (f"{part} accuracy", f"{scores['accuracy']:.4f} of {scores['count']} images"),
        (f"{part} accuracy, 95 % interval", f"{lower:.4f} to {upper:.4f}"),
    ]
    balanced = [(f"{part} balanced accuracy", f"{scores['balanced_accuracy']:.4f}")]
    counts = [one["count"] for one in scores["per_class"].values()]
    if are_uneven(counts):
        name, value = balanced[0]
        balanced[0] = name, f"{value}, which ranks: {uneven_text(counts)}"
        if scores.get("balanced_interval"):
            lower, upper = scores["balanced_interval"]
            balanced.append((f"{name}, 95 % interval", f"{lower:.4f} to {upper:.4f}"))
    rows = [
        *(balanced + accuracy if are_uneven(counts) else accuracy + balanced),
        (f"{part} macro F1", f"{scores['macro_f1']:.4f}"),
        (f"{part} calibration error", f"{scores['ece']:.4f}"),
        (f"{part} negative log-likelihood", f"{scores['nll']:.4f}"),
    ]
    if len(scores["per_class"]) > 5:
        place = rows.index(accuracy[-1]) + 1
        rows.insert(place, (f"{part} top-5 accuracy", f"{scores['top5']:.4f}"))
    classes = [*scores["per_class"].items()]
    if len(classes) > MOST_CLASSES:
        scored = [item for item in classes if item[1]["accuracy"] is not None]
        worst = sorted(scored, key=lambda item: item[1]["accuracy"])[:WORST_CLASSES]
        text = f"the {len(worst)} least accurate of {len(classes):,} ({all_in} lists all)"
        rows.append((f"{part} classes", text))
        classes = worst
    for name, scored_class in classes:
        accuracy = scored_class["accuracy"]
        text = "no images" if accuracy is None else f"{accuracy:.4f} of {scored_class['count']}"
        rows.append((f"  {name}", text))
    return rows
