"""Images inside a larger file, each with its own path.

``ARCHIVE.tar::OFFSET+LENGTH::NAME`` is a member of a tar file, ``FILE.parquet::ROW::`` a row of
a parquet file; the name is informative only. The path suffices to read the image: nothing is
extracted to disk, and no index is needed.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

from ssl_toolkit.errors import DataError
from ssl_toolkit.files import file_stamp

MOST_BYTES = 512 * 2**20
"""Maximum size of an encoded image, and of a column in a row group of parquet."""

_LEAST_PACKED, _MOST_PACKED = 64 * 2**20, 10
"""A longer column that is packed more tightly than this holds no images: those don't shrink."""

_BATCH_BYTES = 64 * 2**20  # of a column of parquet, at a time

_PACKED = re.compile(r"(.+\.(?:tar|parquet))::(\d+)(?:\+(\d+))?::.*", re.DOTALL | re.IGNORECASE)


def tar_path(archive: Path | str, offset: int, length: int, name: str) -> str:
    """Return the path of an image in an uncompressed tar file."""
    return f"{os.fspath(archive)}::{offset}+{length}::{name}"


def parquet_path(file: Path | str, row: int) -> str:
    """Return the path of the image in a row of a parquet file."""
    return f"{os.fspath(file)}::{row}::"


def _packed(path: Path | str) -> re.Match[str] | None:
    text = os.fspath(path)
    return _PACKED.fullmatch(text) if "::" in text else None


def container(path: Path | str) -> str | None:
    """Return the archive that contains an image; None for an image that is a file."""
    match = _packed(path)
    return match[1] if match else None


def tar_member(path: Path | str) -> tuple[str, int, int] | None:
    """Return tar file, offset and length of an image inside one; None for any other."""
    match = _packed(path)
    if match is None or match[3] is None:
        return None
    return match[1], int(match[2]), int(match[3])


def too_long(length: int) -> str:
    """Return why so many bytes are not read as an image."""
    return (
        f"has {length / 1e6:,.0f} MB, more than the {MOST_BYTES / 1e6:,.0f} MB that an image may; "
        "make it smaller"
    )


def read_packed(path: Path | str) -> bytes | None:
    """Return the encoded image inside a larger file; None for an image that is a file.

    Raises:
        OSError: The larger file can't be read, or ends before the image does.
        DataError: Pyarrow isn't installed.
    """
    match = _packed(path)
    if match is None:
        return None
    file, start, length = match.groups()
    if length is None:
        return parquet_images(file, file_stamp(file)).encoded(int(start))
    if int(length) > MOST_BYTES:
        raise OSError(too_long(int(length)))
    with open(file, "rb") as archive:
        archive.seek(int(start))
        content = archive.read(int(length))
    if len(content) < int(length):
        raise OSError(f"{file} ends inside the image")
    return content


class ParquetImages:
    """The rows of a parquet file of Hugging Face's form; only a few images are in memory at a time.

    Args:
        path: The file.

    Raises:
        OSError: It can't be read, or its columns unpack to more than memory should hold.
        DataError: Pyarrow isn't installed.
    """

    def __init__(self, path: str) -> None:
        parquet = import_parquet()
        try:
            # Otherwise all of a column in a row group would be read at once.
            self._file = parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
        except OSError:
            raise
        except Exception as error:  # pyarrow raises exceptions of any kind on corrupt files
            raise OSError(" ".join(str(error).split())) from None
        self.schema: Any = self._file.schema_arrow
        self.image: str = next((field.name for field in self.schema if _is_image(field.type)), "")
        """Name of the column with the images, empty where there is none."""
        metadata = self._file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self._starts: list[int] = [0, *accumulate(group.num_rows for group in groups)]
        self.count: int = self._starts[-1]
        """Number of rows."""
        self._group = -1
        self._batches: Iterator[Any] = iter(())
        self._held: deque[tuple[int, Any]] = deque(maxlen=2)  # threads ask around the same rows
        self._lock = Lock()

    def cells(self, column: str) -> Iterator[Any]:
        """Yield the values of a column, in the order of the rows.

        `check` comes first.
        """
        for group in range(len(self._starts) - 1):
            for batch in self._read(group, column):
                yield from batch.column(0).to_pylist()

    def encoded(self, row: int) -> bytes:
        """Return the bytes of the image in a row.

        Raises:
            OSError: The row has none.
        """
        with self._lock:  # the reader is not thread-safe
            cell = self._cell(row)
            content = None if cell is None else cell["bytes"].as_py()
        if content is None:
            raise OSError("the row holds no image, at most a path")
        if len(content) > MOST_BYTES:
            raise OSError(too_long(len(content)))
        return bytes(content)

    def check(self, column: str) -> None:
        """Refuse a column that unpacks to more than memory should hold, by the file's metadata.

        Raises:
            OSError: With the way out.
        """
        for group in range(len(self._starts) - 1):
            size, compressed = self._sizes(group, column)
            if size > MOST_BYTES or (size > _LEAST_PACKED and size > _MOST_PACKED * compressed):
                raise OSError(
                    f"row group {group} unpacks to {size / 1e6:,.0f} MB of {column!r}, from "
                    f"{compressed / 1e6:,.1f} MB in the file, which is too much for the memory; "
                    "write it with smaller cells, or fewer rows in a row group"
                )

    def _cell(self, row: int) -> Any:
        group = bisect_right(self._starts, row) - 1
        while True:
            for start, cells in self._held:
                if start <= row < start + len(cells):
                    return cells[row - start]
            if group != self._group or not self._held or row < self._held[0][0]:
                self._group, end = group, self._starts[group]
                self._held.clear()
                self._batches = self._read(group, f"{self.image}.bytes")
            else:
                start, cells = self._held[-1]
                end = start + len(cells)
            self._held.append((end, next(self._batches).column(0)))

    def _read(self, group: int, column: str) -> Iterator[Any]:
        """Yield batches of a column in a row group, of so few rows that all could be long."""
        size = max(1, self._sizes(group, column)[0])
        rows = max(1, min(2**16, _BATCH_BYTES // size))
        batches: Iterator[Any] = self._file.iter_batches(rows, row_groups=[group], columns=[column])
        return batches

    def _sizes(self, group: int, column: str) -> tuple[int, int]:
        """Return the bytes of a column in a row group: uncompressed, and in the file."""
        metadata = self._file.metadata.row_group(group)
        chunks = [metadata.column(i) for i in range(metadata.num_columns)]
        chunks = [c for c in chunks if f"{c.path_in_schema}.".startswith(f"{column}.")]
        return (
            sum(chunk.total_uncompressed_size for chunk in chunks),
            sum(chunk.total_compressed_size for chunk in chunks),
        )


@lru_cache(maxsize=8)  # each holds a few images
def parquet_images(path: str, stamp: str) -> ParquetImages:
    """Return the reader of a file; `stamp`, its `file_stamp`, prevents stale readers."""
    return ParquetImages(path)


def import_parquet() -> Any:
    """Return the module ``pyarrow.parquet``.

    Raises:
        DataError: It isn't installed; names the extra.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            'parquet files are read by pyarrow: pip install "ssl-toolkit[hf]"'
        ) from None
    return pyarrow.parquet


def _is_image(kind: Any) -> bool:
    names = [kind.field(i).name for i in range(kind.num_fields)]
    return str(kind).startswith("struct<") and {"bytes", "path"} <= set(names)
