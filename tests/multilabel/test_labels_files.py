"""Several classes per image by people: `label serve`, and the labels file that training reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from in_process import call, refusal
from multilabel_data import make_manifest

from ssl_toolkit.config.settings import Settings
from ssl_toolkit.data.load import chosen_labels, load_table, read_data
from ssl_toolkit.data.splits.labels_file import choose_labeled
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.labeling.labels_table import LabelsTable
from ssl_toolkit.labeling.serve import labeling_server

COMMON = ("--task", "multilabel", "--algo", "pseudo_label", "--backbone", "wrn_10_1")
COMMON += ("--image-size", 16, "--device", "cpu", "--steps", 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    make_manifest(folder, count=30, test=6)
    return folder


def labels_file(folder: Path, path: Path, count: int = 20) -> Path:
    """Write the labels of the manifest's last images, relative to ``images/``; one is skipped."""
    rows = [line.split(",") for line in (folder / "images.csv").read_text().split()[-count:]]
    lines = [f"{name.removeprefix('images/')},{label}" for name, label, _ in rows]
    lines[0] = lines[0].split(",")[0] + ","
    path.write_text("\n".join(["path,label", *lines]) + "\n")
    return path


def test_several_answers_on_the_page(folder: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    queue = tmp_path / "queue.csv"
    queue.write_text("path,guess,confidence\n0.png,red,0.9\n1.png,,\n2.png,,\n")
    with labeling_server(
        folder / "images", labels, queue=queue, classes=["red", "blue"], several=True
    ) as server:
        session = server.session
        state = session.state()
        assert (state["several"], state["classes"], state["guess"]) == (True, ["red", "blue"], "")
        session.answer(0, "blue|red")
        session.answer(1, "|")
        with pytest.raises(DataError, match="'green' is no class; add it first"):
            session.answer(2, "green|red")
        state = session.answer(2, " green |red", add=True)
        assert state["classes"] == ["red", "blue", "green"]
        assert (state["labeled"], state["skipped"]) == (3, 0)
        assert session.state(1)["answer"] == "|"
        assert session.undo()["classes"] == ["red", "blue"]  # green was a typing error
        session.answer(2, "")
        assert session.state()["skipped"] == 1
    text = "path,label\n0.png,red|blue\n1.png,|\n2.png,\n"
    assert labels.read_text() == text
    with labeling_server(folder / "images", labels, several=True) as server:
        assert server.session.state()["classes"] == ["blue", "red"]
    assert LabelsTable(labels).classes() == ["red|blue", "|"]  # with one class per image


def test_names_with_the_separator_and_folders_of_classes_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(ConfigError, match=r"--classes: 'a\|b' has \|"),
        labeling_server(folder / "images", tmp_path / "l.csv", classes=["a|b"], several=True),
    ):
        pass
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "1.png").write_bytes((folder / "images/1.png").read_bytes())
    arguments = ("label", "serve", tmp_path / "data", "--labels", tmp_path / "l.csv")
    message = refusal(*arguments, "--task", "multilabel")
    assert "gives one class per image; give a manifest" in message


def test_a_run_on_a_folder_and_a_labels_file(folder: Path, tmp_path: Path) -> None:
    labels, output = labels_file(folder, tmp_path / "labels.csv"), tmp_path / "run"
    arguments = ("run", "--data", folder / "images", "--labels", labels, *COMMON)
    done = call(*arguments, "--output", output)
    assert done.returncode == 0, done.stderr
    assert call("check-run", output).returncode == 0
    split = json.loads((output / "split.json").read_text())
    assert len(split["labeled"]) == 19
    assert len(split["unlabeled"]) == 11
    config = json.loads((output / "model" / "config.json").read_text())
    assert config["classes"] == ["blue", "green", "red"]
    message = refusal(*arguments, "--test-fraction", 0.2, "--output", tmp_path / "other")
    assert "--test-fraction: every image with a label is in --labels" in message


def test_the_sets_are_those_of_the_file(folder: Path, tmp_path: Path) -> None:
    labels = labels_file(folder, tmp_path / "labels.csv")
    names = ["red", "green", "blue", "fox"]
    settings = Settings(
        data=str(folder / "images"), labels=str(labels), task="multilabel", classes=names
    )
    table, chosen = chosen_labels(load_table(settings), settings)
    assert table.classes == tuple(names)
    assert chosen is not None
    found = {
        table.keys[row]: {names[i] for i in np.flatnonzero(table.targets(np.array([row]))[0])}
        for row in chosen.tolist()
    }
    rows = [line.split(",") for line in labels.read_text().split()[1:]]
    assert found == {path: {*label.split("|")} - {""} for path, label in rows if label}


def test_a_labels_file_chooses_from_a_manifest(folder: Path, tmp_path: Path) -> None:
    table = read_data(folder / "images.csv", multilabel=True)
    row = int(np.flatnonzero(table.splits == "pool")[0])
    known = "|".join(np.array(table.classes)[table.targets(np.array([row]))[0] > 0]) or "|"
    path = tmp_path / "labels.csv"
    path.write_text(f"path,label\n{table.keys[row]},{known}\n")
    chosen_table, rows = choose_labeled(table, str(path), folder)
    assert rows.tolist() == [row]
    assert (chosen_table.targets(rows) == table.targets(rows)).all()
    path.write_text(f"path,label\n{table.keys[row]},red|reed\n")
    with pytest.raises(DataError, match=r"the label 'reed', no class .*did you mean"):
        choose_labeled(table, str(path), folder)
    other = "red|green" if {*known.split("|")} != {"red", "green"} else "red"
    path.write_text(f"path,label\n{table.keys[row]},{other}\n")
    with pytest.raises(DataError, match=r"is a '.*' here and a '.*' in the data"):
        choose_labeled(table, str(path), folder)
