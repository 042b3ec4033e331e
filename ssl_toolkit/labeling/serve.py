"""Label images on a page that this machine serves to itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ssl_toolkit.data.class_names import class_name, name_fault
from ssl_toolkit.data.images.files import pillow_muted
from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.packed_strings import index_of
from ssl_toolkit.data.readers.folders import folders_are_classes
from ssl_toolkit.data.readers.rows import SEPARATOR
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.labeling.labels_table import LabelsTable
from ssl_toolkit.labeling.queue import read_queue
from ssl_toolkit.labeling.server import LabelingServer
from ssl_toolkit.labeling.session import Guess, LabelingSession, rows_to_label
from ssl_toolkit.text import display_path, summarize


@contextmanager
def labeling_server(
    data: Path,
    labels: Path,
    *,
    queue: Path | None = None,
    classes: Sequence[str] = (),
    root: Path | None = None,
    port: int = 0,
    several: bool = False,
) -> Iterator[LabelingServer]:
    """Return a server of the page, which holds the labels file until the end of the block.

    Args:
        data: Path to a folder or file of images, as for training.
        labels: Path to the labels file, which need not exist.
        queue: Path to a CSV of the images to label, in order; None for all without a label.
        classes: Names of classes, in the order of their keys; those of the data and of the labels
            file follow.
        root: Path to the folder that the paths of a manifest are relative to.
        port: Port on 127.0.0.1; 0 for a free one.
        several: True if an image may have any number of classes; guesses are then not shown.

    Raises:
        ConfigError: A class can't be a name, the port is in use, or the labels file can't be
            written.
        DataError: The data, the queue or the labels file can't be read, or don't agree.
        ModelError: Another process holds the labels file.
    """
    for name in classes:
        if fault := name_fault(name):
            raise ConfigError(f"--classes: {name!r} {fault}")
        if several and SEPARATOR in name:
            raise ConfigError(f"--classes: {name!r} has {SEPARATOR}, which separates classes")
    answers = LabelsTable(labels, several=several)
    with answers.hold():
        answers.refresh()
        table = read_data(data, root=root, unlabeled=True, multilabel=several)
        if table.features is not None:
            raise DataError(f"{display_path(data)}: holds features; images are needed to label")
        _check_labels(answers, table)
        queued = [] if queue is None else read_queue(queue)
        order = None if queue is None else [image.path for image in queued]
        rows = rows_to_label(table, order, "" if queue is None else display_path(queue))
        if queue is None and not rows:
            hint = folders_are_classes(data, table) or "; name images to label with --queue"
            raise DataError(f"{display_path(data)}: every image has a label{hint}")
        guesses = {
            image.path: Guess(image.guess, image.confidence) for image in queued if not several
        }
        guessed = sorted({guess.label for guess in guesses.values()} - {""})
        names = [*map(class_name, classes), *table.classes, *answers.classes(), *guessed]
        with LabelingServer(LabelingSession(table, rows, answers, names, guesses), port) as server:
            yield server


def serve(server: LabelingServer, ready: Callable[[str], object]) -> None:
    """Serve the page until Ctrl-C or until the user finishes.

    Args:
        server: As of `labeling_server`.
        ready: Called with the address of the page.
    """
    ready(server.url)
    try:
        with pillow_muted():
            server.serve_forever(poll_interval=0.2)
    finally:
        with server.session.lock:  # an answer that is being written
            pass


def _check_labels(labels: LabelsTable, table: ImageTable) -> None:
    paths = [*labels.rows]
    known = index_of(table.keys, paths)
    if unknown := [paths[i] for i in np.flatnonzero(known < 0).tolist()]:
        raise DataError(
            f"{display_path(labels.path)}: the data has no images {summarize(unknown, 3)}; give "
            "the labels file of this data, with paths relative to its folder (if images were "
            "removed, restore them or delete their rows)"
        )
