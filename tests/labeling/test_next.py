"""`label next`: the images to label next."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from in_process import call, refusal
from PIL import Image

from ssl_toolkit.labeling.next import choose_next
from ssl_toolkit.labeling.queue import Queued, read_queue, write_queue
from ssl_toolkit.labeling.selection import Method

COLORS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (40, 40, 210)}
ONE = ("--image-size", 96, "--workers", 0, "--device", "cpu")


def draw(path: Path, color: str, seed: int) -> None:
    """Write an image of one color with noise."""
    noise = np.random.default_rng(seed).integers(0, 40, (16, 16, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((noise + COLORS[color]).clip(0, 255).astype(np.uint8)).save(path)


def write_features(path: Path, groups: list[int], **arrays: object) -> Path:
    """Write features of groups that are far apart, one for each number."""
    generator = np.random.default_rng(0)
    features = generator.random((len(groups), 8)) / 10
    features[np.arange(len(groups)), np.array(groups) % 8] += 2
    keys = [f"{i:03d}.png" for i in range(len(groups))]
    np.savez(path, features=features.astype(np.float32), keys=keys, **arrays)  # type: ignore[arg-type]
    return path


def table(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(text.splitlines())]


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """Features of 60 images without labels in 4 groups."""
    return write_features(tmp_path / "pool.npz", [i % 4 for i in range(60)])


def label_file(path: Path, rows: dict[str, str]) -> Path:
    path.write_text("path,label\n" + "".join(f"{k},{v}\n" for k, v in rows.items()))
    return path


def test_a_folder_without_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    for i in range(18):
        draw(tmp_path / "photos" / f"é {i},{i}.png", [*COLORS][i % 3], i)
    shutil.copy(tmp_path / "photos" / "é 0,0.png", tmp_path / "photos" / "é 0,00.png")
    one = ("label", "next", tmp_path / "photos", "--budget", 3, *ONE)
    done = call(*one)
    assert done.returncode == 0, done.stderr
    rows = table(done.stdout)
    assert list(rows[0]) == ["path", "score", "guess", "confidence", "method"]
    assert len({int(row["path"][2:].split(",")[0]) % 3 for row in rows}) == 3
    assert {row["guess"] for row in rows} == {""}
    assert "3 of 18 images to label next, by kmeans; 0 have a label" in done.stderr
    assert call(*one).stdout == done.stdout
    output = tmp_path / "queue.csv"
    assert call(*one, "-o", output).stdout == ""
    assert [image.path for image in read_queue(output)] == [row["path"] for row in rows]


def test_folders_without_images_to_label_are_refused_with_the_way_out(tmp_path: Path) -> None:
    answers, labels = label_file(tmp_path / "answers.csv", {}), tmp_path / "labels.csv"

    def messages(name: str) -> Iterator[str]:
        data, one = tmp_path / name, ("--budget", 1)
        yield refusal("label", "next", data, *one, "--method", "random")
        yield refusal("label", "serve", data, "--labels", labels)
        yield refusal("label", "round", data, *one, "-o", tmp_path / "r", "--algo", "supervised")
        yield refusal("label", "import", data, answers, "--labels", labels)

    (tmp_path / "empty" / "unlabeled").mkdir(parents=True)
    (tmp_path / "list.csv").write_text("path,label\n")
    (tmp_path / "heic").mkdir()
    (tmp_path / "heic" / "a.heic").write_text("x")
    for name in ("empty/unlabeled", "empty", "list.csv", "heic"):
        for message in messages(name):
            assert f"{name} has no images" in message
    assert "each a HEIC image, which isn't read; convert them to JPEG" in next(messages("heic"))
    for name in ("one/2024", "two/2024", "two/2025"):
        draw(tmp_path / name / "a.png", "red", len(name))
    for message in messages("one"):
        assert "one has images in the folder 2024/" in message
        assert "to label images, move all below" in message
    draw(tmp_path / "two" / "2025" / "b.png", "blue", 1)
    for message in islice(messages("two"), 3):
        assert "its folders are the classes 2024, 2025: if they are no classes, move" in message
        assert "two/unlabeled/" in message
        assert len(message.splitlines()) == 1


def test_labels_of_the_data_count_beside_a_labels_file(tmp_path: Path) -> None:
    data = write_features(tmp_path / "d.npz", [0, 1] * 10, labels=["a", "b"] * 8 + [""] * 4)
    labels = label_file(tmp_path / "labels.csv", {"016.png": "a"})
    result = choose_next(data, budget=30, method="margin", labels=labels)
    assert sorted(image.path for image in result.images) == ["017.png", "018.png", "019.png"]
    assert result.labeled == 17
    data = write_features(tmp_path / "all.npz", [0, 1] * 10, labels=["a", "b"] * 10)
    assert choose_next(data, budget=30, labels=labels).labeled == 1  # an experiment


def test_a_class_in_labeled_is_enough_to_label(tmp_path: Path) -> None:
    for name in ("labeled/a/0.png", "unlabeled/1.png", "unlabeled/2.png"):
        draw(tmp_path / "data" / name, "red", int(name[-5]))
    result = choose_next(tmp_path / "data", budget=5, method="random")
    assert sorted(image.path for image in result.images) == ["unlabeled/1.png", "unlabeled/2.png"]
    assert result.labeled == 1


@pytest.mark.parametrize("method", ["kmeans", "typicality"])
def test_clusters_cover_the_groups(groups: Path, method: Method) -> None:
    chosen = choose_next(groups, budget=4, method=method).images
    assert {int(image.path[:3]) % 4 for image in chosen} == {0, 1, 2, 3}
    assert all(image.score for image in chosen)


@pytest.mark.parametrize("method", ["kmeans", "typicality"])
def test_groups_without_a_label_come_first(groups: Path, tmp_path: Path, method: Method) -> None:
    labels = label_file(tmp_path / "labels.csv", {"000.png": "a", "001.png": "b"})
    result = choose_next(groups, budget=2, method=method, labels=labels)
    assert {int(image.path[:3]) % 4 for image in result.images} == {2, 3}
    assert result.labeled == 2
    assert {image.guess for image in result.images} <= {"a", "b"}


@pytest.mark.parametrize("method", ["kmeans", "typicality", "margin", "badge", "random"])
def test_never_a_labeled_skipped_or_equal_image(
    groups: Path, tmp_path: Path, method: Method
) -> None:
    with np.load(groups) as file:
        features = file["features"].copy()
    features[10] = features[0]  # of a labeled image
    features[21] = features[20]
    np.savez(groups, features=features, keys=[f"{i:03d}.png" for i in range(60)])
    known = {"000.png": "a", "001.png": "b", "002.png": "null'", "003.png": ""}
    labels = label_file(tmp_path / "labels.csv", known)
    done = [choose_next(groups, budget=100, method=method, labels=labels) for _ in range(2)]
    assert done[0] == done[1]
    chosen = [image.path for image in done[0].images]
    assert len(chosen) == len({*chosen}) == 54
    assert {*chosen}.isdisjoint({*known, "010.png", "021.png"})


def test_never_a_test_or_validation_image(tmp_path: Path) -> None:
    splits = ["unlabeled"] * 20 + ["test"] * 10 + ["val"] * 10
    labels = [""] * 20 + ["a", "b"] * 10
    data = write_features(
        tmp_path / "d.npz", [i % 4 for i in range(40)], splits=splits, labels=labels
    )
    for method in ("kmeans", "typicality", "random"):
        chosen = choose_next(data, budget=50, method=method).images
        assert sorted(image.path for image in chosen) == [f"{i:03d}.png" for i in range(20)]
    file = label_file(tmp_path / "labels.csv", {"025.png": "a"})
    message = refusal("label", "next", data, "--budget", 1, "--labels", file)
    assert "line 2: '025.png' is a test image" in message


def test_margin_and_badge_choose_uncertain_images(tmp_path: Path) -> None:
    features = np.zeros((40, 4), dtype=np.float32)
    features[:, 0] = np.linspace(1, 0, 40)
    features[:, 1] = np.linspace(0, 1, 40)
    features[:, 2] = np.random.default_rng(1).random(40) / 100
    data = tmp_path / "line.npz"
    np.savez(data, features=features, keys=[f"{i:03d}.png" for i in range(40)])
    known = {"000.png": "a", "001.png": "a", "038.png": "b", "039.png": "b"}
    labels = label_file(tmp_path / "labels.csv", known)
    (margin,) = choose_next(data, budget=1, method="margin", labels=labels).images
    assert 16 <= int(margin.path[:3]) <= 23
    badge = choose_next(data, budget=3, method="badge", labels=labels).images
    assert all(4 <= int(image.path[:3]) <= 35 for image in badge)
    assert margin.guess in ("a", "b")
    assert 0.5 <= (margin.confidence or 0) < 0.75


@pytest.mark.parametrize("name", ["list.txt", "list.csv"])
def test_a_list_names_images_with_the_labels_of_the_data(tmp_path: Path, name: str) -> None:
    data = write_features(tmp_path / "d.npz", [0, 1] * 10, labels=["a", "b"] * 9 + [""] * 2)
    header = "" if name == "list.txt" else "path\n"
    (tmp_path / name).write_text(f"{header}000.png\n003.png\n")
    result = choose_next(data, budget=30, method="margin", labels=tmp_path / name)
    assert result.labeled == 2
    assert {image.guess for image in result.images} == {"a", "b"}
    (tmp_path / name).write_text(f"{header}019.png\n")
    message = refusal("label", "next", data, "--budget", 1, "--labels", tmp_path / name)
    assert "'019.png' has no label in the data; give one in a .csv: path,label" in message


def test_a_run_on_features(groups: Path, tmp_path: Path) -> None:
    labels = label_file(tmp_path / "l.csv", {f"{i:03d}.png": "abc"[i % 4] for i in (0, 1, 2, 4)})
    run = tmp_path / "run"
    flags = ("--data", groups, "--labels", labels, "--algo", "linear_probe", "--device", "cpu")
    assert call("run", *flags, "--output", run, "--quiet").returncode == 0
    for method in ("kmeans", "margin"):
        done = call("label", "next", run, "--budget", 2, "--method", method)
        assert done.returncode == 0, done.stderr
        assert {row["guess"] for row in table(done.stdout)} <= {"a", "b", "c"}
        assert "2 of 56 images to label next" in done.stderr
    again = ("label", "next", run, "--budget", 2, "--method", method)
    moved = groups.rename(tmp_path / "moved.npz")
    assert "pool.npz" in refusal("label", "next", run, "--budget", 2)
    assert call(*again, "--data", moved).stdout == done.stdout
    assert "--data is for a run" in refusal(*again[:2], moved, *again[3:], "--data", moved)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("task: multiclass", "task: multilabel"))
    assert "--task multilabel" in refusal("label", "next", run, "--budget", 2)


def test_methods_that_need_labels_say_so(groups: Path, tmp_path: Path) -> None:
    for method in ("margin", "badge"):
        message = refusal("label", "next", groups, "--budget", 2, "--method", method)
        assert f"--method {method} needs labels of at least two classes" in message
        assert "--method kmeans" in message


def test_bad_input_is_refused_in_one_line(groups: Path, tmp_path: Path) -> None:
    start = ("label", "next", groups, "--budget")
    assert "'no.png'" in refusal(
        *start, 1, "--labels", label_file(tmp_path / "a.csv", {"no.png": "x"})
    )
    twice = tmp_path / "twice.csv"
    twice.write_text("path,label\n000.png,a\n000.png,b\n")
    assert "is already in line 2" in refusal(*start, 1, "--labels", twice)
    assert "can't read" in refusal(*start, 1, "--labels", tmp_path / "none.csv")
    assert "doesn't exist" in refusal("label", "next", tmp_path / "none", "--budget", 1)
    assert "ends in .csv" in refusal(*start, 1, "-o", tmp_path / "queue.json")
    assert "0" in refusal(*start, 0)
    every = label_file(tmp_path / "all.csv", {f"{i:03d}.png": "ab"[i % 2] for i in range(60)})
    assert "no image is left to label: 60 have a label" in refusal(*start, 1, "--labels", every)
    assert "no such command 'nxt' (did you mean 'next'?)" in refusal("label", "nxt")


def test_a_queue_reads_back_the_same(tmp_path: Path) -> None:
    images = [
        Queued("a, b.png", 0.5, "null", 0.25, "margin"),
        Queued("=x\n'y.png", None, "", None, "random"),
        Queued("é.png", 1e-9, " 1 ", 1.0, "badge"),
    ]
    write_queue(tmp_path / "q.csv", images)
    assert read_queue(tmp_path / "q.csv") == images
    (tmp_path / "bad.csv").write_text("path,score\na.png,x\na.png,1\n")
    with pytest.raises(Exception, match="'x' is no number"):
        read_queue(tmp_path / "bad.csv")


def test_a_large_pool_takes_bounded_time_and_memory() -> None:
    from ssl_toolkit.labeling.selection import by_badge, by_clusters

    x = np.random.default_rng(0).standard_normal((30_000, 16)).astype(np.float32)
    candidates = np.ones(len(x), dtype=bool)
    for typical in (False, True):
        chosen = by_clusters(x, candidates, 30, np.random.default_rng(0), typical=typical)
        assert len({choice.position for choice in chosen}) == 30
    probabilities = np.full((len(x), 10), 0.1, dtype=np.float32)
    chosen = by_badge(x, probabilities, 30, np.random.default_rng(0))
    assert len({choice.position for choice in chosen}) == 30
