"""Pictures inside a larger file, named by a path of their own.

``ARCHIVE.tar::OFFSET+LENGTH::NAME`` is a member of a tar file, ``FILE.parquet::ROW::`` a row of
a parquet file; the name is for people. Such a path is all that reading takes: nothing is extracted
to the disk, and no index has to be at hand.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

from ssl_toolkit.errors import DataError

_PACKED = re.compile(r"(.+\.(?:tar|parquet))::(\d+)(?:\+(\d+))?::.*", re.DOTALL | re.IGNORECASE)


def tar_path(archive: Path | str, offset: int, length: int, name: str) -> str:
    """The path of a picture in an uncompressed tar file."""
    return f"{os.fspath(archive)}::{offset}+{length}::{name}"


def parquet_path(file: Path | str, row: int) -> str:
    """The path of the picture in a row of a parquet file."""
    return f"{os.fspath(file)}::{row}::"


def container(path: Path | str) -> str | None:
    """The file that a picture is inside of; None for a picture that is a file."""
    match = _PACKED.fullmatch(os.fspath(path)) if "::" in os.fspath(path) else None
    return match[1] if match else None


def tar_member(path: Path | str) -> tuple[str, int, int] | None:
    """Tar file, offset and length of a picture inside of one; None for any other."""
    match = _PACKED.fullmatch(os.fspath(path)) if "::" in os.fspath(path) else None
    if match is None or match[3] is None:
        return None
    return match[1], int(match[2]), int(match[3])


def read_packed(path: Path | str) -> bytes | None:
    """The encoded picture inside a larger file; None for a picture that is a file.

    Raises:
        OSError: the larger file can't be read, or ends before the picture does.
        DataError: pyarrow isn't installed.
    """
    match = _PACKED.fullmatch(os.fspath(path)) if "::" in os.fspath(path) else None
    if match is None:
        return None
    file, start, length = match.groups()
    if length is None:
        return parquet_pictures(file, os.stat(file).st_mtime_ns).encoded(int(start))
    with open(file, "rb") as archive:
        archive.seek(int(start))
        content = archive.read(int(length))
    if len(content) < int(length):
        raise OSError(f"{file} ends inside the picture")
    return content


class ParquetPictures:
    """The rows of a parquet file of Hugging Face's form; pictures are read a row group at a time.

    Args:
        path: the file.

    Raises:
        OSError: it can't be read.
        DataError: pyarrow isn't installed.
    """

    def __init__(self, path: str) -> None:
        parquet = import_parquet()
        try:
            self._file = parquet.ParquetFile(path)
        except OSError:
            raise
        except Exception as error:  # damage meets pyarrow's exceptions of any kind
            raise OSError(" ".join(str(error).split())) from None
        self.schema: Any = self._file.schema_arrow
        self.image = next((field.name for field in self.schema if _is_picture(field.type)), "")
        """Name of the column with the pictures, empty where there is none."""
        metadata = self._file.metadata
        lengths = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
        self._starts: list[int] = [0, *accumulate(lengths)]
        self._held = -1
        self._cells: Any = None
        self._lock = Lock()

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._starts[-1]

    def cells(self, column: str) -> Iterator[Any]:
        """The values of a column, in the order of the rows."""
        for batch in self._file.iter_batches(columns=[column]):
            yield from batch.column(0).to_pylist()

    def encoded(self, row: int) -> bytes:
        """The bytes of the picture in a row.

        Raises:
            OSError: the row has none.
        """
        group = bisect_right(self._starts, row) - 1
        with self._lock:  # a reader is not for two threads at once
            if group != self._held:
                table = self._file.read_row_group(group, columns=[self.image])
                self._cells, self._held = table.column(0), group
            cell = self._cells[row - self._starts[group]].as_py()
        if not cell or cell["bytes"] is None:
            raise OSError("the row holds no picture, at most a path")
        return bytes(cell["bytes"])


@lru_cache(maxsize=8)  # each holds the pictures of one row group
def parquet_pictures(path: str, changed: int) -> ParquetPictures:
    """The reader of a file; `changed`, its time of change, parts it from what it was before."""
    return ParquetPictures(path)


def import_parquet() -> Any:
    """The module ``pyarrow.parquet``.

    Raises:
        DataError: it isn't installed; names the extra.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            'parquet files are read by pyarrow: pip install "ssl-toolkit[hf]"'
        ) from None
    return pyarrow.parquet


def _is_picture(kind: Any) -> bool:
    names = [kind.field(place).name for place in range(kind.num_fields)]
    return str(kind).startswith("struct<") and {"bytes", "path"} <= set(names)
