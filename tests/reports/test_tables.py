"""The tables of a comparison, read back."""

from __future__ import annotations

import csv
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_run
from rich.console import Console as RichConsole

from ssl_toolkit.comparisons.gather import gather
from ssl_toolkit.comparisons.schema import SCORES, Comparison, RunLocation
from ssl_toolkit.console import Console
from ssl_toolkit.reports.html.page import write_report
from ssl_toolkit.reports.tables import NAMES, markdown_page, show_table, write_tables

RED = "[red]=a|b"


@pytest.fixture
def made(tmp_path: Path) -> Comparison:
    """A baseline, a row with a failed run and another learning rate, and an oracle."""
    result = []
    for row, algo, first, lr in (
        ("plain", "supervised", 0.80, 0.002),
        (RED, "fixmatch", 0.90, 0.5),
        ("bound", "fully_supervised", 0.97, 0.002),
    ):
        for seed in range(3):
            path = fake_run(
                tmp_path / f"{algo}{seed}", algo=algo, seed=seed, config={"lr": lr},
                accuracy=first + (0.01 * seed if row == "plain" else 0.001 * seed**2),
            )  # fmt: skip
            result.append(RunLocation(row, seed, path))
    damaged = result[5][2] / "summary.json"
    summary = json.loads(damaged.read_text(encoding="utf-8"))
    summary |= {"status": "failed", "reason": "=loss was `nan`"}
    damaged.write_text(json.dumps(summary), encoding="utf-8")
    return gather(result, name="toy <b>", baseline="plain", allow=["lr"])


def shown(comparison: Comparison, *, terminal: bool) -> str:
    console = Console()
    console.rich = RichConsole(
        file=StringIO(), soft_wrap=True, highlight=False, force_terminal=terminal, width=100
    )
    show_table(comparison, console)
    stream = console.rich.file
    assert isinstance(stream, StringIO)
    return stream.getvalue()


def refuse_constant(text: str) -> Any:
    raise AssertionError(f"{text} in strict JSON")


def test_json_is_strict_and_complete(made: Comparison, tmp_path: Path) -> None:
    paths = write_tables(made, tmp_path)
    assert [path.name for path in paths] == [*NAMES]
    tree = json.loads(paths[0].read_text("utf-8"), parse_constant=refuse_constant)
    assert tree["baseline"] == "plain"
    assert tree["seeds"] == [0, 1, 2]
    assert tree["shared"]["ema.decay"] == "0.9"
    plain, other, bound = tree["rows"]
    assert (plain["uses_hidden_labels"], bound["uses_hidden_labels"]) == (False, True)
    assert other["name"] == RED
    assert other["overrides"] == {"lr": "0.5"}
    score = plain["scores"]["test.accuracy"]
    assert score["values"] == pytest.approx({"0": 0.80, "1": 0.81, "2": 0.82})
    assert score["mean"] == pytest.approx(0.81)
    assert score["interval"][0] < 0.81 < score["interval"][1]
    assert other["difference"]["values"] == {"0": 0.1, "1": 0.091}
    assert 0 < bound["difference"]["p_value"] < 1
    assert bound["difference"]["adjusted_p_value"] is None, "a bound competes with nobody"
    failed = other["runs"][2]
    assert (failed["status"], failed["reason"]) == ("failed", "=loss was `nan`")
    assert other["scores"]["test.accuracy"]["values"] == {"0": 0.9, "1": 0.901}
    assert other["runs"][0]["folder"] == "fixmatch0"
    record = other["runs"][1]["record"]
    assert (record["split"], record["initial_weights"]) == ("split1", "weights1")
    assert record["versions"] == {"python": "3.11.7", "torch": "2.14.1"}
    several = {"validation.map", "test.map", "test.micro_f1", "test.exact"}  # --task multilabel
    assert set(plain["scores"]) == set(SCORES) - several


def test_all_tables_follow_from_the_json(made: Comparison, tmp_path: Path) -> None:
    paths = write_tables(made, tmp_path)
    stored = Comparison.read(paths[0])
    assert stored.rows[0].runs[0].summary is None
    assert [p.read_bytes() for p in write_tables(stored, tmp_path / "again")] == [
        path.read_bytes() for path in paths
    ]
    assert shown(stored, terminal=True) == shown(made, terminal=True)


def test_csv_has_a_line_for_each_run_and_runs_nothing(made: Comparison, tmp_path: Path) -> None:
    text = write_tables(made, tmp_path)[1].read_text("utf-8")
    rows = [*csv.DictReader(StringIO(text))]
    assert len(rows) == 9
    assert rows[0]["test.accuracy"] == "0.8"
    assert rows[3]["row"] == RED
    assert rows[3]["overrides"] == "lr=0.5"
    assert rows[0]["overrides"] == "lr=0.002"
    assert (rows[5]["status"], rows[5]["reason"]) == ("failed", "'=loss was `nan`")
    assert {rows[5][name] for name in SCORES} == {""}
    assert [row["uses_hidden_labels"] for row in rows[::3]] == ["no", "no", "yes"]


def test_markdown_marks_what_a_reader_must_know(made: Comparison) -> None:
    page = markdown_page(made)
    lines = page.splitlines()
    assert lines[0] == r"# toy \<b\>"
    head, _, plain, other, bound = (line.split(" | ") for line in lines[2:7])
    assert len({len(line) for line in (head, plain, other, bound)}) == 1
    assert other[0].startswith(r"| \[red\]=a\|b \[2\] \[3\]")
    assert other[1] == "2 of 3"
    assert plain[2] == "0.8100 ± 0.0100"
    assert plain[3] == "0.7839 to 0.8336"
    assert plain[4:8] == ["–"] * 4
    assert other[4].startswith("+0.0955 ± ")
    for footnote in (
        r"\[1\] differs from other rows by permission: lr=0.002",
        r"\[2\] differs from other rows by permission: lr=0.5",
        r"\[3\] \[red\]=a\|b, seed 2: failed: =loss was \`nan\`",
        r"\[4\] uses the hidden labels: an upper bound, not a competitor",
    ):
        assert any(line.rstrip() == footnote for line in lines), footnote
    assert "1 of 9 runs have no results" in page
    assert "torch 2.14.1" in page


def test_piped_lines(made: Comparison) -> None:
    lines = shown(made, terminal=False).splitlines()
    assert lines[0].startswith("plain [1]: n 3, accuracy 0.8100 ± 0.0100, 95 % interval ")
    assert "–" not in lines[0]
    assert lines[1].startswith(f"{RED} [2] [3]: n 2 of 3, accuracy 0.9005 ± 0.0007")
    assert "p (Holm)" in lines[1]
    assert lines[3].startswith("[1] differs from other rows")


def test_a_terminal_gets_tables_that_fit(made: Comparison) -> None:
    text = shown(made, terminal=True)
    assert text.count(RED) == 6  # five tables and a footnote
    tables = [line for line in text.splitlines() if line.startswith(("│", "┏"))]
    assert max(map(len, tables)) <= 100
    assert "0.8100 ± 0.0100" in text


def test_terminal_markdown_and_html_have_the_same_columns_and_numbers(
    made: Comparison, tmp_path: Path
) -> None:
    head, _, *rows = [line for line in markdown_page(made).splitlines() if line.startswith("|")]
    titles = [cell.replace("\\", "").strip() for cell in head.strip("|").split(" | ")]
    assert "NLL" in titles
    write_report(made, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    table = page[page.index("<table>") : page.index("</table>")]
    assert re.findall(r'<th scope="col">([^<]*)</th>', table) == titles
    terminal = shown(made, terminal=True)
    bodies = re.findall(r'<tr><th scope="row".*?</tr>', table, re.DOTALL)
    for line, body in zip(rows, bodies, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")][1:]
        assert re.findall("<td>([^<]*)</td>", body) == cells
        assert all(cell in terminal for cell in cells)


def test_seconds_to_levels_are_columns(made: Comparison, tmp_path: Path) -> None:
    for row in made.rows:
        for run in row.completed_runs:
            accuracies = enumerate((0.5, 0.88, 0.97 if row.uses_hidden_labels else 0.9), start=1)
            lines = (
                {"format": 1, "step": k, "seconds": k + run.seed, "validation.accuracy": accuracy}
                for k, accuracy in accuracies
            )
            (run.folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    again = [RunLocation(run.row, run.seed, run.folder) for run in made.runs]
    timed = gather(again, name="timed", baseline="plain", allow=["lr"])
    plain, other, bound = (line.split(" | ") for line in markdown_page(timed).splitlines()[4:7])
    assert plain[-2:] == ["3.0 ± 1.0", "0 of 3 seeds |"]
    assert [cell.strip(" |") for cell in other[-2:]] == ["2.5 ± 0.7", "0 of 2 seeds"]
    assert bound[-1].startswith("4.0 ± 1.0")
    assert "seconds to 95 % of the upper bound" in markdown_page(timed)
    assert "up to the first evaluation" in markdown_page(timed)
    with write_tables(timed, tmp_path)[1].open(newline="", encoding="utf-8") as file:
        lines = [*csv.DictReader(file)]
    assert [line["seconds_to_90"] for line in lines[:3]] == ["2.0", "3.0", "4.0"]
    assert lines[0]["seconds_to_95"] == ""


def test_one_seed_shows_no_spread(made: Comparison, tmp_path: Path) -> None:
    result = [RunLocation(row.name, 0, row.runs[0].folder) for row in made.rows]
    single = gather(result, name="one", baseline="plain", allow=["lr"])
    page = markdown_page(single)
    assert "±" not in page
    assert "interval" not in page
    assert "| p |" not in page
    assert "0.8000" in page
    assert "+0.1000" in page
    assert "one seed each: the spread over seeds is unknown" in page
    row = json.loads(write_tables(single, tmp_path / "out")[0].read_text("utf-8"))["rows"][1]
    assert row["scores"]["test.accuracy"]["deviation"] is None
    assert row["difference"]["p_value"] is None


def test_validation_replaces_missing_test_scores(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run", summary={"test": None})
    page = markdown_page(gather([RunLocation("plain", 0, path)], name="untested"))
    assert "| row | n | validation accuracy | convergence step |" in page


def test_nothing_but_failures(tmp_path: Path) -> None:
    made = gather([RunLocation("plain", 0, tmp_path / "a")], name="none", baseline="plain")
    page = markdown_page(made)
    assert "| plain \\[1\\] | 0 of 1 |" in page
    assert "missing" in page
    write_tables(made, tmp_path)
    assert "0 of 1" in shown(made, terminal=False)
    assert "0 of 1" in shown(made, terminal=True)


def test_values_that_json_cannot_represent(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run", options={"limit": float("inf")})
    made = gather([RunLocation("a\udcff\nb", 0, path)], name="odd \udcff")
    paths = write_tables(made, tmp_path)
    tree = json.loads(paths[0].read_text("utf-8"), parse_constant=refuse_constant)
    assert tree["rows"][0]["options"] == {"limit": ".inf"}
    assert "\\xff" in tree["name"]
    assert r"| a\\xff b |" in paths[2].read_text("utf-8")


def test_tables_are_the_same_each_time(made: Comparison, tmp_path: Path) -> None:
    first = [path.read_bytes() for path in write_tables(made, tmp_path / "a")]
    assert [path.read_bytes() for path in write_tables(made, tmp_path / "a")] == first
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(NAMES)


def test_the_terminal_output_goes_through_the_console(
    made: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    show_table(made, Console(quiet=True))
    assert capsys.readouterr().out.startswith("plain [1]: n 3")
