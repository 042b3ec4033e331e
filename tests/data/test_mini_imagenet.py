import collections
import os
import pickle

import numpy as np
import pytest
from ssl_toolkit_benchmarks.mini_imagenet import CACHES, CATEGORIES, MiniImageNet
from ssl_toolkit_benchmarks.safe_pickle import read_array_pickle
from tiny_images import encoded, put

from ssl_toolkit.data.splits.draw import draw_split
from ssl_toolkit.errors import DataError

PARTS = {"train": 64, "val": 16, "test": 20}
A_CLASS = 12
SIDE = 6


def wnids():
    """Of the three parts, as the files name them."""
    names = [f"n{1000 + 37 * number:08d}" for number in range(100)]
    order = np.random.default_rng(0).permutation(100)
    ends = np.cumsum([0, *PARTS.values()])
    return {
        part: sorted(names[place] for place in order[ends[at] : ends[at + 1]])
        for at, part in enumerate(PARTS)
    }


NAMES = wnids()


def images(count, start):
    """Each image of one color that tells its number."""
    numbers = np.arange(start, start + count)
    colors = np.stack([numbers % 256, numbers // 256, np.full(count, 7)], axis=-1)
    return np.broadcast_to(colors[:, None, None], (count, SIDE, SIDE, 3)).astype(np.uint8)


def caches(folder, protocol):
    start = 0
    for part, names in NAMES.items():
        count = len(names) * A_CLASS
        rows = {
            name: list(range(at * A_CLASS, (at + 1) * A_CLASS)) for at, name in enumerate(names)
        }
        content = {"image_data": images(count, start), "class_dict": rows}
        path = folder / f"mini-imagenet-cache-{part}.pkl"
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        start += count


def category_splits(folder, protocol):
    start = 0
    for name, count in zip(CATEGORIES, PARTS.values(), strict=True):
        first = start // A_CLASS
        content = {
            "data": images(count * A_CLASS, start),
            "labels": np.repeat(np.arange(first, first + count), A_CLASS).tolist(),
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))
        start += count * A_CLASS


def lists(folder):
    (folder / "images").mkdir()
    for part, names in NAMES.items():
        lines = ["filename,label"]
        for name in names:
            for number in range(A_CLASS):
                file = f"{name}{number:08d}.jpg"
                (folder / "images" / file).write_bytes(encoded(number, "JPEG"))
                lines.append(f"{file},{name}")
        (folder / f"{part}.csv").write_text("\n".join(lines))


def class_folders(folder, nested):
    for part, names in NAMES.items():
        for name in names:
            for number in range(A_CLASS):
                put(folder / (part if nested else "") / name / f"{number}.png", number)


FORMS = {
    "caches": lambda folder: caches(folder, 4),
    "caches of the oldest protocol": lambda folder: caches(folder, 0),
    "caches of Python 2's protocol": lambda folder: caches(folder, 2),
    "category splits": lambda folder: category_splits(folder, 5),
    "lists": lists,
    "folders": lambda folder: class_folders(folder, nested=False),
    "folders in folders": lambda folder: class_folders(folder, nested=True),
}


@pytest.fixture(scope="module", params=list(FORMS))
def form(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mini")
    FORMS[request.param](folder)
    return folder


def test_every_form_merges_to_100_classes_and_splits_alike(form):
    table = MiniImageNet().load(form)
    assert len(table.classes) == 100
    assert len(table.keys) == len(set(table.keys)) == 100 * A_CLASS
    test = table.splits == "test"
    assert set(table.splits) == {"pool", "test"}
    assert (np.bincount(table.labels[test]) == A_CLASS // 6).all()
    assert (np.bincount(table.labels[~test]) == A_CLASS - A_CLASS // 6).all()
    again = MiniImageNet().load(form)
    assert (again.splits == table.splits).all()
    assert any("incomplete: 100 of 100 classes, 1,200 of 60,000" in note for note in table.notes)
    assert table.read(np.array([0, 700]), 84).shape == (2, 84, 84, 3)


def test_images_have_the_labels_of_their_classes(tmp_path):
    caches(tmp_path, 4)
    table = MiniImageNet().load(tmp_path)
    merged = sorted(name for names in NAMES.values() for name in names)
    assert table.classes == tuple(merged)
    order = [name for names in NAMES.values() for name in names]  # of the images in the files
    pixels = table.read(np.arange(len(table.keys)), SIDE)[:, 0, 0].astype(int)
    numbers = pixels[:, 0] + 256 * pixels[:, 1]
    assert [order[number // A_CLASS] for number in numbers] == [
        table.classes[label] for label in table.labels
    ]
    assert sorted(numbers) == list(range(100 * A_CLASS))


def test_class_folders_are_read_with_their_subfolders(tmp_path):
    for name in ("ant", "bee"):
        put(tmp_path / name / "1.png")
        put(tmp_path / name / "deep" / "er" / "2.png")
        put(tmp_path / name / ".thumbnails" / "1.png")
        put(tmp_path / name / "__MACOSX" / "1.png")
    (tmp_path / "bee" / "notes.txt").write_text("no image")
    table = MiniImageNet().load(tmp_path)
    assert table.classes == ("ant", "bee")
    assert list(table.keys) == ["ant/1.png", "ant/deep/er/2.png", "bee/1.png", "bee/deep/er/2.png"]
    assert table.labels.tolist() == [0, 0, 1, 1]


def test_lists_give_the_classes_of_their_rows(tmp_path):
    lists(tmp_path)
    table = MiniImageNet().load(tmp_path)
    for key, label in zip(table.keys, table.labels, strict=True):
        assert key.startswith(f"images/{table.classes[label]}")


def test_category_splits_use_the_names_that_exist(tmp_path):
    category_splits(tmp_path, 2)
    assert MiniImageNet().load(tmp_path).classes[::99] == ("000", "099")
    path = tmp_path / CATEGORIES[0]
    content = pickle.loads(path.read_bytes())
    content["catname2label"] = {name: at for at, name in enumerate(NAMES["train"])}
    path.write_bytes(pickle.dumps(content))
    assert set(NAMES["train"]) < set(MiniImageNet().load(tmp_path).classes)


def test_numbers_of_the_paper():
    names = [f"n{n:03d}" for n in range(100)]
    defaults = MiniImageNet.defaults
    assert defaults.image_size == 84
    assert [round(value, 4) for value in defaults.mean] == [0.4727, 0.4482, 0.4023]
    # 600 images a class: 500 for training, 72 of them for validation, 40 with labels.
    from ssl_toolkit_benchmarks.mini_imagenet import _test_splits

    from ssl_toolkit.data.readers.arrays import ImageArray, array_table

    blank = np.zeros((600, 1, 1, 3), dtype=np.uint8)
    groups = [
        ImageArray(f"{name}/", "pool", blank, np.full(600, at)) for at, name in enumerate(names)
    ]
    table = array_table(names, groups)
    parts = _test_splits(table)
    assert (np.bincount(table.labels[parts == "test"]) == 100).all()
    from dataclasses import replace

    split = draw_split(
        replace(table, splits=parts),
        seed=0,
        labels_per_class=defaults.labels_per_class,
        val_fraction=defaults.val_fraction,
    )
    sizes = [len(part) for part in (split.labeled, split.validation, split.test)]
    assert sizes == [4_000, 7_200, 10_000]
    assert len(split.unlabeled) == 50_000 - 4_000 - 7_200
    assert (np.bincount(table.labels[split.validation]) == 72).all()


def test_a_missing_data_set_lists_the_accepted_forms(tmp_path):
    with pytest.raises(DataError) as caught:
        MiniImageNet().load(tmp_path, download=True)
    (message,) = caught.value.messages
    for word in (str(tmp_path), *CACHES, *CATEGORIES, "images/", "--root DIR", "can't be fetched"):
        assert word in message
    caches(tmp_path, 4)
    (tmp_path / CACHES[1]).unlink()
    with pytest.raises(DataError, match="mini_imagenet is not in"):
        MiniImageNet().load(tmp_path)


# --- pickles ------------------------------------------------------------------------------------


class Command:
    """What an attacker's file holds: reading it calls a function of the attacker's choice."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_nothing_runs(tmp_path, protocol):
    caches(tmp_path, protocol)
    witness = tmp_path / "witness"
    evil = {"image_data": Command(os.system, f"touch {witness}"), "class_dict": {}}
    (tmp_path / CACHES[2]).write_bytes(pickle.dumps(evil, protocol=protocol))
    with pytest.raises(DataError, match=r"cache-test\.pkl names (posix|nt|os)\.system, which is"):
        MiniImageNet().load(tmp_path)
    assert not witness.exists()


@pytest.mark.parametrize(
    "function",
    [eval, exec, getattr, open, __import__, os.remove, pickle.loads, np.load, np.fromfile],
)
def test_nothing_but_arrays_and_plain_types_is_admitted(tmp_path, function):
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"x": Command(function, "1")}))
    with pytest.raises(DataError, match="neither an array nor a plain type"):
        read_array_pickle(path)


def test_names_with_dots_reach_no_further(tmp_path):
    # Protocol 4 may ask for an attribute of an attribute.
    path = tmp_path / "x.pkl"
    path.write_bytes(b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.tofile.x\x93.")
    with pytest.raises(DataError, match=r"names numpy\.ndarray\.tofile\.x"):
        read_array_pickle(path)
    path.write_bytes(pickle.dumps({"x": Command(__import__("codecs").encode, "aa", "rot13")}, 2))
    with pytest.raises(DataError, match="the encoding 'rot13'"):
        read_array_pickle(path)


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_and_plain_types_are_read(tmp_path, protocol):
    content = {
        "images": np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3),
        "turned": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "names": np.array(["n01", "n02"]),
        "scalar": np.int64(3),
        "things": np.array([{"a": 1}, None], dtype=object),
        "plain": [1, 2.5, "x", b"\xff\x00", None, True, (1,), {2}, 1 + 2j],
        "rows": collections.OrderedDict(a=range(3)),
        "grown": collections.defaultdict(list, {"n01": [0, 1]}),
        "bytes": bytearray(b"xy"),
    }
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    read = read_array_pickle(path)
    assert read.keys() == content.keys()
    for name, value in content.items():
        if isinstance(value, np.ndarray):
            assert read[name].dtype == value.dtype
            assert read[name].tolist() == value.tolist()
        else:
            assert read[name] == value


def test_a_pickle_of_python_2_is_read(tmp_path):
    # {'data': numpy.array([[1, 200]], dtype=uint8)} as Python 2 writes it, in protocol 0.
    text = (
        b"(dp0\nS'data'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n(cnumpy\nndarray\np3\n"
        b"(I0\ntp4\nS'b'\np5\ntp6\nRp7\n(I1\n(I1\nI2\ntp8\ncnumpy\ndtype\np9\n(S'u1'\np10\nI0\n"
        b"I1\ntp11\nRp12\n(I3\nS'|'\np13\nNNNI-1\nI-1\nI0\ntp14\nbI00\nS'\\x01\\xc8'\np15\n"
        b"tp16\nbs."
    )
    (tmp_path / "x.pkl").write_bytes(text)
    read = read_array_pickle(tmp_path / "x.pkl")
    assert read["data"].tolist() == [[1, 200]]
    assert read["data"].dtype == np.uint8


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is corrupt"),
        (b"garbage", "is corrupt"),
        (pickle.dumps([1]), "holds a list"),
        (pickle.dumps({"image_data": np.zeros((2, 4, 4))}), "has no images"),
        (pickle.dumps({"image_data": images(4, 0)}), "'class_dict'"),
        (
            pickle.dumps({"image_data": images(4, 0), "class_dict": {"a": [7]}}),
            "rows outside",
        ),
        (
            pickle.dumps({"image_data": images(4, 0), "class_dict": {"a": [-1]}}),
            "rows outside",
        ),
    ],
)
def test_damaged_caches_are_named(tmp_path, content, words):
    caches(tmp_path, 4)
    (tmp_path / CACHES[1]).write_bytes(content)
    with pytest.raises(DataError, match=rf"cache-val\.pkl.*{words}"):
        MiniImageNet().load(tmp_path)


def test_damaged_category_splits_and_lists_are_named(tmp_path):
    category_splits(tmp_path, 4)
    path = tmp_path / CATEGORIES[1]
    path.write_bytes(pickle.dumps({"data": images(4, 0), "labels": [1, 2]}))
    with pytest.raises(DataError, match="no list 'labels'"):
        MiniImageNet().load(tmp_path)
    path.unlink()
    lists(tmp_path)
    with (tmp_path / "val.csv").open("a") as file:
        file.write("\n../../etc/passwd,n01\n")
    with pytest.raises(DataError, match="no plain filename"):
        MiniImageNet().load(tmp_path)
