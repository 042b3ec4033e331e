import json
import os
import tarfile
from collections import Counter

import numpy as np
import pytest
from tiny_images import encoded, rows_of
from webdataset_shards import samples, shard

from ssl_toolkit.data.images.archives import container, read_packed
from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers import webdataset as shards_module
from ssl_toolkit.errors import DataError


@pytest.fixture
def shards(tmp_path):
    shard(tmp_path / "train-000.tar", samples(6))
    shard(tmp_path / "train-001.tar", samples(6, start=6))
    shard(tmp_path / "unlabeled-000.tar", samples(3, start=20, labeled=False))
    shard(tmp_path / "test" / "000.tar", samples(4, start=30))
    return tmp_path


def test_shards_of_a_folder(shards):
    table = read_data(shards)
    assert table.classes == ("0", "1")
    assert Counter(table.splits.tolist()) == {"pool": 12, "unlabeled": 3, "test": 4}
    assert rows_of(table)["train-001.tar/0007.png"] == ("pool", "1")
    assert rows_of(table)["test/000.tar/0030.png"] == ("test", "0")
    rows = np.array([table.keys.index(f"train-00{n // 6}.tar/{n:04d}.png") for n in (11, 0, 7)])
    assert table.read(rows, 4)[:, 0, 0, 0].tolist() == [11, 0, 7]
    assert len({table.digest(row) for row in range(len(table.keys))}) == len(table.keys)
    assert sorted(os.listdir(shards)) == [
        "test", "train-000.tar", "train-001.tar", "unlabeled-000.tar"
    ]  # fmt: skip


def test_the_name_of_the_data_folder_is_no_split(tmp_path):
    shard(tmp_path / "test-images" / "000.tar", samples(4))
    assert set(read_data(tmp_path / "test-images").splits) == {"pool"}


def test_one_shard(tmp_path):
    table = read_data(shard(tmp_path / "pets.tar", samples(4)))
    assert table.keys[0] == "pets.tar/0000.png"
    assert set(table.splits) == {"pool"}


def test_the_cache_follows_a_shard_that_changes(tmp_path):
    path = shard(tmp_path / "pets.tar", samples(4))
    first = read_data(path, size=4).read(np.arange(4), 4)
    shard(path, ((name, encoded(9) if name.endswith("png") else text) for name, text in samples(4)))
    os.utime(path, ns=(1, 1))
    again = read_data(path, size=4).read(np.arange(4), 4)
    assert first[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert again[:, 0, 0, 0].tolist() == [9] * 4


def test_labels_in_cls_json_and_txt(tmp_path):
    members = [
        ("cat/a.jpg", encoded(1)), ("cat/a.txt", b"cat\n"),
        ("cat/b.jpg", encoded(2)), ("cat/b.json", json.dumps({"label": "dog", "id": 3}).encode()),
        ("c.PNG", encoded(3)), ("c.json", b'{"cls": 7}'), ("c.txt", b"a caption"),
        ("d.jpg", encoded(4)), ("d.cls", b"cat"), ("d.json", b'{"label": "dog"}'),
        ("e.jpg", encoded(5)), ("e.json", b'{"label": null}'),
        ("f.jpg", encoded(6)), ("f.cls", b"-1"),
    ]  # fmt: skip
    table = read_data(shard(tmp_path / "x.tar", members))
    labels = {key.rpartition("/")[2][0]: label for key, (_, label) in rows_of(table).items()}
    assert labels == {"a": "cat", "b": "dog", "c": "7", "d": "cat", "e": "", "f": ""}


def test_side_members_are_not_data(tmp_path):
    members = [
        *samples(4), ("__MACOSX/._0000.png", b"x"), (".hidden/a.png", encoded(1)),
        ("@eaDir/0000.png", encoded(1)), ("Thumbs.db", b"x"), (".DS_Store", b"x"),
        ("./0009.png", encoded(9)), ("0000.seg.png", encoded(3)), ("9999.cls", b"1"),
    ]  # fmt: skip
    path = shard(tmp_path / "x.tar", members)
    with tarfile.open(path, "a") as archive:
        folder = tarfile.TarInfo("sub")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    table = read_data(path)
    assert [key.rpartition("/")[2] for key in table.keys] == [
        "0000.png", "0001.png", "0002.png", "0003.png", "0009.png"
    ]  # fmt: skip
    assert any("x.tar/9999" in note for note in table.notes)


@pytest.mark.parametrize("name", ["../../evil.png", "/etc/evil.png", "a/../../evil.png"])
def test_members_that_lead_outside_are_refused(tmp_path, name):
    path = shard(tmp_path / "in" / "x.tar", [*samples(4), (name, encoded(1))])
    with pytest.raises(DataError, match=r"x\.tar has a member that leads outside"):
        read_data(path)
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_not_followed(tmp_path, kind):
    path = shard(tmp_path / "x.tar", samples(4))
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("0009.png")
        link.type, link.linkname = kind, "/etc/passwd"
        archive.addfile(link)
    table = read_data(path)
    assert len(table.keys) == 4
    assert any("0009.png" in note for note in table.notes)


def test_damaged_shards_and_images_are_named(tmp_path):
    (tmp_path / "bad.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(DataError, match=r"can't read the shard .*bad\.tar: damaged"):
        read_data(tmp_path / "bad.tar")
    packed = shard(tmp_path / "packed" / "x.tar", samples(4), "w:gz")
    with pytest.raises(DataError, match=r"compressed.*; unpack it"):
        read_data(packed)
    whole = shard(tmp_path / "whole.tar", samples(40)).read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2 + 100])
    with pytest.raises(DataError, match=r"cut\.tar: damaged"):
        read_data(tmp_path / "cut.tar")
    path = shard(tmp_path / "x.tar", [*samples(4), ("oops.png", b"no image"), ("no.png", b"")])
    with pytest.raises(DataError) as caught:
        read_data(path, size=8)
    assert "oops.png: not an image" in caught.value.messages[0]
    assert "no.png: empty file" in caught.value.messages[1]
    assert len(read_data(path, size=8, on_bad_image="skip").keys) == 4


def test_invalid_samples_are_named(tmp_path):
    two = shard(tmp_path / "two.tar", [*samples(4), ("0000.jpg", encoded(1))])
    with pytest.raises(DataError, match=r"two\.tar/0000 has 2 images"):
        read_data(two)
    odd = shard(tmp_path / "odd.tar", [*samples(4), ("9.png", encoded(1)), ("9.json", b"{")])
    with pytest.raises(DataError, match=r"the label 9\.json of a shard is damaged"):
        read_data(odd)
    big = shard(tmp_path / "big.tar", [*samples(4), ("9.txt", b"x" * (2**20 + 1))])
    with pytest.raises(DataError, match="a label is a number or a name"):
        read_data(big)
    bare = shard(tmp_path / "test-0.tar", [*samples(4), ("9.png", encoded(1))])
    with pytest.raises(DataError, match=r"test-0\.tar/9\.png' is in the test split and has no"):
        read_data(bare)


def test_class_folders_win_over_a_stray_archive(tmp_path):
    shard(tmp_path / "backup.tar", samples(4))
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(encoded(1))
    assert read_data(tmp_path).classes == ("a", "b")


def test_paths_inside_tar_files(tmp_path):
    path = f"{shard(tmp_path / 'x.tar', samples(1))}::512+{len(encoded(0))}::0000.png"
    assert container(path) == str(tmp_path / "x.tar")
    assert read_packed(path) == encoded(0)
    assert container(tmp_path / "x.tar") is None
    assert read_packed(str(tmp_path / "a::b.png")) is None
    with pytest.raises(OSError, match="ends inside"):
        read_packed(f"{tmp_path}/x.tar::512+99999999::0000.png")


@pytest.mark.parametrize("name", ["x.tar.gz", "x.TGZ", "x.tar.zst", "x.tar.bz2"])
def test_compressed_shards_are_reported_with_the_way_out(tmp_path, name):
    path = shard(tmp_path / "data" / name, samples(4), "w:gz")
    shard(tmp_path / "data" / "y.tar", samples(4, start=9))
    for given in (path, path.parent):
        with pytest.raises(DataError) as caught:
            read_data(given)
        (message,) = caught.value.messages
        assert f"{path}: compressed" in message
        assert f"gunzip {path}" in message


@pytest.fixture
def cache(tmp_path_factory, monkeypatch):
    """The folder in which indices are kept, of this test alone."""
    folder = tmp_path_factory.mktemp("cache") / "cache"
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(folder))
    return folder


@pytest.fixture
def scans(cache, monkeypatch):
    """The shards that were scanned."""
    scanned = []
    scan = shards_module._scan
    monkeypatch.setattr(
        shards_module, "_scan", lambda path: scanned.append(path.name) or scan(path)
    )
    return scanned


def test_a_second_start_scans_no_shard(shards, scans):
    shard(shards / "train-002.tar", [*samples(2, start=40), ("side.bin", b"x"), ("z.cls", b"1")])
    first = read_data(shards)
    assert len(scans) == 5
    again = read_data(shards)
    assert len(scans) == 5
    assert again.keys == first.keys
    assert again.notes == first.notes
    assert (again.labels == first.labels).all()
    rows = np.arange(len(first.keys))
    assert (again.read(rows, 4) == first.read(rows, 4)).all()


def test_only_a_shard_that_changed_is_scanned_again(shards, scans):
    read_data(shards)
    shard(shards / "train-001.tar", samples(7, start=60))
    scans.clear()
    table = read_data(shards)
    assert scans == ["train-001.tar"]
    assert "train-001.tar/0066.png" in table.keys
    os.utime(shards / "train-000.tar", ns=(1, 1))
    scans.clear()
    read_data(shards)
    assert scans == ["train-000.tar"]
    swapped = shards.with_name("swapped.tar")  # with the same length and modification time
    swapped.write_bytes((shards / "train-000.tar").read_bytes())
    os.utime(swapped, ns=(1, 1))
    swapped.replace(shards / "train-000.tar")
    scans.clear()
    read_data(shards)
    assert scans == ["train-000.tar"]


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "binary", "other"])
def test_a_damaged_index_is_rebuilt(shards, scans, cache, damage):
    first = read_data(shards)
    for place in (cache / "shards").iterdir():
        text = place.read_text()
        place.write_bytes({
            "cut": text[:-3].encode(),
            "changed": text.replace("png", "PNG").encode(),
            "empty": b"",
            "binary": b"\xff\xfe",
            "other": b"[]\n[]",
        }[damage])  # fmt: skip
    scans.clear()
    assert read_data(shards).keys == first.keys
    assert len(scans) == 4
    read_data(shards)
    assert len(scans) == 4


def test_shards_are_scanned_if_the_index_cannot_be_stored(shards, scans, cache):
    cache.write_text("no folder")
    assert len(read_data(shards).keys) == len(read_data(shards).keys) == 19
    assert len(scans) == 8
