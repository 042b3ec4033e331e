"""Plot the learning curves of runs, from their ``metrics.jsonl``, as one SVG image.

    python benchmarks/course.py OUTPUT.svg NAME=RUN [NAME=RUN ...]

There is one panel for each of: validation accuracy, coverage, accuracy of the used pseudo labels,
share of the largest class among them, and shares of pairs above the thresholds of confidence, of
similarity and of both. Each panel has one line per run. The numbers are written to OUTPUT.csv.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

PANELS = {
    "validation.accuracy": "validation accuracy",
    "train.coverage": "coverage",
    "train.pseudo_label_accuracy": "accuracy of used pseudo labels",
    "train.largest_class_share": "share of the largest class",
    "train.pair_confidence": "pairs confident",
    "train.pair_similarity": "pairs similar",
    "train.pair_both": "pairs above both",
}
COLORS = ("#c0392b", "#2471a3", "#1e8449", "#7d3c98")
COLUMNS, WIDTH, HEIGHT, MARGIN, GAP = 4, 200, 120, 40, 44


def read_evaluations(run: Path) -> list[dict[str, float]]:
    """Return the plotted columns of a run, a row per evaluation."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open(encoding="utf-8")]
    names = ("step", *PANELS)
    evaluations = [row for row in rows if "validation.accuracy" in row]
    return [{name: row[name] for name in names if name in row} for row in evaluations]


def draw(runs: dict[str, list[dict[str, float]]]) -> str:
    """Return the image as SVG."""
    rows = -(-len(PANELS) // COLUMNS)
    size = f"{MARGIN + COLUMNS * (WIDTH + GAP)} {MARGIN + rows * (HEIGHT + GAP)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, (name, color) in enumerate(zip(runs, COLORS, strict=False)):
        parts.append(f'<text x="{MARGIN + 240 * i}" y="16" fill="{color}">— {escape(name)}</text>')
    last = max(row["step"] for rows_ in runs.values() for row in rows_)
    for i, (key, title) in enumerate(PANELS.items()):
        x = MARGIN + i % COLUMNS * (WIDTH + GAP)
        y = MARGIN + i // COLUMNS * (HEIGHT + GAP)
        parts += _frame(x, y, title, last)
        for rows_, color in zip(runs.values(), COLORS, strict=False):
            points = " ".join(
                f"{x + WIDTH * row['step'] / last:.1f},{y + HEIGHT * (1 - row[key]):.1f}"
                for row in rows_
                if key in row
            )
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.6"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _frame(x: int, y: int, title: str, last: float) -> list[str]:
    bottom = y + HEIGHT + 13
    parts = [f'<text x="{x}" y="{y - 6}">{escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        height = y + HEIGHT * (1 - share)
        parts += [
            f'<path d="M{x} {height}h{WIDTH}" stroke="#ddd"/>',
            f'<text x="{x - 5}" y="{height + 4}" text-anchor="end">{share:g}</text>',
        ]
    parts += [
        f'<text x="{x}" y="{bottom}">0</text>',
        f'<text x="{x + WIDTH}" y="{bottom}" text-anchor="end">step {last:.0f}</text>',
    ]
    return parts


def main(arguments: Sequence[str]) -> None:
    """Write the image, and its numbers as CSV."""
    if len(arguments) < 2 or any("=" not in pair for pair in arguments[1:]):
        raise SystemExit("usage: course.py OUTPUT.svg NAME=RUN [NAME=RUN ...]")
    output = Path(arguments[0])
    runs = {
        name: read_evaluations(Path(run))
        for name, _, run in (pair.partition("=") for pair in arguments[1:])
    }
    output.write_text(draw(runs), encoding="utf-8")
    with output.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["run", "step", *PANELS], lineterminator="\n")
        table.writeheader()
        for name, rows in runs.items():
            for row in rows:
                rounded = {key: f"{value:.6g}" for key, value in row.items()}
                table.writerow({"run": name} | rounded)


if __name__ == "__main__":
    main(sys.argv[1:])
