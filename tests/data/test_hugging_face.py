import builtins
import json

import numpy as np
import pytest
from tiny_images import encoded, put, rows_of

from ssl_toolkit.data.load import read_data
from ssl_toolkit.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NAMES = ["zebra", "ant"]


@pytest.fixture
def image_folder(tmp_path):
    for number in range(8):
        put(tmp_path / "train" / "images" / f"{number}.png", number)
    for number in range(2):
        put(tmp_path / "test" / f"{number}.png", 50 + number)
    lines = [f"images/{number}.png,{NAMES[number % 2]},x" for number in range(6)]
    lines += [f"images/{number}.png,,x" for number in (6, 7)]
    header = "file_name,label,caption\n"
    (tmp_path / "train" / "metadata.csv").write_text(header + "\n".join(lines))
    rows = [{"file_name": f"{number}.png", "label": NAMES[number]} for number in range(2)]
    (tmp_path / "test" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_metadata_in_folders_of_splits(image_folder):
    table = read_data(image_folder)
    assert table.classes == ("ant", "zebra")
    rows = rows_of(table)
    assert rows["train/images/0.png"] == ("pool", "zebra")
    assert rows["train/images/7.png"] == ("unlabeled", "")
    assert rows["test/1.png"] == ("test", "ant")
    assert len(rows) == 10


def test_metadata_in_the_data_folder(image_folder):
    for part in ("train/metadata.csv", "test/metadata.jsonl"):
        (image_folder / part).unlink()
    rows = [
        {"file_name": "train/images/0.png", "labels": 0},
        {"file_name": "train/images/1.png", "labels": 1},
        {"file_name": "test/0.png", "labels": 0},
    ]
    (image_folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = read_data(image_folder)
    assert table.classes == ("0", "1")
    assert table.splits.tolist() == ["pool", "pool", "test"]


def test_metadata_cannot_lead_outside(image_folder):
    put(image_folder.parent / "out.png")
    with (image_folder / "train" / "metadata.csv").open("a") as file:
        file.write("\n../../out.png,ant,x\n")
    with pytest.raises(DataError, match=r"line 10: .*out\.png' is no path inside"):
        read_data(image_folder)


def test_folders_of_classes_need_no_metadata(tmp_path):
    for name in ("train/a/1.png", "train/b/1.png", "test/a/2.png"):
        put(tmp_path / name)
    assert rows_of(read_data(tmp_path))["test/a/2.png"] == ("test", "a")


def test_metadata_without_labels_is_a_side_file(tmp_path):
    for name in ("a/1.png", "b/1.png"):
        put(tmp_path / name)
    (tmp_path / "metadata.csv").write_text("file_name,caption\na/1.png,nice\n")
    assert read_data(tmp_path).classes == ("a", "b")


def parquet(path, numbers, labels, *, names=NAMES, column="label", group=3):
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": encoded(n), "path": f"{n}.png"} for n in numbers]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {
            "id": pa.array(range(len(cells))),
            column: pa.array(labels),
            "image": pa.array(cells, kind),
        }
    )
    features = {"image": {"_type": "Image"}, column: {"_type": "ClassLabel", "names": names}}
    if names:
        message = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": message})
    pq.write_table(table, path, row_group_size=group)
    return path


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    parquet(folder / "train-00000-of-00002.parquet", range(7), [0, 1, 0, 1, 0, 1, -1])
    parquet(folder / "train-00001-of-00002.parquet", range(10, 14), [0, 1, None, 1])
    parquet(folder / "test-00000-of-00001.parquet", range(20, 24), [0, 1, 0, 1])
    return tmp_path


def test_parquet_files(data):
    table = read_data(data)
    assert table.classes == ("ant", "zebra")
    rows = rows_of(table)
    assert rows["data/train-00000-of-00002.parquet/1"] == ("pool", "ant")
    assert rows["data/train-00000-of-00002.parquet/6"] == ("unlabeled", "")
    assert rows["data/train-00001-of-00002.parquet/2"] == ("unlabeled", "")
    assert rows["data/test-00000-of-00001.parquet/0"] == ("test", "zebra")
    keys = [f"data/train-00000-of-00002.parquet/{n}" for n in (5, 0, 4)]
    order = np.array([table.keys.index(key) for key in keys])
    assert table.read(order, 4)[:, 0, 0, 0].tolist() == [5, 0, 4]
    assert len({table.digest(row) for row in range(15)}) == 15


def test_parquet_goes_through_the_cache(data):
    first = read_data(data, size=4, workers=2)
    assert first.read(np.arange(4), 4)[:, 0, 0, 0].tolist() == [20, 21, 22, 23]
    again = read_data(data, size=4)
    assert (again.read(np.arange(15), 4) == first.read(np.arange(15), 4)).all()


def test_parquet_without_names_of_classes(tmp_path):
    path = parquet(tmp_path / "x.parquet", range(4), ["b", "a", "", None], names=[])
    assert rows_of(read_data(path)) == {
        "x.parquet/0": ("pool", "b"),
        "x.parquet/1": ("pool", "a"),
        "x.parquet/2": ("unlabeled", ""),
        "x.parquet/3": ("unlabeled", ""),
    }


def test_parquet_with_another_column_of_labels(tmp_path):
    path = parquet(tmp_path / "x.parquet", range(3), [1, 0, 1], column="species")
    assert read_data(path).classes == ("ant", "zebra")


def test_parquet_files_that_are_wrong(tmp_path):
    path = parquet(tmp_path / "x.parquet", range(3), [0, 1, 2])
    with pytest.raises(DataError, match=r"x\.parquet, row 2: the label 2 is none of the schema's"):
        read_data(path)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"can't read .*bad\.parquet"):
        read_data(tmp_path / "bad.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "no.parquet")
    with pytest.raises(DataError, match=r"no column of images.*its columns are x"):
        read_data(tmp_path / "no.parquet")


def test_a_row_without_bytes_is_unreadable(tmp_path):
    path = parquet(tmp_path / "x.parquet", range(4), [0, 1, 0, 1])
    rows = pq.read_table(path).to_pydict()
    rows["image"][2]["bytes"] = None
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"label": rows["label"], "image": pa.array(rows["image"], kind)})
    pq.write_table(table, path)
    with pytest.raises(DataError, match="the row holds no image"):
        read_data(path, size=8)
    assert len(read_data(path, size=8, on_bad_image="skip").keys) == 3


def test_a_missing_pyarrow_names_the_extra(data, monkeypatch):
    real = builtins.__import__

    def absent(name, *arguments):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", absent)
    from ssl_toolkit.data.images.archives import parquet_images

    parquet_images.cache_clear()
    with pytest.raises(DataError, match=r'pip install "ssl-toolkit\[hf\]"'):
        read_data(data)


def test_two_kinds_of_files_are_not_mixed(data):
    (data / "data" / "x.tar").write_bytes(b"")
    with pytest.raises(DataError, match=r"both \.tar and \.parquet"):
        read_data(data)
