from collections import Counter

import numpy as np
import pytest
from in_process import call, refusal
from ssl_toolkit_benchmarks import STL10
from tiny_images import put

from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.arrays import ImageArray, array_table
from ssl_toolkit.data.splits.draw import draw_split
from ssl_toolkit.data.splits.labels_file import choose_labeled
from ssl_toolkit.errors import DataError


@pytest.fixture
def pool(tmp_path):
    """A single pool of 2 classes with 10 images each."""
    for number in range(20):
        put(tmp_path / "data" / "ab"[number % 2] / f"{number:02d}.png", number)
    return tmp_path / "data"


@pytest.fixture
def labeled(tmp_path):
    for number in range(8):
        put(tmp_path / "data" / "labeled" / "ab"[number % 2] / f"{number}.png", number)
        put(tmp_path / "data" / "unlabeled" / f"{number}.png", 20 + number)
        put(tmp_path / "data" / "test" / "ab"[number % 2] / f"{number}.png", 40 + number)
    return tmp_path / "data"


def choose(data, text, name="labels.txt"):
    path = data.parent / name
    path.write_text(text, encoding="utf-8")
    return choose_labeled(read_data(data), str(path), data)


def keys(table, rows):
    return [table.keys[row] for row in rows]


def test_the_listed_images_of_a_pool_are_labeled(pool):
    table, chosen = choose(pool, "b/01.png\na/00.png\n\n./a/04.png\n")
    assert keys(table, chosen) == ["a/00.png", "a/04.png", "b/01.png"]
    split = draw_split(table, seed=0, chosen=chosen)
    assert split.labeled.tolist() == chosen.tolist()
    assert len(split.unlabeled) == 17
    split = draw_split(table, seed=0, chosen=chosen, labeled_in_pool=True)
    assert len(split.unlabeled) == 20
    split = draw_split(table, seed=0, chosen=chosen, val_fraction=0.2, test_fraction=0.2)
    assert split.labeled.tolist() == chosen.tolist()
    assert (len(split.validation), len(split.test), len(split.unlabeled)) == (4, 4, 9)
    assert not set(chosen) & set(split.validation.tolist() + split.test.tolist())


@pytest.mark.parametrize("form", ["absolute", "from here"])
def test_paths_of_files_work_as_keys_do(pool, form, monkeypatch):
    monkeypatch.chdir(pool.parent)
    top = pool if form == "absolute" else "data"
    table, chosen = choose(pool, f"{top}/a/00.png\n{top}/b/01.png\n")
    assert keys(table, chosen) == ["a/00.png", "b/01.png"]


def test_labeled_images_that_are_not_listed_become_unlabeled(labeled):
    table, chosen = choose(labeled, "labeled/a/0.png\nlabeled/b/1.png\n")
    split = draw_split(table, seed=0, chosen=chosen)
    assert keys(table, split.labeled) == ["labeled/a/0.png", "labeled/b/1.png"]
    assert len(split.unlabeled) == 6 + 8
    assert len(split.test) == 8
    assert "6 labeled images of the data are not in" in table.notes[-1]


def test_a_table_labels_unlabeled_images(labeled):
    text = (
        "path,label\nunlabeled/3.png,b\nunlabeled/4.png,a\nunlabeled/5.png,-1\nlabeled/a/0.png,a\n"
    )
    table, chosen = choose(labeled, text, "labels.csv")
    assert keys(table, chosen) == ["labeled/a/0.png", "unlabeled/3.png", "unlabeled/4.png"]
    assert table.labels[chosen].tolist() == [0, 1, 0]
    split = draw_split(table, seed=0, chosen=chosen)
    assert len(split.unlabeled) == 7 + 6
    assert not set(chosen) & set(split.unlabeled)


def test_a_table_without_labels_is_a_list(pool):
    table, chosen = choose(pool, "path,note\na/00.png,x\nb/01.png,y\n", "labels.csv")
    assert keys(table, chosen) == ["a/00.png", "b/01.png"]
    text = '{"path": "a/00.png", "label": "a"}\n{"path": "b/01.png", "label": "b"}\n'
    assert choose(pool, text, "labels.jsonl")[1].tolist() == chosen.tolist()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.csv", "path,label\na/00.png,\nb/01.png,\n"),
        ("labels.jsonl", '{"path": "a/00.png", "label": null}\n{"path": "b/01.png"}\n'),
    ],
)
def test_skipped_images_are_not_labeled(pool, name, text):
    with pytest.raises(DataError, match="all labels are empty, so no image is labeled"):
        choose(pool, text, name)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "l.txt",
            "labeled/a/0.png\nnowhere.png\n",
            r"line 2: the data has no image 'nowhere\.png'",
        ),
        ("l.txt", "../x.png\n", "the data has no image"),
        ("l.txt", "test/a/0.png\n", r"'test/a/0\.png' is a test image"),
        ("l.txt", "labeled/a/0.png\nlabeled/a/0.png\n", "line 2: .*is already in line 1"),
        ("l.txt", "unlabeled/0.png\n", r"no label in the data; give one in a \.csv"),
        ("l.csv", "path,label\nunlabeled/0.png,c\n", "'c', no class of the data"),
        ("l.csv", "path,label\nlabeled/a/0.png,b\n", "is a 'b' here and a 'a' in the data"),
        ("l.csv", "file,label\nlabeled/a/0.png,b\n", "no column 'path'"),
    ],
)
def test_invalid_rows_are_reported(labeled, name, text, words):
    with pytest.raises(DataError, match=words):
        choose(labeled, text, name)


def test_all_unknown_images_are_reported_together(pool):
    with pytest.raises(DataError) as caught:
        choose(pool, "x.png\na/00.png\ny.png\n")
    assert [message[-7:] for message in caught.value.messages] == ["'x.png'", "'y.png'"]


def test_every_class_needs_an_image_and_no_count_can_be_added(pool):
    table, chosen = choose(pool, "a/00.png\n")
    with pytest.raises(DataError, match="--labels names no image of class 'b'"):
        draw_split(table, seed=0, chosen=chosen)
    table, chosen = choose(pool, "a/00.png\nb/01.png\n")
    with pytest.raises(DataError, match="leave --labels-per-class and --num-labels out"):
        draw_split(table, seed=0, chosen=chosen, num_labels=2)


def test_a_file_that_does_not_exist(pool, tmp_path):
    with pytest.raises(DataError, match=r"can't read --labels .*none\.txt"):
        choose_labeled(read_data(pool), str(tmp_path / "none.txt"), pool)


# --- STL-10's folds -----------------------------------------------------------------------------


@pytest.fixture
def stl10(tmp_path):
    groups = [
        ImageArray("stl10/train/", "pool", np.zeros((20, 2, 2, 3), np.uint8), np.arange(20) % 2),
        ImageArray("stl10/test/", "test", np.zeros((4, 2, 2, 3), np.uint8), [0, 1, 0, 1]),
    ]
    (tmp_path / "stl10_binary").mkdir()
    (tmp_path / "stl10_binary" / "fold_indices.txt").write_text("0 1 2 3\n19 16 5 7 \n")
    return array_table(["a", "b"], groups), tmp_path


def test_a_fold_of_stl10(stl10):
    table, root = stl10
    chosen = STL10().labeled_rows("fold:1", table, root)
    assert STL10().labeled_rows("my-labels.txt", table, root) is None
    assert keys(table, chosen) == [f"stl10/train/{n:02d}" for n in (5, 7, 16, 19)]


@pytest.mark.parametrize("name", ["fold:2", "fold:x", "fold:-1", "fold:"])
def test_folds_that_do_not_exist(stl10, name):
    with pytest.raises(DataError, match="folds are fold:0 to fold:1"):
        STL10().labeled_rows(name, *stl10)


def test_folds_are_stl10s(stl10, pool):
    table, root = stl10
    with pytest.raises(DataError, match="can't read --labels fold:0"):
        choose_labeled(read_data(pool), "fold:0", pool)
    (root / "stl10_binary" / "fold_indices.txt").write_text("99\n")
    with pytest.raises(DataError, match="corrupt"):
        STL10().labeled_rows("fold:0", table, root)
    (root / "stl10_binary" / "fold_indices.txt").unlink()
    with pytest.raises(DataError, match=r"can't read .*fold_indices\.txt"):
        STL10().labeled_rows("fold:0", table, root)


# --- the command --------------------------------------------------------------------------------


def test_the_command_uses_the_file(pool, command):
    (pool.parent / "labels.txt").write_text(
        "\n".join(f"{'ab'[n % 2]}/{n:02d}.png" for n in range(6))
    )
    done = command(
        "run", "--data", pool, "--labels", pool.parent / "labels.txt", "--steps", 1, "--batch-size",
        2, "--backbone", "wrn_10_1", "--image-size", 8, "--algo", "fixmatch", "--output", "out",
        "--test-fraction", 0.2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    import json

    split = json.loads((pool.parent / "out" / "split.json").read_text())
    assert Counter(key[0] for key in split["labeled"]) == {"a": 3, "b": 3}
    assert len(split["unlabeled"]) == 10
    done = command("run", "--data", pool, "--labels", "x.txt", "--num-labels", 4)
    assert done.returncode == 2
    assert "leave --num-labels out" in done.stderr


def test_a_run_with_a_labels_file_can_be_evaluated_and_resumed(pool, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"{'ab'[n % 2]}/{n:02d}.png" for n in range(6)))
    given = (
        "run", "--algo", "supervised", "--data", pool, "--steps", 1, "--batch-size", 2,
        "--backbone", "wrn_10_1", "--image-size", 8, "--test-fraction", 0.2, "--labels", labels,
    )  # fmt: skip
    run = tmp_path / "run"
    assert call(*given, "--output", run).returncode == 0
    for again in (("evaluate", run), ("check-run", run), ("resume", run, "--steps", 2)):
        done = call(*again)
        assert done.returncode == 0, done.stderr
    labels.write_text("a/00.png\nb/01.png\n")
    messages = refusal(*given, "--split", run / "split.json", "--output", tmp_path / "other")
    assert "--labels names other labeled images than" in messages
    assert "4 are not in it" in messages
