import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tiny_images import put, rows_of

from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.image_files import TableBuilder
from ssl_toolkit.data.readers.manifests import part_of, read_manifest
from ssl_toolkit.data.readers.rows import MOST_FAULTS, RowErrors, records
from ssl_toolkit.errors import DataError

SPLIT = {
    "a.png": ("labeled", "cat"),
    "b.png": ("labeled", "dog"),
    "c.png": ("unlabeled", ""),
    "d.png": ("unlabeled", "cat"),
    "e.png": ("validation", "dog"),
    "f.png": ("test", "cat"),
    "deep er/g.png": ("pool", "dog"),
    "h.png": ("unlabeled", ""),
}
CSV = """ label ,Split,note,path
cat,labeled,x,a.png
dog,labeled,"x, y",b.png
,unlabeled,,c.png
cat,unlabeled,,d.png
dog,val,,e.png
cat,TEST,,f.png
dog,,,deep er/g.png
-1,train,,h.png
"""
JSONL = """{"path": "a.png", "label": "cat", "split": "labeled"}
{"split": "labeled", "label": "dog", "path": "b.png", "more": [1]}

{"path": "c.png", "label": null, "split": "unlabeled"}
{"path": "d.png", "label": "cat", "split": "unlabeled"}
{"path": "e.png", "label": "dog", "split": "validation"}
{"path": "f.png", "label": "cat", "split": "test"}
{"path": "deep er/g.png", "label": "dog"}
{"path": "h.png", "label": -1, "split": null}
"""


@pytest.fixture
def folder(tmp_path):
    for place, name in enumerate(SPLIT):
        put(tmp_path / name, 10 * place)
    return tmp_path


def manifest(folder: Path, text: str, name: str = "list.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def faults(path: Path, **arguments) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        read_data(path, **arguments)
    return caught.value.messages


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", CSV),
        ("list.tsv", CSV.replace(",", "\t").replace('"x\t y"', "x")),
        ("german.csv", CSV.replace(",", ";")),
        ("bom.csv", "\ufeff" + CSV.replace("\n", "\r\n")),
        ("list.jsonl", JSONL),
    ],
)
def test_every_form_contains_the_same(folder, name, text):
    table = read_data(manifest(folder, text, name))
    assert table.classes == ("cat", "dog")
    assert rows_of(table) == SPLIT
    assert table.read(np.array([3]), 4)[0, 0, 0].tolist() == [30, 30, 30]
    assert any("pool 1, labeled 2, unlabeled 3, validation 1, test 1" in n for n in table.notes)
    assert any("not used: note" in note for note in table.notes) == (name != "list.jsonl")


def test_without_a_split_column_the_labeled_images_are_the_pool(folder):
    table = read_data(manifest(folder, "path,label\na.png,1\nb.png,2\nc.png,Unlabeled\nd.png,\n"))
    assert rows_of(table) == {
        "a.png": ("pool", "1"),
        "b.png": ("pool", "2"),
        "c.png": ("unlabeled", ""),
        "d.png": ("unlabeled", ""),
    }


@pytest.mark.parametrize("word", ["", "-1", "unlabeled", "UNLABELED", "null", " "])
def test_words_for_no_label(folder, word):
    path = manifest(folder, f"path,label\na.png,x\nb.png,y\nc.png,{word}\n")
    assert rows_of(read_data(path))["c.png"] == ("unlabeled", "")


def test_class_names_stay_text(folder):
    text = "path,label\na.png,001\nb.png,1\nc.png,1e3\nd.png,no\ne.png,Äpfel & Birnen\n"
    classes = read_data(manifest(folder, text)).classes
    assert classes == ("001", "1", "1e3", "no", "Äpfel & Birnen")


def test_numbers_of_json_are_text(folder):
    text = '{"path":"a.png","label":3}\n{"path":"b.png","label":4.0}\n{"path":"c.png","label":NaN}'
    table = read_data(manifest(folder, text, "l.jsonl"))
    assert table.classes == ("3", "4")
    assert rows_of(table)["c.png"] == ("unlabeled", "")


def test_lists_of_path_and_label(folder):
    text = "a.png 0\nb.png\t1\n\ndeep er/g.png 1\nc.png\nd.png -1\n"
    table = read_data(manifest(folder, text, "real_train.txt"))
    assert rows_of(table) == {
        "a.png": ("pool", "0"),
        "b.png": ("pool", "1"),
        "deep er/g.png": ("pool", "1"),
        "c.png": ("unlabeled", ""),
        "d.png": ("unlabeled", ""),
    }


@pytest.mark.parametrize(
    ("line", "path", "label"),
    [
        ("a.png red fox", "a.png", "red fox"),
        ("a.png  big red fox ", "a.png", "big red fox"),
        ("deep er/g.png red fox", "deep er/g.png", "red fox"),
        ("deep er/g.png\tred fox", "deep er/g.png", "red fox"),
        ("A B.PNG 7", "A B.PNG", "7"),
        ("my pic.png 2.jpg cat", "my pic.png 2.jpg", "cat"),
        ("a.png Äpfel & Birnen", "a.png", "Äpfel & Birnen"),
        ("a.png 3.5 kg", "a.png", "3.5 kg"),
        ("scan 7", "scan", "7"),
        ("scan\tred fox", "scan", "red fox"),
        ("my scan 7.png", "my scan 7.png", ""),
        ("a.png null", "a.png", ""),
    ],
)
def test_labels_of_several_words_in_lists(tmp_path, line, path, label):
    bad = RowErrors("l.txt")
    result = list(records(manifest(tmp_path, f"{line}\r\n", "l.txt"), bad, "path", []))
    assert result == [(1, path, label, "")]


@pytest.mark.parametrize("line", ["scan red fox", "my folder/scan 7", "a.xyz red fox"])
def test_lines_of_lists_that_can_be_read_in_two_ways_are_refused(folder, line):
    (message,) = faults(manifest(folder, f"a.png x\nb.png y\n{line}\n", "l.txt"))
    assert f"line 3: can't find the end of the path in '{line}'; put a tab" in message


def test_root_and_paths_that_stay_inside(folder):
    lists = folder / "lists"
    lists.mkdir()
    text = f"path,label\n./a.png,x\ndeep er/../b.png,y\n{folder}/c.png,y\n"
    path = manifest(lists, text)
    table = read_data(path, root=folder)
    assert table.keys == ("a.png", "b.png", "c.png")


@pytest.mark.parametrize("path", ["../out.png", "/etc/passwd", "x/../../out.png", "", "a\0b", ".."])
def test_paths_that_lead_outside_are_refused(folder, path):
    put(folder.parent / "out.png")
    text = f"path,label\na.png,x\nb.png,y\n{path},x\n"
    (message,) = faults(manifest(folder, text))
    assert "line 4" in message
    assert "--root" in message
    assert repr(path) in message


def test_all_invalid_rows_are_reported_by_line(folder):
    text = (
        "path,label,split\na.png,cat,labeled\nb.png,dog,labeled\n"
        "c.png,,test\nd.png,cat\ne.png,cat,trian\nf.png,bird,test\na.png,cat,labeled\n"
    )
    messages = faults(manifest(folder, text))
    assert [message.split(": ")[0][-6:] for message in messages] == [
        f"line {n}" for n in (4, 5, 6, 8, 7)
    ]
    assert "no label" in messages[0]
    assert "2 columns" in messages[1]
    assert "'trian' is unknown" in messages[2]
    assert "is already in line 2" in messages[3]
    assert "class 'bird' has no labeled image" in messages[4]


def test_several_classes_of_a_test_image_name_the_task(folder):
    text = "path,label,split\na.png,x,\nb.png,y,\nc.png,x|y,test\n"
    (message,) = faults(manifest(folder, text))
    assert "class 'x|y' has no labeled image; --task multilabel reads" in message


def test_many_bad_rows_are_counted(folder):
    text = "path,label\n" + "../x.png,a\n" * 100
    message = faults(manifest(folder, text))
    assert len(message) == MOST_FAULTS + 1
    assert message[-1].endswith(f"{100 - MOST_FAULTS} more rows are invalid")


def test_similar_class_names_are_reported(folder):
    text = "path,label,split\na.png,cat,train\nb.png,dog,train\nc.png,dgo,test\n"
    assert "did you mean 'dog'?" in faults(manifest(folder, text))[0]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("l.csv", "a.png,cat\nb.png,dog\n", "no column 'path'"),
        ("l.csv", "", "no column 'path'"),
        ("l.csv", "path,label,path\na.png,x,y\n", "column path twice"),
        ("l.csv", 'path,label\n"a.png,x\nb.png,y\n', "line 3"),
        ("l.csv", "path,label\na.png,\nb.png,\n", "0 classes"),
        ("l.csv", "path,label\na.png,cat\nb.png,\n", r"1 classes \(cat\)"),
        ("l.csv", "path,label\nx.png,cat\ny.png,dog\n", "none of the 2 images.*--root"),
        ("l.jsonl", "{oops}\n", "line 1: no JSON"),
        ("l.jsonl", "[1]\n", "text under 'path'"),
        ("l.jsonl", '{"path": "a.png", "label": [1]}\n', "label is a list; --task multilabel"),
        ("l.jsonl", '{"path": "a.png", "label": {"a": 1}}\n', "label and split"),
        ("l.json", "{}", "no known kind"),
    ],
)
def test_files_that_are_not_manifests(folder, name, text, words):
    with pytest.raises(DataError, match=words):
        read_data(manifest(folder, text, name))


def test_other_encodings_are_reported(folder):
    (folder / "l.csv").write_bytes("path,label\nä.png,x\n".encode("latin-1"))
    assert "not UTF-8" in faults(folder / "l.csv")[0]
    assert "--data" in faults(folder / "nothing.csv")[0]


def test_missing_images_are_named_or_skipped(folder):
    path = manifest(folder, "path,label\na.png,x\nb.png,y\nnone.png,x\ngone.png,\n")
    message = faults(path, size=8)
    assert [m for m in message if "none.png: no such file" in m]
    assert [m for m in message if "gone.png: no such file" in m]
    table = read_data(path, size=8, on_bad_image="skip")
    assert table.keys == ("a.png", "b.png")
    assert "unreadable images skipped: 2 of 4" in table.notes


def test_a_class_whose_images_are_all_skipped_is_reported(folder):
    path = manifest(folder, "path,label\na.png,x\nb.png,y\nnone.png,z\n")
    assert "class 'z' has no readable image" in faults(path, size=8, on_bad_image="skip")[0]


def test_labels_of_unlabeled_images_beyond_the_classes_are_noted(folder):
    text = "path,label,split\na.png,x,labeled\nb.png,y,labeled\nc.png,z,unlabeled\n"
    table = read_data(manifest(folder, text))
    assert rows_of(table)["c.png"] == ("unlabeled", "")
    assert any("1 images: z" in note for note in table.notes)


def test_file_names_are_utf8_whatever_the_locale(folder):
    put(folder / "schön.png")
    path = manifest(folder, "path,label\nschön.png,x\nb.png,y\n")
    code = (
        "import sys; from pathlib import Path; from ssl_toolkit.data.load import read_data;"
        "print(ascii(tuple(read_data(Path(sys.argv[1])).keys)))"
    )
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, path], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == r"('sch\xf6n.png', 'b.png')"


def test_a_long_manifest_is_read_in_one_pass(tmp_path):
    count = 50_000
    put(tmp_path / "images" / "0000000.jpg")
    lines = [f"images/{n:07d}.jpg,{'' if n % 10 else f'class {n % 7}'}" for n in range(count)]
    path = manifest(tmp_path, "path,label\n" + "\n".join(lines))
    rows = TableBuilder()
    start = time.process_time()
    assert len(read_manifest(path, None, rows)) == 7
    assert time.process_time() - start < 10 * count / 1_000_000 * 4  # 10 s a million, slow machines
    assert len(rows.keys) == count
    assert isinstance(rows.paths[0], str)  # a Path takes three times the memory


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train-000.tar", "train"),
        ("validation_1", "validation"),
        ("unlabeled.tar", "unlabeled"),
        ("Test.parquet", "test"),
        ("trainset.tar", ""),
        ("0001.tar", ""),
    ],
)
def test_the_split_at_the_start_of_a_name(name, part):
    assert part_of(name) == part


def test_the_command_reads_a_manifest(folder, command):
    for n in range(24):
        put(folder / f"{n}.png", n * 10)
    lines = [f"{n}.png,{'ab'[n % 2]},{'test' if n > 15 else 'labeled'}" for n in range(20)]
    lines += [f"{n}.png,,unlabeled" for n in range(20, 24)]
    path = manifest(folder, "path,label,split\n" + "\n".join(lines))
    done = command(
        "run", "--data", path, "--steps", 1, "--batch-size", 2, "--backbone", "wrn_10_1",
        "--image-size", 8,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "labeled 16" in done.stdout
    done = command("run", "--data", folder / "nowhere.csv")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
