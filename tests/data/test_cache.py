import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from in_process import call
from PIL import Image

from ssl_toolkit.console import Console
from ssl_toolkit.data import cache as image_cache
from ssl_toolkit.data.cache import open_cache
from ssl_toolkit.data.images.files import read_images
from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers import image_files
from ssl_toolkit.data.readers.image_files import ImageFiles
from ssl_toolkit.engine import training_images
from ssl_toolkit.engine.training_images import ImageSource, channel_statistics, load_images
from ssl_toolkit.errors import DataError


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """The folder of the caches, of this test alone."""
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


@pytest.fixture
def paths(tmp_path):
    made = []
    for number in range(6):
        levels = np.random.default_rng(number).integers(0, 256, (20, 30, 3)).astype(np.uint8)
        made.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(levels).save(made[-1])
    return made


def opened(paths, size=8, **options):
    """The cache, and how many images were decoded for it."""
    calls = []
    cache, warning = open_cache(paths, size, progress=lambda *call: calls.append(call), **options)
    assert warning == ""
    return cache, calls[-1][0] if calls else 0


def folders(root):
    """The caches that can be used, those that are being built left out."""
    return [path for path in root.iterdir() if not path.name.startswith(".")]


def test_first_use_decodes_and_the_next_does_not(paths, root):
    cache, decoded = opened(paths)
    assert decoded == 6
    expected = read_images([Path(path) for path in paths], 8).transpose(0, 3, 1, 2)
    assert (cache.pixels == expected).all()
    assert cache.maps
    assert cache.shapes.tolist() == [[30, 20]] * 6
    assert cache.modes.tolist() == [b"RGB"] * 6
    again, decoded = opened(paths)
    assert decoded == 0
    assert (again.pixels == expected).all()
    assert (again.digests == cache.digests).all()
    assert len(folders(root)) == 1
    files = ImageFiles(paths)
    files.open(8)
    assert (files.take(np.array([4, 0, 4]), 8) == expected[[4, 0, 4]]).all()


def test_threads_and_blocks_give_the_same(paths, monkeypatch):
    one, _ = opened(paths)
    monkeypatch.setattr(image_cache, "_BLOCK_BYTES", 3 * 9 * 9 * 2)
    assert image_cache.block_length(9) == 2
    cache, decoded = opened(paths, 9, workers=3)
    assert decoded == 6
    assert (cache.digests == one.digests).all()
    assert (opened(paths, 9)[0].pixels == cache.pixels).all()


def test_another_size_is_another_cache(paths, root):
    opened(paths, 8)
    cache, decoded = opened(paths, 9)
    assert (cache.pixels.shape[-1], decoded) == (9, 6)
    assert len(folders(root)) == 2
    assert opened(paths, 8)[1] == 0


@pytest.mark.parametrize("change", ["time", "length", "swapped", "gone", "order"])
def test_a_change_of_the_files_is_seen(paths, change):
    opened(paths)
    if change == "time":
        os.utime(paths[2], ns=(0, os.stat(paths[2]).st_mtime_ns + 1))
    elif change == "length":
        before = os.stat(paths[2])
        Path(paths[2]).write_bytes(Path(paths[2]).read_bytes() + b"\0")
        os.utime(paths[2], ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "swapped":
        before, other = os.stat(paths[2]), Path(paths[2]).with_name("other.png")
        other.write_bytes(Path(paths[2]).read_bytes())
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.replace(paths[2])
    elif change == "gone":
        Path(paths[2]).unlink()
    else:
        paths.reverse()
    cache, decoded = opened(paths)
    assert decoded == 6
    assert set(cache.faults) == ({2} if change == "gone" else set())


def test_an_image_inside_an_archive_changes_with_the_archive(tmp_path):
    archive = tmp_path / "a.tar"
    Image.new("RGB", (4, 4), "red").save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    archive.write_bytes(content)
    path = f"{archive}::0+{len(content)}::a.png"
    assert opened([path])[1] == 1
    assert opened([path])[1] == 0
    os.utime(archive, ns=(0, 0))
    assert opened([path])[1] == 1


def damage(folder: Path, kind: str) -> None:
    pixels = folder / "pixels"
    content = bytearray(pixels.read_bytes())
    if kind == "short":
        pixels.write_bytes(content[:-1])
    elif kind == "flipped":
        content[len(content) // 2] ^= 1
        pixels.write_bytes(content)
    elif kind == "digest":
        (folder / "digests").write_bytes(bytes(6 * 32))
    elif kind == "missing":
        (folder / "moments").unlink()
    elif kind == "meta":
        (folder / "meta.json").write_text('{"checksums": {}, "faults"')
    elif kind == "format":
        text = (folder / "meta.json").read_text()
        (folder / "meta.json").write_text(text.replace('"format": ', '"format": 9'))
    else:
        (folder / "meta.json").write_text("[]")


@pytest.mark.parametrize(
    "kind", ["short", "flipped", "digest", "missing", "meta", "no object", "format"]
)
def test_a_damaged_cache_is_rebuilt(paths, root, kind):
    expected = opened(paths)[0].pixels.copy()
    damage(folders(root)[0], kind)
    cache, decoded = opened(paths)
    assert decoded == 6
    assert (cache.pixels == expected).all()
    assert opened(paths)[1] == 0
    assert [path.suffix for path in root.iterdir() if path.name.startswith(".")] == [".lock"]


def test_a_large_cache_is_checked_by_samples(paths, root, monkeypatch):
    monkeypatch.setattr(image_cache, "_BLOCK_BYTES", 3 * 8 * 8)
    monkeypatch.setattr(image_cache, "_CHECKED_BYTES", 2 * 3 * 8 * 8)
    opened(paths)
    pixels = folders(root)[0] / "pixels"
    content = bytearray(pixels.read_bytes())
    content[1 * 192] ^= 1  # in the second image of six; the first and the fourth are looked at
    pixels.write_bytes(content)
    assert opened(paths)[1] == 0
    content[3 * 192] ^= 1
    pixels.write_bytes(content)
    assert opened(paths)[1] == 6


BUILD = """
import sys, time
from pathlib import Path
from ssl_toolkit.data import cache as image_cache
from ssl_toolkit.data.readers import image_files
from ssl_toolkit.data.cache import open_cache
image_cache._BLOCK_BYTES = 1
told = []
def progress(done, total):
    told.append(done)
    if done:
        Path(sys.argv[1]).touch()
        time.sleep(float(sys.argv[2]))
cache, warning = open_cache(sys.argv[3:], 8, progress=progress)
assert warning == "" and cache.maps
print(len(told), cache.pixels.astype(int).sum())
"""


def build(mark: Path, seconds: float, paths: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILD, str(mark), str(seconds), *paths]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_build_leaves_no_cache(paths, root, tmp_path):
    mark = tmp_path / "mark"
    process = build(mark, 60, paths)
    while not mark.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert folders(root) == []
    assert len(list(root.glob(".*.partial"))) == 1
    assert opened(paths)[1] == 6
    assert len(folders(root)) == 1
    assert list(root.glob(".*.partial")) == []


def test_one_of_two_simultaneous_starts_builds_the_cache(paths, root, tmp_path):
    both = [build(tmp_path / f"mark{number}", 0.2, paths) for number in range(2)]
    answers = [process.communicate(timeout=60)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    # One told of each image; the other of the start at most, before it waited.
    assert sorted(int(messages) > 2 for messages, _ in answers) == [False, True]
    assert len({total for _, total in answers}) == 1
    assert len(folders(root)) == 1


def test_without_locks_the_first_process_wins(paths, root, monkeypatch):
    def no_locks(*arguments):
        raise OSError("no locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    seen = []

    def progress(done, total):
        if done == 6 and not seen:
            seen.append(opened(paths)[1])  # another run, in the middle of this one

    cache, warning = open_cache(paths, 8, progress=progress)
    assert warning == ""
    assert seen == [6]
    assert cache.maps
    assert len(folders(root)) == 1
    assert list(root.glob(".*.partial")) == []


@pytest.mark.parametrize("kind", ["a file", "read-only", "no space", "written in vain"])
def test_images_stay_in_memory_if_the_cache_cannot_be_written(paths, root, kind, monkeypatch):
    if kind == "a file":
        root.parent.write_text("")
    elif kind == "read-only":

        def refused(*arguments, **options):
            raise PermissionError(13, "Permission denied", str(root))

        monkeypatch.setattr(Path, "mkdir", refused)
    elif kind == "no space":
        monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
    else:

        def full(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
    cache, warning = open_cache(paths, 8)
    assert not cache.maps
    expected = read_images([Path(path) for path in paths], 8).transpose(0, 3, 1, 2)
    assert (cache.pixels == expected).all()
    assert "SSL_TOOLKIT_CACHE=DIR" in warning
    assert str(root.parent) in warning
    assert "\n" not in warning
    assert {path.suffix for path in root.glob("*")} <= {".lock"}


def test_a_full_disk_in_the_middle(paths, root):
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "from ssl_toolkit.data.cache import open_cache\n"
        "cache, warning = open_cache(sys.argv[1:], 32)\n"
        "assert not cache.maps and cache.pixels.any()\n"
        "print(warning)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True
    )
    assert f"can't be cached in {root} (File too large)" in done.stdout


def test_transient_errors_are_retried(paths, monkeypatch):
    decode = image_cache.decode_images

    def disconnected(some, *args, **options):
        for path, answer in zip(some, decode(some, *args, **options), strict=True):
            yield "not connected" if str(path) == paths[1] else answer

    with monkeypatch.context() as patch:
        patch.setattr(image_cache, "decode_images", disconnected)
        cache, _ = opened(paths)
        assert cache.faults == {1: "not connected"}
        assert not cache.pixels[1].any()
        assert opened(paths)[1] == 0
    cache, decoded = opened(paths)
    assert (cache.faults, decoded) == ({}, 6)


# --- in a table and a store ---------------------------------------------------------------------


@pytest.fixture
def folder(paths, tmp_path):
    for number, path in enumerate(paths):
        to = tmp_path / "data" / "train" / "ab"[number % 2]
        to.mkdir(parents=True, exist_ok=True)
        Path(path).rename(to / Path(path).name)
    return tmp_path / "data"


def test_a_folder_is_decoded_once(folder, monkeypatch):
    table = read_data(folder, size=8)
    expected = read_data(folder).read(np.arange(6), 8)

    def decode(*arguments):
        raise AssertionError("decoded again")

    monkeypatch.setattr("ssl_toolkit.data.cache.decode_images", lambda bad, size, pixels: [])
    monkeypatch.setattr("ssl_toolkit.data.readers.image_files.read_images", decode)
    again = read_data(folder, size=8)
    assert (table.read(np.array([5, 0]), 8) == expected[[5, 0]]).all()
    assert (again.read(np.arange(6), 8) == expected).all()
    assert again.digest(3) == table.digest(3)
    with pytest.raises(AssertionError, match="decoded again"):
        table.read(np.arange(6), 9)


def test_unreadable_images_are_reported_from_the_cache_too(folder, root):
    bad = folder / "train/a/2.png"
    bad.write_bytes(bad.read_bytes()[:100])
    for _ in range(2):
        with pytest.raises(DataError) as caught:
            read_data(folder, size=8)
        assert len(caught.value.messages) == 2
        assert str(bad) in caught.value.messages[0]
        assert "damaged" in caught.value.messages[0]
    table = read_data(folder, size=8, on_bad_image="skip")
    assert table.keys == tuple(f"train/{key}.png" for key in ("a/0", "a/4", "b/1", "b/3", "b/5"))
    plain = read_data(folder, size=8, on_bad_image="skip")
    assert plain.notes == table.notes
    assert (table.read(np.arange(5), 8) == plain.read(np.arange(5), 8)).all()
    assert [table.digest(row) for row in range(5)] == [plain.digest(row) for row in range(5)]
    assert len(folders(root)) == 1


@pytest.mark.parametrize("kept", ["file", "memory", "copy"])
def test_stores_agree_wherever_the_pixels_are(folder, root, kept, monkeypatch):
    (folder / "train/a/2.png").write_bytes(b"")
    if kept == "memory":
        root.parent.write_text("")
    elif kept == "file":
        monkeypatch.setattr(training_images, "_COPIED_BYTES", 0)
        monkeypatch.setattr(image_files, "_MAPPED_BYTES", 200)
    table = read_data(folder, size=8, on_bad_image="skip")
    rows = np.array([3, 1, 4])
    made = load_images(table, rows, 8)
    assert isinstance(made.images, torch.Tensor) == (kept == "copy")
    plain = ImageSource(torch.from_numpy(table.read(rows, 8).transpose(0, 3, 1, 2).copy()))
    assert len(made) == len(plain) == 3
    indices = torch.tensor([2, 0, 0, 1])
    for _ in range(3):  # pages are given back in between
        assert torch.equal(made.gather(indices), plain.gather(indices))
    made.gather(indices).zero_()
    assert made.gather(indices).max() > 0
    seen = torch.tensor([0, 2])
    assert channel_statistics((made, seen)) == channel_statistics((plain, seen))


def test_a_table_without_a_size_gets_its_cache_in_the_store(folder, root):
    table = read_data(folder)
    assert not root.exists()
    load_images(table, np.arange(6), 8)
    assert len(folders(root)) == 1
    (folder / "train/a/2.png").write_bytes(b"")
    table = read_data(folder, size=8, on_bad_image="skip")
    assert len(load_images(table, np.arange(5), 8)) == 5
    gone = read_data(folder)
    (folder / "train/b/1.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"1\.png: empty file"):
        load_images(gone, np.arange(6), 8)


def test_meta_is_plain(paths, root):
    opened(paths)
    meta = json.loads((folders(root)[0] / "meta.json").read_text())
    assert meta["format"] == 4
    assert meta["checksums"].keys() == {"pixels", "digests", "moments", "shapes", "modes"}


def test_names_below_a_folder_are_kept_once(tmp_path):
    keys = ["a/1.png", str(tmp_path / "2.png")]
    names = ImageFiles(keys, "/data")
    assert list(names) == names[:] == ["/data/a/1.png", keys[1]]
    assert names[0] == "/data/a/1.png"
    assert names._names is keys


def test_reading_a_large_data_set_shows_progress(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("ssl_toolkit.console.time.monotonic", lambda: now[0])
    console = Console()
    for done in range(0, 1001, 100):  # a small one; slow ones are told of
        console.reading(done, 1000)
        now[0] += 0.5
    assert capsys.readouterr().out == ""
    console = Console()
    for done in range(0, 10001, 100):  # a large one, twenty seconds a tenth
        console.reading(done, 10000)
        now[0] += 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "reading 10000 images …"
    assert lines[1] == "read 1000 of 10000 images, 3 min 0 s left"
    assert 9 <= len(lines) <= 11
    console = Console()
    for done in range(0, 10001, 100):  # and at once
        console.reading(done, 10000)
    assert len(capsys.readouterr().out.splitlines()) == 1


DAY = 86400


def aged(path, days):
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def test_caches_that_were_not_used_for_long_are_removed(paths, root):
    opened(paths, 8)
    opened(paths, 9)
    opened(paths, 10)
    old, young, used = sorted(folders(root), key=lambda one: (one / "pixels").stat().st_size)
    aged(old, 91)
    aged(young, 89)
    aged(used, 91)
    leftover = root / ".abc.x.partial"
    leftover.mkdir()
    aged(leftover, 91)
    aged(root / f".{old.name}.lock", 91)
    index = root.parent / "shards" / "0.json"
    index.parent.mkdir()
    index.write_text("x")
    aged(index, 91)
    opened(paths, 10)  # a start that uses it; nothing is built, nothing goes
    assert old.exists()
    opened(paths, 11)
    assert not old.exists()
    assert young.exists()
    assert used.exists()
    assert not leftover.exists()
    assert not index.exists()
    assert not [name for name in os.listdir(root) if old.name in name]
    assert opened(paths, 8)[1] == 6  # and made again


def test_a_cache_that_is_removed_in_use_stays_readable(paths, root):
    used, _ = opened(paths, 8)
    expected = used.pixels.copy()
    (folder,) = folders(root)
    aged(folder, 91)
    opened(paths, 9)
    assert not folder.exists()
    assert (used.pixels == expected).all()


def test_doctor_reports_the_size_of_the_caches(paths, root):
    opened(paths, 300)
    line = next(one for one in call("doctor").stdout.splitlines() if one.startswith("images:"))
    assert f"{root} (exists), 2 MiB" in line
    assert "not used for 90 days is removed" in line
    assert "SSL_TOOLKIT_CACHE=DIR" in line
