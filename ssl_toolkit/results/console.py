"""What a person sees of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO, cast

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ssl_toolkit.errors import visible
from ssl_toolkit.files import append_line
from ssl_toolkit.results.health import alarms, collapse, is_evaluation
from ssl_toolkit.streams import Tolerant

Row = dict[str, Any]

MOST_CLASSES = 20
"""Up to so many classes each has a line in the final table; of more only some."""

WORST_CLASSES = 10
"""Lines for classes where there are more."""


class Console:
    """Prints the course of a run and keeps what was printed in its log.

    Args:
        quiet: print warnings and the final table only; the log gets everything.
        verbose: print every row of metrics, not only the evaluations.
        silent: print nothing at all.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False, silent: bool = False) -> None:
        self._silent = silent
        self._quiet = quiet
        self._verbose = verbose
        # Lines are never wrapped or cut in a file: soft_wrap leaves that to whoever reads it.
        file = cast(TextIO, Tolerant(sys.stdout)) if sys.stdout else None
        self._rich = RichConsole(file=file, soft_wrap=True, highlight=False, quiet=silent)
        self._early: list[str] = []
        self._log: Path | None = None
        self._reading: tuple[int, float] | None = None
        self._reading_began = 0.0

    def log_to(self, path: Path) -> None:
        """Append what is said to a file from now on, what was said before included."""
        self._log = path
        for line in self._early:
            self._write(line)
        self._early = []

    def say(self, text: str, *, important: bool = False) -> None:
        """One line, its controls escaped; shown when quiet only if it is important."""
        text = visible(text)
        if important or not self._quiet:
            self._rich.print(Text(text))
        if self._log is None:
            self._early.append(text)
        else:
            self._write(text)

    def warn(self, text: str) -> None:
        """One line that begins with ``warning:``."""
        self.say(f"warning: {text}", important=True)

    def reading(self, done: int, total: int) -> None:
        """How far the reading of pictures is: a line for a large set, then one for each tenth.

        Tenths that take under ten seconds are not told.
        """
        now = time.monotonic()
        if self._reading is None or done < self._reading[0]:
            self._reading = (done, now)
            self._reading_began = now
            if total >= 2000:
                self.say(f"reading {total} pictures …")
        elif done - self._reading[0] >= total / 10 and now - self._reading[1] >= 10:
            self._reading = (done, now)
            left = (now - self._reading_began) / done * (total - done)
            self.say(f"read {done} of {total} pictures, {_duration(left)} left")

    def training(self, steps: int, before: Iterable[Row] = ()) -> _Course:
        """The course of training: a context manager whose `row` takes rows of metrics.

        Args:
            steps: of the whole run.
            before: rows that a resumed run has already; their alarms are not told again.
        """
        return _Course(self, steps, before)

    def results(self, summary: dict[str, Any]) -> None:
        """The final table."""
        rows = result_rows(summary)
        if self._rich.is_terminal:
            table = Table(show_header=False, title=Text(f"{summary['algorithm']}: results"))
            for name, value in rows:
                table.add_row(Text(visible(name)), Text(visible(value)))
            self._rich.print(table)
        for name, value in rows:
            line = f"{name}: {value}"
            if self._rich.is_terminal:
                self._write(visible(line))
            else:
                self.say(line, important=True)

    def kind(self) -> dict[str, bool]:
        """The arguments that make another one of its kind."""
        return {"quiet": self._quiet, "verbose": self._verbose, "silent": self._silent}

    @property
    def rich(self) -> RichConsole:
        """The console underneath."""
        return self._rich

    def live(self) -> bool:
        """Whether a live line is wanted."""
        return self._rich.is_terminal and not self._rich.is_dumb_terminal and not self._quiet

    def shows(self, row: Row) -> bool:
        """Whether a row of metrics is worth a line."""
        return self._verbose or any(key.endswith(".accuracy") for key in row)

    def _write(self, line: str) -> None:
        if self._log is not None:
            append_line(self._log, line)


class _Course:
    def __init__(self, console: Console, steps: int, before: Iterable[Row]) -> None:
        self._console = console
        self._steps = steps
        self._evaluations = [row for row in before if is_evaluation(row)]
        self._alarms = alarms(self._evaluations, steps=steps)
        self._before = collapse(self._evaluations, steps=steps)
        self.collapsed = False
        """Whether training has collapsed since then; never again for a run resumed after it."""
        self._best: tuple[float, int] | None = None
        self._progress = (
            Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=20),
                TextColumn("{task.description}", markup=False),
                TimeRemainingColumn(compact=True),
                console=console.rich,
                transient=True,
                refresh_per_second=4,
            )
            if console.live()
            else None
        )

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task("", total=self._steps)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def row(self, row: Row) -> None:
        """Show one row of metrics."""
        accuracy = row.get("validation.accuracy")
        if accuracy is not None and (self._best is None or accuracy > self._best[0]):
            self._best = (accuracy, row["step"])
        if self._progress is not None:
            self._progress.update(
                self._task, completed=row["step"], description=visible(_brief(row, self._best))
            )
        if self._console.shows(row):
            self._console.say(
                f"step {row['step']}/{self._steps}  {_brief(row, self._best)}  {self._left(row)}"
            )
        if is_evaluation(row):
            self._alarm(row)

    def _alarm(self, row: Row) -> None:
        """Tell what this evaluation shows to go wrong, once."""
        self._evaluations.append(row)
        found = alarms(self._evaluations, steps=self._steps)
        for text in found:
            if text not in self._alarms:
                self._console.warn(text)
        self._alarms = found
        self.collapsed = collapse(self._evaluations, steps=self._steps) != self._before

    def _left(self, row: Row) -> str:
        step, seconds = row["step"], row["seconds"]
        rest = seconds / step * (self._steps - step)
        return f"{_duration(seconds)}, {_duration(rest)} left"


def _brief(row: Row, best: tuple[float, int] | None) -> str:
    parts = [f"loss {row['train.loss']:.4f}"] if "train.loss" in row else []
    parts += [
        f"{name.removeprefix('train.loss.')} {value:.4f}"
        for name, value in row.items()
        if name.startswith("train.loss.")
    ]
    named = {
        "train.coverage": "coverage",
        "train.pseudo_label_accuracy": "pseudo-label accuracy",
        "validation.accuracy": "validation accuracy",
        "train.labelled.accuracy": "accuracy on the labelled training pictures",
    }
    parts += [f"{text} {row[key]:.4f}" for key, text in named.items() if key in row]
    if best is not None:
        parts.append(f"best {best[0]:.4f} at {best[1]}")
    return "  ".join(parts)


def result_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values of the final table."""
    rows = [("algorithm", f"{summary['algorithm']} (profile {summary['profile']})")]
    rows.append(("backbone", str(summary["backbone"])))
    rows.append(("pictures", ", ".join(f"{v} {k}" for k, v in summary["counts"].items())))
    steps = f"{summary['steps']}"
    if summary["best_step"] is not None:
        steps += f", best validation at {summary['best_step']}"
    rows.append(("steps", steps))
    rows += score_rows({part: summary[part] for part in ("validation", "test")})
    rows.append(("time", _duration(summary["seconds"])))
    return rows


def score_rows(
    results: dict[str, dict[str, Any] | None], *, all_in: str = "summary.json"
) -> list[tuple[str, str]]:
    """Names and values of the scores of parts; of ``validation`` the accuracy alone.

    Args:
        results: scores by part, None for an empty one.
        all_in: what lists every class, when there are too many for the screen.
    """
    rows = []
    for part, scores in results.items():
        if part == "validation":
            told = "none: the last weights are reported"
            told = told if scores is None else f"{scores['accuracy']:.4f}"
            rows.append(("validation" if scores is None else "validation accuracy", told))
        elif scores is None:
            rows.append((part, f"none: there are no {part} pictures"))
        else:
            rows += _part_rows(part, scores, all_in)
    return rows


def _part_rows(part: str, scores: dict[str, Any], all_in: str) -> list[tuple[str, str]]:
    lower, upper = scores["interval"]
    rows = [
        (f"{part} accuracy", f"{scores['accuracy']:.4f} of {scores['count']} pictures"),
        (f"{part} accuracy, 95 % interval", f"{lower:.4f} to {upper:.4f}"),
        (f"{part} balanced accuracy", f"{scores['balanced_accuracy']:.4f}"),
        (f"{part} macro F1", f"{scores['macro_f1']:.4f}"),
        (f"{part} calibration error", f"{scores['ece']:.4f}"),
        (f"{part} negative log-likelihood", f"{scores['nll']:.4f}"),
    ]
    if len(scores["per_class"]) > 5:
        rows.insert(2, (f"{part} top-5 accuracy", f"{scores['top5']:.4f}"))
    classes = [*scores["per_class"].items()]
    if len(classes) > MOST_CLASSES:
        scored = [item for item in classes if item[1]["accuracy"] is not None]
        worst = sorted(scored, key=lambda item: item[1]["accuracy"])[:WORST_CLASSES]
        told = f"the {len(worst)} least accurate of {len(classes):,} ({all_in} lists all)"
        rows.append((f"{part} classes", told))
        classes = worst
    for name, own in classes:
        accuracy = own["accuracy"]
        told = "no pictures" if accuracy is None else f"{accuracy:.4f} of {own['count']}"
        rows.append((f"  {name}", told))
    return rows


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )
