"""How the images of a table are made square."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.cache.image_files import open_files
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable


@dataclass(frozen=True)
class FittedRead:
    """The ``read`` of a table whose images are no files, in either layout."""

    read: Callable[[NDArray[np.int64], int, Fit], NDArray[np.uint8]]
    fit: Fit = "crop"

    def __call__(self, rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """See `ImageTable.read`."""
        return self.read(rows, size, self.fit)


def lay_out(table: ImageTable, fit: Fit, workers: int = 0) -> ImageTable:
    """Return the table with its images made square in this way; see `fit_image`.

    Args:
        table: of a data set.
        fit: how.
        workers: threads that decode image files; 0 decodes in the calling one.

    Raises:
        DataError: a data set's own ``read`` makes them square, and `fit` isn't what it does.
    """
    if table.files is not None:
        return open_files(table, workers, fit)
    if isinstance(table.read, FittedRead):
        return replace(table, read=replace(table.read, fit=fit))
    if fit != "crop" and table.features is None:
        raise DataError(f"--fit {fit}: the data set makes its images square itself; leave it out")
    return table
