"""Draw the figures of the documentation.

    python benchmarks/figures.py architecture      docs/figures/architecture.svg
    python benchmarks/figures.py curves [REPORT]   docs/figures/learning-curves.svg
    python benchmarks/figures.py report REPORT     docs/figures/report.png

The ranks of the packages are those of tests/project/test_architecture.py. `curves` writes the
numbers of a report to learning-curves.csv, and without a folder draws those. `report` takes an
image of the folder's report.html, with chromium. The figures show this comparison:

    ssl-toolkit compare --algos supervised,simple,fixmatch --seeds 0,1 --dataset mnist5k \
        --labels-per-class 4 --steps 500 --jobs 1 --threads 1 --output runs/mnist
    ssl-toolkit report runs/mnist/runs/*/* --name "MNIST-5k with 40 labels" --output runs/report
"""

from __future__ import annotations

import ast
import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ssl_toolkit.comparisons.schema import Comparison
from ssl_toolkit.reports.html.charts import Curve, Line, line_chart
from ssl_toolkit.reports.html.curves import read_logs

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
STYLE = ROOT / "ssl_toolkit" / "reports" / "html" / "templates" / "report.css"
PANELS = {
    "validation.accuracy": "Validation accuracy",
    "train.coverage": "Share of the pool with a used pseudo label",
}
COLUMNS = ("row", "metric", "step", "mean", "low", "high", "seeds")
PANEL, GAP = (480, 236), 24

Curves = Mapping[str, Mapping[str, Curve]]
"""By metric, then by row."""


def main(arguments: Sequence[str]) -> None:
    """Draw one figure."""
    figure, *folders = arguments or ("",)
    if figure == "architecture" and not folders:
        (FIGURES / "architecture.svg").write_text(architecture(), encoding="utf-8")
    elif figure == "curves" and len(folders) <= 1:
        table = FIGURES / "learning-curves.csv"
        if folders:
            write_curves(Path(folders[0]), table)
        (FIGURES / "learning-curves.svg").write_text(curves(table), encoding="utf-8")
    elif figure == "report" and len(folders) == 1:
        screenshot(Path(folders[0]) / "report.html", FIGURES / "report.png")
    else:
        raise SystemExit("usage: figures.py architecture | curves [REPORT] | report REPORT")


# --- learning curves ----------------------------------------------------------------------------


def write_curves(report: Path, table: Path) -> None:
    """Write the mean, lowest and highest value of each row over its seeds."""
    read = Comparison.read(report / "comparison.json")
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row, of_row in zip(read.rows, read_logs(read).curves, strict=True):
            for metric in (key for key in PANELS if key in of_row):
                curve = of_row[metric]
                values = zip(curve.steps, curve.mean, curve.low, curve.high, strict=True)
                for step, *numbers in values:
                    rounded = [f"{number:.4g}" for number in numbers]
                    writer.writerow([row.name, metric, step, *rounded, curve.seeds])


def read_curves(table: Path) -> tuple[list[str], Curves]:
    """Return the names of the rows, and their curves."""
    with table.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    names = list(dict.fromkeys(line["row"] for line in lines))
    result: dict[str, dict[str, Curve]] = {metric: {} for metric in PANELS}
    for metric, of_metric in result.items():
        for name in names:
            points = [n for n in lines if (n["row"], n["metric"]) == (name, metric)]
            if points:
                mean, low, high = (
                    np.array([float(point[key]) for point in points])
                    for key in ("mean", "low", "high")
                )
                steps = np.array([int(point["step"]) for point in points])
                of_metric[name] = Curve(steps, mean, low, high, int(points[0]["seeds"]))
    return names, result


def curves(table: Path) -> str:
    """Return the charts of the report as one SVG image."""
    names, metrics = read_curves(table)
    parts = []
    for k, (metric, title) in enumerate(PANELS.items()):
        lines = [
            Line(name, index, metrics[metric][name])
            for index, name in enumerate(names)
            if name in metrics[metric]
        ]
        place = f'<svg x="{k * (PANEL[0] + GAP)}" y="22" width="{PANEL[0]}" height="{PANEL[1]}"'
        chart = line_chart(f"chart{k}", title, lines)
        parts.append(f'<text class="title" x="{k * (PANEL[0] + GAP) + 8}" y="16">{title}</text>')
        parts.append(str(chart).replace("<svg", place, 1))
    return svg(2 * PANEL[0] + GAP, PANEL[1] + 26, chart_style(), parts)


def chart_style() -> str:
    """Return the rules of the report's style sheet that its charts need, in light colors."""
    style = STYLE.read_text(encoding="utf-8")
    (colors,) = re.findall(r"\A:root \{(.*?)\n\}", style, re.DOTALL)
    wanted = r"^(?:svg text|\.grid|\.axis|\.line|\.band|\.c[0-7]\b).*$"
    rules = re.findall(wanted, style, re.MULTILINE)
    title = "svg text.title { font-size: 13px; font-weight: 600; fill: var(--ink); }"
    colors = colors.replace("color-scheme: light dark;", "")
    return "\n".join([f"svg {{{colors} }}", *rules, title])


# --- the architecture ---------------------------------------------------------------------------


def ranks() -> dict[str, int]:
    """Return the rank of each package, as the test of the architecture has them."""
    tree = ast.parse((ROOT / "tests/project/test_architecture.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RANKS":
            found: dict[str, int] = ast.literal_eval(node.value)
            return found
    raise SystemExit("error: tests/project/test_architecture.py has no RANKS")


HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555c66"/></marker></defs>'
)


def box(kind: str, x: float, y: float, text: str) -> tuple[str, float]:
    """Return a labeled box of a class of the style, and its right edge."""
    right = x + 7.6 * len(text) + 16
    frame = f'<rect class="{kind}" x="{x:g}" y="{y}" width="{right - x:g}" height="28" rx="4"/>'
    return f'{frame}<text x="{x + 8:g}" y="{y + 18}">{text}</text>', right


def arrow(path: str) -> str:
    """Return an arrow along a path."""
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'


def architecture() -> str:
    """Return the packages by rank as an SVG image, the commands at the top."""
    by_rank: dict[int, list[str]] = {}
    for name, rank in ranks().items():
        by_rank.setdefault(rank, []).append(name)
    public = {"interfaces", "ops", "image_ops"}
    width, top, row = 900, 40, 38
    parts = [
        '<text x="16" y="22">A package imports packages of lower rows only. '
        "Plugins import the public names.</text>"
    ]
    for k, rank in enumerate(sorted(by_rank, reverse=True)):
        y, x = top + k * row, 60.0
        parts.append(f'<text class="rank" x="16" y="{y + 19}">{rank}</text>')
        for name in by_rank[rank]:
            drawn = box("public" if name in public else "box", x, y, name)
            parts.append(drawn[0])
            x = drawn[1] + 8
        if public & set(by_rank[rank]):
            parts += [arrow(f"M{width - 150} {y + 14}H{x + 6:g}")]
            parts += [box("plugin", width - 148, y, "built-in plugins")[0]]
            parts += [arrow(f"M{width - 148} {y - row + 14}L{x + 6:g} {y + 8}")]
            parts += [box("plugin", width - 148, y - row, "your plugins")[0]]
    bottom = top + len(by_rank) * row + 6
    parts += [arrow(f"M44 {top + 4}V{bottom - 14}"), HEAD]
    style = """svg text { font: 12px system-ui, sans-serif; fill: #1b1f24; }
svg text.rank { fill: #555c66; }
.box { fill: #f4f6f8; stroke: #b9c0c9; }
.public { fill: #dcebf7; stroke: #0072b2; }
.plugin { fill: #fff4ec; stroke: #c2500a; }
.arrow { stroke: #555c66; fill: none; }"""
    return svg(width, bottom, style, parts)


def svg(width: int, height: int, style: str, parts: Sequence[str]) -> str:
    """Return an SVG image on white."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
    )
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, f"<style>\n{style}\n</style>", ground, *parts, "</svg>"]) + "\n"


# --- the report ---------------------------------------------------------------------------------


def screenshot(page: Path, image: Path, width: int = 780, height: int = 910) -> None:
    """Save the top of a page as a PNG file of 256 colors."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None or not page.is_file():
        missing = "chromium or google-chrome" if browser is None else page
        raise SystemExit(f"error: {missing} is missing")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        size = f"--window-size={width},{height}"
        command = [browser, *flags, size, f"--screenshot={shot}", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        with Image.open(shot) as opened:
            small = opened.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(image, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
