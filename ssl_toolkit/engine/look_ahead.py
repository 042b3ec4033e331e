"""Decode the streamed images of the next batch while the model trains on the current one."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

import torch
from torch import Tensor

from ssl_toolkit.data.images.files import pillow_muted
from ssl_toolkit.engine.training_images import ImageSource


class LookAhead:
    """Gathers images, one batch ahead in a thread; a context that ends the thread.

    A batch is used only if its images are those that were expected, so what is returned doesn't
    depend on the thread. An image that can't be read raises its error when its batch is gathered.

    Args:
        source: Source of the images.
        batches: Number of batches of the run; nothing is read beyond.
    """

    def __init__(self, source: ImageSource, batches: int) -> None:
        self._source = source
        self._batches = batches
        self._expected: tuple[Tensor, Future[Tensor]] | None = None
        self._context = ExitStack()

    def __enter__(self) -> Self:
        # Pillow is muted in this thread: warning filters belong to the process.
        self._context.enter_context(pillow_muted())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="look-ahead")
        self._context.callback(self._thread.shutdown, cancel_futures=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def gather(self, number: int, indices: Tensor, following: Tensor) -> Tensor:
        """Return images (n, C, H, W) as `ImageSource.gather`, and start to read those that follow.

        Args:
            number: Number of the batch.
            indices: (n,) int64 indices of its images.
            following: (n,) int64 indices of the images of the next batch.

        Raises:
            DataError: An image can't be read.
        """
        expected, self._expected = self._expected, None
        if expected is not None and torch.equal(expected[0], indices):
            images = expected[1].result()
        else:
            if expected is not None:
                expected[1].exception()  # wait, so that one thread reads at a time
            images = self._source.gather(indices)
        if number + 1 < self._batches:
            self._expected = following, self._thread.submit(self._source.gather, following)
        return images
