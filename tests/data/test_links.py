import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from case_folders import case_folders  # noqa: F401
from folder_tables import counts, image, noted
from ssl_toolkit_benchmarks.domainnet import DomainNetReal
from ssl_toolkit_benchmarks.mini_imagenet import MiniImageNet
from tiny_images import put

from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.listing import list_images
from ssl_toolkit.errors import DataError
from ssl_toolkit.inference.pseudo_label import MANIFEST, label_pool, uncertain_image
from ssl_toolkit.tabular import write_rows


def test_links_of_case_14(cases):
    start = time.monotonic()
    with pytest.raises(DataError) as caught:
        read_data(cases / "c14_links", size=8)
    assert len(caught.value.messages) == 2
    assert "gone.png: broken link" in caught.value.messages[0]
    assert "--on-bad-image skip" in caught.value.messages[1]
    table = read_data(cases / "c14_links", size=8, on_bad_image="skip")
    assert time.monotonic() - start < 10
    assert counts(table) == {"labeled": 17, "unlabeled": 12, "test": 12}
    assert noted(table, "gone.png") == "skipped unlabeled/gone.png: broken link"
    assert noted(table, "unreadable images skipped").endswith("1 of 42")
    assert noted(table, "links not followed").endswith("unlabeled/loop")


def test_linked_folders(tmp_path):
    root = tmp_path / "data"
    for name in ("labeled/a/1.png", "labeled/b/1.png", "test/a/1.png", "unlabeled/z/1.png"):
        image(root / name)
    image(tmp_path / "elsewhere" / "deep" / "2.png")
    image(tmp_path / "beside" / "3.png")  # only reached through the folder above the data
    (tmp_path / "elsewhere" / "round").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(root)
    pool = root / "unlabeled"
    (pool / "a_more").symlink_to(tmp_path / "elsewhere")  # followed
    (pool / "more_again").symlink_to(tmp_path / "elsewhere")  # was met
    (pool / "a_same").symlink_to("z")  # a real folder of the pool
    (pool / "leak").symlink_to("../test/a")
    (pool / "leak.png").symlink_to("../test/a/1.png")
    (pool / "up").symlink_to(tmp_path)
    (root / "test" / "b").symlink_to("../labeled/b")
    (root / "labeled" / "loop").symlink_to(".")
    table = read_data(root)
    assert table.classes == ("a", "b")
    assert [key for key in table.keys if key.startswith("unlabeled")] == [
        "unlabeled/a_more/deep/2.png",
        "unlabeled/z/1.png",
    ]
    assert counts(table) == {"labeled": 2, "unlabeled": 2, "test": 1}
    line = noted(table, "links not followed")
    for link in ("a_more/back", "a_more/round", "more_again", "a_same", "leak", "leak.png", "up"):
        assert f"unlabeled/{link}" in line
    assert "test/b" in line
    assert "labeled/loop" in line


def test_a_split_can_be_a_link_but_not_to_another_split(tmp_path):
    root = tmp_path / "data"
    for name in ("labeled/a/1.png", "labeled/b/1.png"):
        image(root / name)
    image(tmp_path / "pool" / "1.png")
    (root / "unlabeled").symlink_to(tmp_path / "pool")
    assert counts(read_data(root)) == {"labeled": 2, "unlabeled": 1}
    (root / "test").symlink_to("labeled")
    with pytest.raises(DataError, match="lead to the same images"):
        read_data(root)


def test_a_test_split_elsewhere_stays_out_of_the_pool(tmp_path):
    root = tmp_path / "data"
    for name in ("data/labeled/a/1.png", "data/labeled/b/1.png", "tests/a/1.png"):
        image(tmp_path / name)
    (root / "test").symlink_to(tmp_path / "tests")
    (root / "unlabeled").mkdir()
    (root / "unlabeled" / "more").symlink_to(tmp_path / "tests" / "a")
    table = read_data(root)
    assert counts(table) == {"labeled": 2, "test": 1}
    assert "unlabeled/more" in noted(table, "links not followed")


def listed(path, folder):
    """A manifest of any kind that names two images of its own and one at `path`."""
    labels = {"0.png": "x", "1.png": "y", path: "x"}
    for number, name in enumerate(("0.png", "1.png")):
        put(folder / name, number)
    texts = {
        "l.csv": "path,label\n" + "".join(f"{key},{label}\n" for key, label in labels.items()),
        "l.tsv": "path\tlabel\n" + "".join(f"{key}\t{label}\n" for key, label in labels.items()),
        "l.jsonl": "\n".join(json.dumps({"path": k, "label": v}) for k, v in labels.items()),
        "l.txt": "".join(f"{key} {label}\n" for key, label in labels.items()),
        "metadata.csv": "file_name,label\n" + "".join(f"{k},{v}\n" for k, v in labels.items()),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts if name != "metadata.csv"] + [folder]


@pytest.mark.parametrize(
    ("path", "outside"),
    [
        ("dir/s.png", True),  # a folder that is a link
        ("file.png", True),  # a file that is one
        ("deep/er/s.png", True),  # below such a folder
        ("round/dir/s.png", True),  # by another link, inside
        ("gone.png", True),  # a broken link leads out too
        ("chain.png", True),
        ("in.png", False),
        ("inside/0.png", False),
        ("up/m/2.png", False),  # out and in again
    ],
)
def test_links_out_of_the_root_are_refused(tmp_path, path, outside):
    folder = tmp_path / "m"
    put(tmp_path / "secret" / "s.png")
    put(folder / "real" / "0.png", 3)
    put(folder / "2.png", 4)
    (tmp_path / "secret" / "sub").mkdir()
    put(tmp_path / "secret" / "sub" / "s.png")
    (folder / "deep").mkdir()
    for name, target in {
        "dir": "../secret",
        "file.png": "../secret/s.png",
        "deep/er": "../../secret/sub",
        "round": ".",
        "gone.png": "../secret/gone.png",
        "chain.png": "file.png",
        "in.png": "real/0.png",
        "inside": "real",
        "up": "..",
    }.items():
        (folder / name).symlink_to(target)
    for data in listed(path, folder):
        if outside:
            with pytest.raises(DataError, match=rf"line [34]: '{path}' leads by a link out of"):
                read_data(data)
        else:
            assert read_data(data).keys[2] == path


def test_the_root_itself_can_be_a_link(tmp_path):
    put(tmp_path / "store" / "a.png", 1)
    put(tmp_path / "store" / "b.png", 2)
    (tmp_path / "link").symlink_to("store")
    (tmp_path / "l.csv").write_text("path,label\na.png,x\nb.png,y\n")
    assert len(read_data(tmp_path / "l.csv", root=tmp_path / "link").keys) == 2
    shutil.copy(tmp_path / "l.csv", tmp_path / "store")
    assert len(read_data(tmp_path / "link" / "l.csv").keys) == 2
    (tmp_path / "l.csv").write_text(
        f"path,label\n{tmp_path}/link/a.png,x\n{tmp_path}/store/b.png,y\n"
    )
    assert len(read_data(tmp_path / "l.csv", root=tmp_path / "link").keys) == 2


def test_lists_of_benchmarks_cannot_leave_their_root_either(tmp_path):
    put(tmp_path / "secret" / "s.png")
    top = tmp_path / "domainnet"
    put(top / "real" / "ant" / "1.png")
    put(top / "real" / "bee" / "1.png")
    (top / "real" / "bee" / "2.png").symlink_to(tmp_path / "secret" / "s.png")
    (top / "real_train.txt").write_text("real/ant/1.png 0\nreal/bee/2.png 1\n")
    (top / "real_test.txt").write_text("real/bee/1.png 1\n")
    with pytest.raises(DataError, match=r"real_train\.txt, line 2: 'real/bee/2\.png' leads"):
        DomainNetReal().load(top)
    (top / "real" / "bee" / "2.png").unlink()
    put(top / "real" / "bee" / "2.png", 3)
    shutil.move(top / "real", tmp_path / "unpacked")
    (top / "real").symlink_to(tmp_path / "unpacked")  # where the archive was unpacked
    assert len(DomainNetReal().load(top).keys) == 3

    top = tmp_path / "mini"
    put(top / "images" / "1.png")
    (top / "images" / "2.png").symlink_to(tmp_path / "secret" / "s.png")
    for name, row in {"train": "1.png,a", "val": "2.png,b", "test": "1.png,a"}.items():
        (top / f"{name}.csv").write_text(f"filename,label\n{row}\n")
    with pytest.raises(DataError, match=r"val\.csv, line 2: 'images/2\.png' leads .*secret"):
        MiniImageNet().load(top)


def test_pseudo_labels_of_a_linked_pool_read_back(tmp_path):
    put(tmp_path / "store" / "sub" / "1.png", 1)
    put(tmp_path / "store" / "2.png", 2)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "pool").symlink_to("../store")
    (tmp_path / "farm").mkdir()
    for number, name in enumerate(("sub/1.png", "2.png")):
        (tmp_path / "farm" / f"{number}.png").symlink_to(tmp_path / "store" / name)
    for pool in (tmp_path / "m" / "pool", tmp_path / "farm", tmp_path / "store"):
        files = [*list_images([str(pool)]).paths]
        probabilities = np.array([[0.9, 0.1], [0.1, 0.9]], np.float32)
        images = [uncertain_image("image", probs, "ab") for probs in probabilities]
        labeling = label_pool(files, images, 0, tmp_path / "m")
        write_rows(tmp_path / "m" / "next.csv", MANIFEST, labeling.rows())
        root = Path(labeling.root) if labeling.root else None
        table = read_data(tmp_path / "m" / "next.csv", root=root)
        assert [os.path.realpath(path) for path in table.files] == [
            os.path.realpath(file) for file in files
        ]
