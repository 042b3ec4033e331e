"""Names of classes and files: what is written reads back the same, and no terminal obeys one."""

from __future__ import annotations

import ast
import csv
import json
import sys
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from in_process import call
from PIL import Image
from split_tables import table_of
from tiny_images import put, rows_of

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.data.class_names import (
    class_name,
    class_of,
    guarded,
    look_alike,
    name_fault,
    unguarded,
)
from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.listing import Listing
from ssl_toolkit.data.readers.rows import RowErrors, records
from ssl_toolkit.data.splits.draw import draw_split
from ssl_toolkit.data.splits.labels_file import choose_labeled
from ssl_toolkit.data.splits.split_file import load_split, save_split
from ssl_toolkit.errors import DataError, one_line, visible
from ssl_toolkit.inference.pseudo_label import MANIFEST, check_names
from ssl_toolkit.tabular import write_rows

NFC, NFD = "caf\u00e9", "cafe\u0301"
ODD = ("null", "-1", "Unlabeled", " lead", "trail ", "=1+1", "+x", "@x", "'=x", "''null", "'", '"',
       "a,b", "a;b", "tab\t", "\ttab", "a\rb", "\r", "a\nb", "\x1b[31mred", "\x85", "\u2028",
       "\ufeff", "猫", "'s-Hertogenbosch", "1", "01", "nan", "#", "\\xff", " ")  # fmt: skip
"""Names that some reader, spreadsheet or terminal takes for something else."""

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
NAMES |= st.sampled_from(ODD)
"""Names that a file and a table can hold."""

fast = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@fast
@given(NAMES)
def test_an_escaped_cell_reads_back_the_same(name: str) -> None:
    assert unguarded(guarded(name)) == name
    assert class_of(guarded(name, as_label=True)) == name
    assert guarded(name)[0] not in "=+-@\t\r"


@fast
@given(st.lists(st.tuples(NAMES, NAMES), min_size=1), st.sampled_from(["csv", "tsv", "jsonl"]))
@example([(name, name) for name in ODD], "csv")
@example([(name, name) for name in ODD], "tsv")
@example([(name, name) for name in ODD], "jsonl")
def test_a_manifest_reads_back_the_same(
    tmp_path: Path, names: list[tuple[str, str]], suffix: str
) -> None:
    path = tmp_path / f"m.{suffix}"
    write_rows(path, MANIFEST, [[key, name, "labeled", 0.5] for key, name in names])
    bad = RowErrors("m")
    result = list(records(path, bad, "path", []))
    bad.refuse()
    assert [(key, name, split) for _, key, name, split in result] == [
        (key, name, "labeled") for key, name in names
    ]


@fast
@given(st.lists(st.tuples(NAMES, NAMES), min_size=1))
@example([(name, name) for name in ODD])
def test_a_table_of_predictions_reads_back_the_same(
    tmp_path: Path, names: list[tuple[str, str]]
) -> None:
    columns = ["path", "class", "confidence", *(f"p_{name}" for _, name in names)]
    rows = [[key, name, -0.5, *(0.1 for _ in names)] for key, name in names]
    write_rows(tmp_path / "p.csv", columns, rows)
    with (tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
        head, *result = csv.reader(file, strict=True)
    assert [*map(unguarded, head)] == columns
    assert [(unguarded(row[0]), unguarded(row[1]), row[2]) for row in result] == [
        (key, name, "-0.5") for key, name in names
    ]


@fast
@given(st.lists(NAMES, min_size=12, max_size=12, unique=True), st.lists(NAMES, unique=True))
@example([*ODD[:12]], [*ODD])
@example([*ODD[12:24]], [*ODD])
def test_splits_and_lists_of_labels_read_back_the_same(
    tmp_path: Path, keys: list[str], classes: list[str]
) -> None:
    table = table_of([6, 6])
    classes = [*classes, "other one", "other two"][:2]
    table = replace(table, keys=tuple(keys), classes=tuple(classes))
    split = draw_split(table, seed=0, labels_per_class=3)
    save_split(tmp_path / "split.json", table, split)
    again = load_split(tmp_path / "split.json", table)
    assert again.split.labeled.tolist() == split.labeled.tolist()

    chosen = sorted(split.labeled.tolist())
    # A byte order mark at the start of a text file is no part of its first line.
    lines = [
        key
        for key in (keys[row] for row in chosen)
        if "\n" not in key and key.strip() and not key.startswith("\ufeff")
    ]
    (tmp_path / "labels.txt").write_bytes("".join(f"{line}\n" for line in lines).encode())
    if lines:
        _, result = choose_labeled(table, str(tmp_path / "labels.txt"), None)
        assert [keys[row] for row in result] == lines
    rows = [[keys[row], table.classes[table.labels[row]]] for row in chosen]
    if all(class_name(name) == name for name in table.classes):
        write_rows(tmp_path / "labels.csv", ("path", "label"), rows)
        _, result = choose_labeled(table, str(tmp_path / "labels.csv"), None)
        assert result.tolist() == chosen

    written = yaml.dump({"classes": classes})
    assert load_config([_file(tmp_path, written)]).settings.classes == classes


def _file(folder: Path, text: str) -> Path:
    (folder / "c.yaml").write_text(text, encoding="utf-8")
    return folder / "c.yaml"


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "caf\udce9"])
def test_values_that_no_table_can_contain_are_refused_by_name(tmp_path: Path, name: str) -> None:
    assert name_fault(name)
    with pytest.raises(DataError) as caught:
        check_names([name, "b"], Listing([], [], []))
    assert repr(name) in caught.value.messages[0]
    for key, label in (("a.png", name), (f"{name}.png", "y")):
        lines = [{"path": "b.png", "label": "x"}, {"path": key, "label": label}]
        (tmp_path / "l.jsonl").write_text("\n".join(map(json.dumps, lines)))
        with pytest.raises(DataError, match=r"line 2: ") as caught:
            read_data(tmp_path / "l.jsonl")
        assert repr(name)[1:-1] in caught.value.messages[0]
    check_names(["a", *ODD], Listing([], [], []))
    with pytest.raises(DataError, match="not UTF-8, which no manifest can hold: caf"):
        check_names(["a", "b"], Listing([], [Path("caf\udce9.png")], []))


def test_a_bare_word_for_no_label_is_kept(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "c", "d")):
        put(tmp_path / f"{name}.png", number)
    text = "path,label\na.png,'null\nb.png,'s-Hertogenbosch\nc.png,null\nd.png, 'x' \n"
    (tmp_path / "l.csv").write_text(text)
    table = read_data(tmp_path / "l.csv")
    assert table.classes == ("'s-Hertogenbosch", "'x'", "null")
    assert rows_of(table)["c.png"] == ("unlabeled", "")


# ---------------------------------------------------------------- one name in two forms


def classes_of(data: Path) -> tuple[str, ...]:
    return read_data(data).classes


def test_two_unicode_forms_are_one_class(tmp_path: Path) -> None:
    for name in (f"labeled/{NFC}/1", f"labeled/{NFD}/2", "labeled/cafz/1", f"test/{NFD}/1"):
        put(tmp_path / "f" / f"{name}.png", len(name))
    table = read_data(tmp_path / "f")
    assert table.classes == ("cafz", NFC)
    assert table.labels[table.splits == "labeled"].tolist() == [0, 1, 1]
    assert table.labels[table.splits == "test"].tolist() == [1]
    facts = json.loads(call("inspect", tmp_path / "f", "--json").stdout)
    assert facts["per_class"][NFC] == {"labeled": 2, "test": 1}
    alone = tmp_path / "alone"
    for name in (f"{NFC}/1", f"{NFD}/2", "cafz/1"):
        put(alone / f"{name}.png", len(name))
    assert json.loads(call("inspect", alone, "--json").stdout)["layout"] == "folders: <class>/"

    for name in ("l.csv", "l.jsonl", "l.txt"):
        for number in range(3):
            put(tmp_path / f"{number}.png", number)
        labels = {"0.png": NFC, "1.png": NFD, "2.png": "x"}
        lines = {
            "l.csv": ["path,label", *map(",".join, labels.items())],
            "l.jsonl": [json.dumps({"path": key, "label": one}) for key, one in labels.items()],
            "l.txt": map(" ".join, labels.items()),
        }
        (tmp_path / name).write_text("\n".join(lines[name]), encoding="utf-8")
        assert classes_of(tmp_path / name) == (NFC, "x")

    (tmp_path / "labels.csv").write_text(f"path,label\n{NFD}/2.png,{NFD}\n", encoding="utf-8")
    table, chosen = choose_labeled(read_data(alone), str(tmp_path / "labels.csv"), alone)
    assert [table.keys[row] for row in chosen] == [f"{NFD}/2.png"]


def test_classes_in_another_form_are_those_of_the_data(tmp_path: Path) -> None:
    from ssl_toolkit.data.load import load_table

    for name in (NFD, "x"):
        put(tmp_path / name / "1.png", len(name))
    tree = {"data": str(tmp_path), "classes": ["x", NFD]}
    assert load_table(load_config(flags=tree).settings).classes == ("x", NFC)


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["Cat", "cat", "dog"], ["'Cat' and 'cat'"]),
        (["dog", "dog ", "Dog"], ["'dog' and 'dog ' and 'Dog'"]),
        (["a b", "a  b", "ab"], ["'a b' and 'a  b'"]),
        (["stop", "st\u200bop"], [r"'stop' and 'st\u200bop'"]),
        (["x\u00a0y", "x y"], [r"'x\xa0y' and 'x y'"]),
        (["\uff23at", "cat"], ["'\uff23at' and 'cat'"]),
        (["Straße", "STRASSE"], ["'Straße' and 'STRASSE'"]),
        (["1", "01", "I", "l"], []),
    ],
)
def test_names_that_look_alike(names: list[str], groups: list[str]) -> None:
    message = look_alike(names)
    assert [line.split(" are different classes")[0] for line in message] == groups


# ---------------------------------------------------------------- terminals and logs

HOSTILE = ("\x1b]0;owned\x07", "\x1b[31mred", "a\nerror: b", "\x9b31m", "\u202eabc", "plain")


def noise(seed: int) -> bytes:
    file = BytesIO()
    level = np.random.default_rng(seed).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(level).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names") / "data"
    for number, name in enumerate((*HOSTILE, "Plain", "null", "-1", " lead", "=1+1", "a\rb")):
        for place in range(4):
            path = folder / name / f"{'=' * (place == 0)}{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(noise(10 * number + place))
    return folder


RUN = ("run", "--algo", "supervised", "--backbone", "test_resnet", "--image-size", "32", "--steps",
       "2", "--eval-every", "1", "--batch-size", "4", "--device", "cpu")  # fmt: skip


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    folder = data.parent / "run"
    done = call(*RUN, "--data", data, "--test-fraction", "0.25", "--output", folder)
    assert done.returncode == 0, done.stderr
    (data.parent / "out.txt").write_text(done.stdout + done.stderr, encoding="utf-8", newline="")
    return folder


def raw(text: str) -> set[str]:
    """The characters of a text, but its ends of lines, that a terminal would obey."""
    return {c for c in text if c != "\n" and visible(c) != c}


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    """What a command prints where stdout is a terminal without colors."""
    from ssl_toolkit.commands import main

    screen = Screen()
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    with pytest.raises(SystemExit):
        main([str(argument) for argument in arguments])
    monkeypatch.undo()
    return screen.getvalue()


def test_no_name_reaches_a_terminal_or_the_log_raw(
    data: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = (data.parent / "out.txt").read_text("utf-8")
    log = (run / "log.txt").read_text("utf-8")
    for text in (out, log):
        assert not raw(text)
        assert r"\x1b[31mred" in text
        assert r"a\nerror: b" in text
    assert not [line for line in out.splitlines() if line.startswith("error:")]
    assert "warning: 'Plain' and 'plain' are different classes but look alike" in out
    config = data.parent / "hostile.yaml"
    config.write_text('classes: ["\\e[31m", "\\u009b", b]\n')
    for arguments in (
        ("predict", run, data),
        ("pseudo-label", run, data, "--threshold", "0"),
        ("pseudo-label", run, data, "--uncertain", "3"),
        ("evaluate", run),
        ("evaluate", run, "--json"),
        ("inspect", data),
        ("inspect", data, "--json"),
        ("report", run),
        ("check-run", run),
        ("run", "--config", config, "--dry-run"),
        ("predict", run, data.parent / "\x1b[31m"),
        ("run", "--data", data.parent / "\x1b[31m"),
        ("inspect", data / HOSTILE[1]),
        ("resume", run),
    ):
        message = on_terminal(monkeypatch, *arguments)
        assert message
        assert not raw(message), arguments


def test_json_keeps_every_character(data: Path) -> None:
    done = call("inspect", data, "--json")
    assert not raw(done.stdout)
    assert {*HOSTILE} <= {*json.loads(done.stdout)["classes"]}
    assert "'Plain' and 'plain' are different" in json.loads(done.stdout)["warnings"][0]


def test_tables_in_a_pipe_are_unescaped(data: Path, run: Path) -> None:
    rows = list(csv.DictReader(StringIO(call("predict", run, data).stdout, newline="")))
    assert {unguarded(row["path"]) for row in rows} == {str(path) for path in data.rglob("*.png")}
    assert {unguarded(row["class"]) for row in rows} <= {path.name for path in data.iterdir()}


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_a_manifest_of_pseudo_labels_is_trained_on(data: Path, run: Path, suffix: str) -> None:
    from ssl_toolkit import load_model

    manifest = data / f"next.{suffix}"
    done = call("pseudo-label", run, data, "--threshold", "0", "--output", manifest)
    assert done.returncode == 0, done.stderr
    files = sorted(data.rglob("*.png"))
    model = load_model(run, "cpu")
    best = model.predict(files).argmax(axis=1)
    wanted = {
        str(file.relative_to(data)): ("labeled", model.classes[label])
        for file, label in zip(files, best, strict=True)
    }
    assert rows_of(read_data(manifest)) == wanted
    manifest.unlink()


def test_one_line_and_visible() -> None:
    assert visible("a b\u00a0c  d") == "a b\u00a0c  d"
    assert visible("\x1b[0m\x00\n\u200d\u2028") == "\\x1b[0m\\x00\\n\u200d\\u2028"
    assert one_line("a\n \x07b") == "a \\x07b"


def test_the_commands_print_through_one_module() -> None:
    import ssl_toolkit.commands

    folder = Path(ssl_toolkit.commands.__file__).parent
    for path in folder.glob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
        printing = [name for name in calls if name in ("print", "click.echo")]
        assert not printing or path.name in ("screen.py", "__init__.py"), path
