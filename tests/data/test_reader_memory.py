"""Small files that would unpack to gigabytes: every reader stays below 1.5 GB."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import saved, tiff
from PIL import Image
from ssl_toolkit_benchmarks.safe_pickle import read_array_pickle
from tiny_images import encoded

from ssl_toolkit.data.images import archives
from ssl_toolkit.data.images.decoding import Room, Unreadable
from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.rows import LINE_LENGTH
from ssl_toolkit.errors import DataError
from ssl_toolkit.files import checked_archive

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    pa = None

LIMIT = 1.5e9

# All that training imports; then images examined by two threads, and what --data takes read.
LOOK = """
import json, resource, sys
from pathlib import Path
import ssl_toolkit.engine.experiment, ssl_toolkit.data.load
from ssl_toolkit.data.cache import decode_images
from ssl_toolkit.errors import DataError

def peak():  # Linux counts the memory of the process that started this one into ru_maxrss
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

folder = Path(sys.argv[1])
for found in decode_images(sorted(folder.glob("images/*")), 16, 2):
    print(json.dumps(["", found if isinstance(found, str) else found.mode, peak()]), flush=True)
for path in sorted(folder.glob("data/*")):
    try:
        ssl_toolkit.data.load.read_data(path, size=16)
        said = ""
    except DataError as error:
        said = str(error)
    print(json.dumps([path.name, said, peak()]), flush=True)
"""

SIDE = 9459  # squared just below Pillow's limit of pixels


def zeros(length: int) -> bytes:
    """So many zero bytes, compressed without holding them."""
    packer, block = zlib.compressobj(1), bytes(2**20)
    parts = [packer.compress(block) for _ in range(length // len(block))]
    return b"".join([*parts, packer.compress(bytes(length % len(block))), packer.flush()])


def png(bits: int, color: int, channels: int) -> bytes:
    def chunk(tag: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    head = struct.pack(">IIBBBBB", SIDE, SIDE, bits, color, 0, 0, 0)
    data = zeros(SIDE * (1 + SIDE * channels * bits // 8))
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def sparse(path: Path, head: bytes, length: int = 3 * 10**9) -> Path:
    """A file of that length, which takes no room on the disk."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(length)
    return path


def header(name: str, kind: bytes) -> bytes:
    """Of a member of a tar file, with 2.9 GB."""
    member = tarfile.TarInfo(name)
    member.size, member.type = 29 * 10**8, kind
    return member.tobuf()


def parquet(path: Path, cells: Any, labels: Any, rows: int) -> None:
    """A file of Hugging Face's form; cells that repeat are in it once."""
    kinds = [pa.field("bytes", cells.type), pa.field("path", pa.string())]
    image = pa.StructArray.from_arrays([cells, pa.nulls(rows, pa.string())], fields=kinds)
    table = pa.table({"label": labels, "image": image})
    pq.write_table(table, path, compression="zstd", store_schema=False, write_statistics=False)
    assert path.stat().st_size < 100_000


def repeated(value: str | bytes, other: str | bytes, rows: int) -> Any:
    indices = pa.array([0, 1] * (rows // 2), pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array([value, other]))


def make(folder: Path) -> None:
    """Write the files, in a process of its own: some take memory to be made."""
    images, data = folder / "images", folder / "data"
    images.mkdir()
    data.mkdir()
    (images / "clear.png").write_bytes(png(8, 6, 4))
    (images / "wide.png").write_bytes(png(16, 0, 1))
    # One strip of 16-bit RGBA is 716 MB before it becomes an image.
    alpha = {338: ("H", [2])}
    (images / "strip.tif").write_bytes(tiff([zeros(16)], SIDE, (16,) * 4, 2, alpha, compression=8))
    tile = {322: ("I", [60000]), 323: ("I", [60000]), 324: ("I", [8]), 325: ("I", [16])}
    (images / "tile.tif").write_bytes(tiff([zeros(16)], 16, more=tile, compression=8))
    # Pillow reads a WebP whole to look at its header.
    sparse(images / "long.webp", saved(Image.new("RGB", (8, 8)), "WEBP"))
    small = io.BytesIO()
    with tarfile.open(fileobj=small, mode="w") as archive:
        for name, content in (
            ("0.png", encoded(1)),
            ("0.cls", b"0"),
            ("1.png", b""),
            ("1.cls", b"1"),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        end = archive.offset
    sparse(data / "member.tar", small.getvalue()[:end] + header("2.png", tarfile.REGTYPE))
    sparse(data / "header.tar", header("a.png", tarfile.XHDTYPE))
    sparse(data / "x.csv", b"path,label\n")
    sparse(data / "x.jsonl", b'{"path": "')
    sparse(data / "x.txt", b"a.png 1\n")
    if pa is not None:
        cells = pa.array([bytes(200_000_000), b""], pa.binary())
        parquet(data / "cell.parquet", cells, [0, 1], 2)
        del cells
        # Once in the file and in its metadata; in memory 30 times if all rows were read at once.
        cells = repeated(bytes(60_000_000), b"", 30)
        parquet(data / "repeated.parquet", cells, [0, 1] * 15, 30)
        labels = repeated("a" * 10_000_000, "b", 2000)
        parquet(data / "label.parquet", pa.array([b"x"] * 2000), labels, 2000)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, int]]]:
    """What one process said of each file, and its peak of memory so far."""
    folder = tmp_path_factory.mktemp("large")
    path = os.pathsep.join(sys.path)  # of pytest: what tests share is on it
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, __file__, folder], check=True, timeout=300, env=environment)
    done = subprocess.run(
        [sys.executable, "-c", LOOK, folder],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    names = [path.name for path in sorted((folder / "images").iterdir())]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    yield {name or names[place]: (text, peak) for place, (name, text, peak) in enumerate(lines)}
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("clear.png", "RGBA"),
        ("wide.png", "I"),
        ("strip.tif", "would take 1,074 MB to decode, more than the 839 MB"),
        ("tile.tif", "would take 3,600 MB to decode"),
        ("long.webp", "has 3,000 MB, more than the 537 MB"),
        ("member.tar", "has 2,900 MB, more than the 537 MB"),
        ("header.tar", "a header of 2,900,000,000 bytes"),
        ("x.csv", f"line 2: has more than {LINE_LENGTH:,} characters"),
        ("x.jsonl", f"line 1: has more than {LINE_LENGTH:,} characters"),
        ("x.txt", f"line 2: has more than {LINE_LENGTH:,} characters"),
        ("cell.parquet", "row group 0 unpacks to 200 MB of 'image', from 0.0 MB in the file"),
        ("repeated.parquet", "::0::: not an image"),
        ("label.parquet", "row 0: the label has 10,000,000 characters"),
    ],
)
def test_a_reader_stays_below_its_memory(
    said: dict[str, tuple[str, int]], name: str, right: str
) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    text, peak = said[name]
    assert right in text
    assert peak < LIMIT, f"{peak / 1e6:,.0f} MB"


def test_rows_of_parquet_are_found_in_any_order(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    cells = [encoded(number) for number in range(40)]
    parquet(tmp_path / "x.parquet", pa.array(cells), [0, 1] * 20, 40)
    reader = archives.ParquetImages(str(tmp_path / "x.parquet"))
    order = [*range(40), *reversed(range(40)), *np.random.default_rng(0).permutation(40)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives, "_BATCH_BYTES", 3 * reader._sizes(0, "image.bytes")[0])
        assert [reader.encoded(int(row)) for row in order] == [cells[row] for row in order]


def test_threads_share_the_memory_for_decoding() -> None:
    room, held, most = Room(100), [0], [0]

    def work(amount: int) -> None:
        for _ in range(50):
            with room.reserve(amount):
                held[0] += amount
                most[0] = max(most[0], held[0])
                held[0] -= amount

    threads = [threading.Thread(target=work, args=(amount,)) for amount in (60, 60, 30, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most[0] == 100
    with pytest.raises(Unreadable, match="make it smaller"), room.reserve(101):
        pass
    with room.reserve(100):  # all was given back
        pass


def test_a_long_cell_of_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"path,label\na.png,{'x' * 200_000}\n")
    with pytest.raises(DataError, match=r"line 2: field larger than field limit"):
        read_data(path)
    path.write_text('path,label\n"a.png,' + "x,y\n" * 100_000)  # a quote that never ends
    with pytest.raises(DataError, match="field larger than field limit"):
        read_data(path)


def test_an_archive_of_arrays_that_unpacks_to_much_more(tmp_path: Path) -> None:
    path = tmp_path / "predictions.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("test_probabilities.npy", "w") as file,
    ):
        for _ in range(300):
            file.write(bytes(10**6))
    with path.open("rb") as file, pytest.raises(ValueError, match="unpacks to 300 MB"):
        checked_archive(file)
    small = io.BytesIO()
    np.savez_compressed(small, zeros=np.zeros(10**6))
    assert np.load(checked_archive(small))["zeros"].shape == (10**6,)


@pytest.mark.parametrize(
    "code",
    [
        b"cbuiltins\nlist\n(cbuiltins\nrange\n(I10000000000\ntRtR.",
        b"cbuiltins\nbytearray\n(I10000000000\ntR.",
        b"cbuiltins\ntuple\n(cnumpy\nndarray\n((I10000000000\nttRtR.",
    ],
)
def test_a_pickle_that_requests_too_much_memory(tmp_path: Path, code: bytes) -> None:
    (tmp_path / "x.pkl").write_bytes(code)
    with pytest.raises(DataError, match=r"x\.pkl"):
        read_array_pickle(tmp_path / "x.pkl")


def test_plain_types_of_a_pickle_are_read(tmp_path: Path) -> None:
    content = {"a": {1, 2}, "b": frozenset("x"), "c": bytearray(b"xy"), "d": range(3), "e": (1,)}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(content, protocol))
        assert read_array_pickle(tmp_path / "x.pkl") == content


if __name__ == "__main__":
    make(Path(sys.argv[1]))
