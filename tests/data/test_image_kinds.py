"""Files that are no image, or not of a kind that is read, are named as what they are everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_files import image_faults
from in_process import call, refusal
from tiny_images import encoded, put
from webdataset_shards import samples, shard

from ssl_toolkit.data.images.kinds import AVIF_IS_READ, kind_of_name
from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.listing import list_images
from ssl_toolkit.errors import DataError

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
HEADS = {
    "HEIC": HEIC,
    "HEIC of another brand": b"\0\0\0\x18ftypmif1\0\0\0\0",
    "Git LFS pointer": LFS,
    "git-annex pointer": b"/annex/objects/SHA256E-s3--a.jpg\n",
    "JPEG XL": b"\xff\x0a\0\0",
    "JPEG XL in a box": b"\0\0\0\x0cJXL \r\n\x87\n",
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n",
    "RAW, Canon": b"II*\0\x10\0\0\0CR\2\0",
    "RAW, Canon's new one": b"\0\0\0\x18ftypcrx \0\0\0\1",
    "RAW, Fuji": b"FUJIFILMCCD-RAW 0201",
    "web page": b"\n<!DOCTYPE html><html>404</html>",
    "Photoshop": b"8BPS\0\1",
    "PDF": b"%PDF-1.7",
    "TIFF": b"II*\0\0",
    "JPEG": b"\xff\xd8\xff\xe0",
}
WAYS = (
    "convert it to JPEG or PNG",
    "git lfs pull",
    "git annex get",
    "download it again",
    "save it",
)


@pytest.mark.parametrize("kind", HEADS)
def test_a_kind_by_its_content(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(HEADS[kind] + b"\0" * 50)
    (fault,) = image_faults([path])
    assert fault is not None
    assert kind.split(",")[0].split(" of ")[0].split(" in ")[0] in fault
    assert any(way in fault for way in WAYS)


def test_an_unknown_format_is_not_an_image(tmp_path: Path) -> None:
    for content in (b"hello", b"<svg/>", b"\0\0\0\x18ftypmp42", b"version 2"):
        (tmp_path / "x.jpg").write_bytes(content)
        assert image_faults([tmp_path / "x.jpg"]) == ["not an image"]


def test_a_kind_by_its_name() -> None:
    assert "HEIC" in kind_of_name("a/IMG_1.HEIC")
    assert "RAW" in kind_of_name("a/IMG_1.cr2")
    assert [kind_of_name(name) for name in ("a.jpg", "heic", ".heic", "a.heic.txt", "")] == [""] * 5
    assert bool(kind_of_name("a.avif")) != AVIF_IS_READ


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("labeled/a/1", "labeled/b/1", "labeled/b/2", "unlabeled/1"):
        put(tmp_path / "data" / f"{name}.png", len(name))
    return tmp_path / "data"


def test_in_folders(data: Path) -> None:
    (data / "unlabeled" / "phone.heic").write_bytes(HEIC)
    (data / "unlabeled" / "notes.txt").write_bytes(b"x")
    notes = read_data(data).notes
    assert any("1, each a HEIC image" in note and "phone.heic" in note for note in notes)
    assert any("1 (no image's extension" in note and "notes.txt" in note for note in notes)
    (data / "labeled" / "a" / "2.png").write_bytes(LFS)
    with pytest.raises(DataError, match=r"a/2\.png: a Git LFS pointer.*`git lfs pull`"):
        read_data(data, size=8)


@pytest.mark.parametrize("top", ["", "labeled"])
def test_classes_with_nothing_else_are_refused_in_their_order(tmp_path: Path, top: str) -> None:
    for name in ("10", "2", "b", "a"):
        (tmp_path / top / name).mkdir(parents=True)
        (tmp_path / top / name / "1.heic").write_bytes(HEIC)
    with pytest.raises(DataError) as caught:
        read_data(tmp_path)
    folders = [message.split()[2] for message in caught.value.messages]
    assert folders == [str(tmp_path / top / name) for name in ("10", "2", "a", "b")]
    assert "1 files, each a HEIC image: convert it" in caught.value.messages[0]


def test_a_class_is_not_lost_because_of_its_format(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path / name / "1.png")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "1.heic").write_bytes(HEIC)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "x.ipynb").write_bytes(b"{}")
    with pytest.raises(DataError, match=r"class folder .*/c has no image, but 1 files"):
        read_data(tmp_path)


def test_skipped_images_are_the_reason_why_a_class_is_empty(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path / name / "1.png")
    (tmp_path / "b" / "1.png").write_bytes(LFS)
    with pytest.raises(
        DataError, match=r"1 unreadable ones, the first b/1\.png: a Git LFS pointer"
    ):
        read_data(tmp_path, size=8, on_bad_image="skip")


def test_in_manifests(data: Path) -> None:
    (data / "phone.heic").write_bytes(HEIC)
    (data / "x.csv").write_text("path,label\nlabeled/a/1.png,a\nlabeled/b/1.png,b\nphone.heic,a\n")
    with pytest.raises(DataError, match=r"phone\.heic: a HEIC image; convert it"):
        read_data(data / "x.csv", size=8)
    for name in ("x.csv", "x.jsonl", "x.txt"):
        (data / name).write_bytes(LFS)
        with pytest.raises(DataError, match=rf"can't read .*{name}: a Git LFS pointer"):
            read_data(data / name)


def test_in_shards(tmp_path: Path) -> None:
    path = shard(tmp_path / "x.tar", [*samples(4), ("p.heic", HEIC), ("p.cls", b"1")])
    assert any("each a HEIC image" in note and "p.heic" in note for note in read_data(path).notes)
    only = [(f"{n}.heic", HEIC) for n in range(3)] + [(f"{n}.cls", b"1") for n in range(3)]
    with pytest.raises(DataError, match=r"has no images that can be read: .*3, each a HEIC image"):
        read_data(shard(tmp_path / "only.tar", only))
    path = shard(tmp_path / "lfs.tar", [*samples(4), ("p.png", LFS)])
    with pytest.raises(DataError, match=r"p\.png: a Git LFS pointer"):
        read_data(path, size=8)
    path.write_bytes(LFS)
    with pytest.raises(DataError, match=r"can't read the shard .*: a Git LFS pointer"):
        read_data(path)


def test_in_parquet_files(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = [{"bytes": content, "path": None} for content in (encoded(1), encoded(2), HEIC)]
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"label": [0, 1, 1], "image": pa.array(cells, kind)}), path)
    with pytest.raises(DataError, match="a HEIC image; convert it"):
        read_data(path, size=8)
    path.write_bytes(LFS)
    with pytest.raises(DataError, match=r"can't read .*x\.parquet: a Git LFS pointer"):
        read_data(path)


def test_in_what_is_predicted(tmp_path: Path) -> None:
    put(tmp_path / "x" / "1.png")
    (tmp_path / "x" / "2.heic").write_bytes(HEIC)
    (note,) = list_images([str(tmp_path / "x")]).notes
    assert "1, each a HEIC image" in note
    (tmp_path / "x" / "1.png").unlink()
    with pytest.raises(DataError, match=r"no images in this folder; .*1, each a HEIC image"):
        list_images([str(tmp_path / "x")])


# --- names with two dots in shards ----------------------------------------------------------------


def test_names_with_two_dots_are_reported(tmp_path: Path) -> None:
    more = [("22.05.png", encoded(9)), ("22.05.cls", b"1"), ("d/2024.01.02.JPG", encoded(8))]
    path = shard(tmp_path / "x.tar", [*samples(8), *more])
    output = call("inspect", path).stdout
    (line,) = [line for line in output.splitlines() if line.startswith("images not used")]
    assert "images not used, 2: their names have two dots (x.tar/22.05.png, x.tar/d/2024" in line
    assert "rename them, such as 22.05.png to 22_05.png" in line
    assert "no image's extension" not in output
    assert len(read_data(path).keys) == 8
    assert read_data(path).notes == read_data(path).notes  # from the index too


def test_side_files_of_an_image_are_not_reported(tmp_path: Path) -> None:
    path = shard(tmp_path / "x.tar", [*samples(4), ("0000.seg.png", encoded(1))])
    assert not any("two dots" in note for note in read_data(path).notes)


def test_a_shard_of_only_such_names(tmp_path: Path) -> None:
    only = [(f"img.{n}.{end}", encoded(n)) for n in range(4) for end in ("png", "cls")]
    text = refusal("inspect", shard(tmp_path / "x.tar", only))
    assert (
        "x.tar has no images that can be read: their names have two dots (x.tar/img.0.png" in text
    )
    assert "rename them" in text


def test_an_empty_shard(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no images that can be read: it is empty"):
        read_data(shard(tmp_path / "x.tar", []))
