"""Page of the metrics: those of the engine, of algorithms and add-ons, and of the summary."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import ssl_toolkit
from site_pages.docstrings import fields_of
from site_pages.tables import cell, code, table
from ssl_toolkit import Metric, registry
from ssl_toolkit.engine.logged_metrics import (
    ENGINE_METRICS,
    TRAIN,
    false_pairs,
    loss_term,
    weighted_term,
)

SUMMARIES = ("RunSummary", "Scores", "ClassScore", "Health", "Counts", "ProbeSummary", "Evaluation")
"""Public classes whose fields are the numbers that are known after a run."""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page."""
    head = ["name", "title", "meaning"]
    terms = [make("NAME") for make in (loss_term, weighted_term, false_pairs)]
    parts = [
        "# Metrics\n",
        "The rows of `metrics.jsonl` and `metrics.csv` have the first two groups, averaged over "
        "the steps since the last row; [loggers](../how-to/loggers.md) receive the same rows. "
        "`summary.json` has the last group. [Files of a run](../reference/files.md) has the form "
        "of these files.\n",
        "## Of every run\n",
        table(head, map(_row, [*ENGINE_METRICS.values(), *terms])),
        "`lr` is the learning rate, `seconds` the time since the start of the run. NAME is the "
        "name of a loss term or of a criterion of pairs of the algorithm.\n",
        "## Of algorithms and add-ons\n",
        table(["plugin", *head], _of_plugins()),
        "## Of a finished run\n",
        "The fields of these classes are the keys of `summary.json`; an `Evaluation` is the result "
        "of `ssl-toolkit evaluate --json`.\n",
    ]
    for name in SUMMARIES:
        owner = getattr(ssl_toolkit, name)
        rows = [[code(key), code(kind), cell(text)] for key, kind, text in fields_of(owner)]
        summary = cell((inspect.getdoc(owner) or "").split("\n")[0])
        parts += [f"### {name}\n", f"{summary}\n", table(["key", "type", "meaning"], rows)]
    yield "metrics", "\n".join(parts)


def _row(metric: Metric) -> list[str]:
    return [code(metric.name), cell(metric.title), cell(metric.help)]


def _of_plugins() -> Iterator[list[str]]:
    for group in ("algorithms", "addons"):
        for entry in registry.entries(group):
            if entry.built_in:
                for metric in registry.load(group, entry.name).metrics:
                    name = code(f"{TRAIN}{metric.name}")
                    yield [code(entry.name), name, cell(metric.title), cell(metric.help)]
