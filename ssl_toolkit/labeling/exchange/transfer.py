"""Exchange labels with other tools by files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.packed_strings import index_of
from ssl_toolkit.data.readers.image_files import files_of
from ssl_toolkit.data.readers.rows import SUFFIXES, RowErrors, records
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.files import check_target, write_json
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.labeling.exchange import cvat, fiftyone, label_studio
from ssl_toolkit.labeling.exchange.answers import Answer, Entry, read_json, resolve
from ssl_toolkit.labeling.labels_table import LabelsTable
from ssl_toolkit.labeling.queue import Queued, read_queue
from ssl_toolkit.tabular import write_rows
from ssl_toolkit.text import display_path, summarize

Format = Literal["label-studio", "cvat", "fiftyone", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)
_SUFFIXES = {"label-studio": ".json", "fiftyone": ".json", "cvat": ".zip", "csv": ".csv"}


@dataclass(frozen=True)
class Imported:
    """Result of `import_labels`."""

    labels: int
    """Number of images with a label in the file."""
    skipped: int
    """Number of images that were skipped."""
    new: int
    """Number of rows that were added to the labels file or changed."""


@dataclass(frozen=True)
class Exported:
    """Result of `export_labels`."""

    images: int
    """Number of images in the file."""
    left_out: int
    """Number of images that the format can't hold: those without a label."""


def import_labels(
    data: Path,
    file: Path,
    labels: Path,
    *,
    root: Path | None = None,
    classes: Sequence[str] = (),
    replace: bool = False,
) -> Imported:
    """Add the answers in a file of another tool to a labels file, all or none.

    Nothing in the file is executed, extracted or requested.

    Args:
        data: Path to the data, as for `label next`.
        file: Tasks of Label Studio (JSON), an archive or a folder of CVAT's ImageNet form,
            FiftyOne's ``labels.json``, or a table with the columns path and label.
        labels: Path to the labels file; created if it doesn't exist.
        root: Folder that the paths of a manifest are relative to.
        classes: Names that are allowed; empty for those of the data or, without any, for all.
        replace: True to replace labels that differ.

    Raises:
        UserError: The file can't be read, answers are invalid, or differ from the labels file.
    """
    table = read_data(data, root=root, unlabeled=True)
    content = read_answers(file, table, classes)
    target = LabelsTable(labels)
    with target.hold():
        target.refresh()
        before = dict(target.rows)
        differing = target.merge(content, replace=replace)
        if differing and not replace:
            key, current = next(iter(differing.items()))
            raise DataError(
                f"{display_path(file)}: {len(differing):,} images have another label in "
                f"{display_path(labels)}, such as {key!r}: {content[key]!r}, there {current!r}; "
                "--replace takes those of the file"
            )
        new = sum(before.get(key) != label for key, label in target.rows.items())
        if new or not labels.exists():
            target.write()
    answered = sum(bool(label) for label in content.values())
    return Imported(answered, len(content) - answered, new)


def read_answers(file: Path, table: ImageTable, classes: Sequence[str] = ()) -> dict[str, str]:
    """Return the class by key of a file of any format, empty for a skipped image.

    Args:
        file: As for `import_labels`.
        table: The data.
        classes: As for `import_labels`.

    Raises:
        DataError: As `import_labels`.
    """
    name, suffix = display_path(file), file.suffix.lower()
    if not file.exists():
        raise DataError(f"{name}: not found")
    if suffix in SUFFIXES:
        bad, columns = RowErrors(name), set[str]()
        found = records(file, bad, "path", [], columns=columns)
        answers = [Answer(line, key, label) for line, key, label, _ in found]
        if answers and "label" not in columns:
            raise DataError(f"{name}: has no labels; give a table with the columns path and label")
        return resolve(answers, table, bad, classes)
    if file.is_dir() or suffix == ".zip":
        bad = RowErrors(name, "file")
        return resolve(cvat.answers(file, bad, classes or table.classes), table, bad, classes)
    if suffix != ".json":
        known = f"{', '.join(SUFFIXES)}, .json or .zip"
        raise DataError(f"{name}: labels are imported from a folder or a file in {known}")
    content = read_json(file, fiftyone.Pairs)
    if isinstance(content, fiftyone.Pairs):
        bad = RowErrors(name, "label")
        return resolve(fiftyone.answers(content, file, bad), table, bad, classes, stems=True)
    bad = RowErrors(name, "task")
    answers = [*label_studio.answers(read_json(file), file, bad)]
    return resolve(answers, table, bad, classes)


def export_labels(
    data: Path,
    output: Path,
    format: Format,
    *,
    labels: Path | None = None,
    queue: Path | None = None,
    root: Path | None = None,
    prefix: str = label_studio.LOCAL_FILES,
) -> Exported:
    """Write labels, and images to label, in the format of another tool.

    Args:
        data: Path to the data, as for `label next`.
        output: Path to the file.
        format: Its format.
        labels: Path to a labels file; None for no label.
        queue: Path to a list of images to label, with guesses; None for none.
        root: Folder that the paths of a manifest are relative to.
        prefix: Start of the addresses of images in Label Studio.

    Raises:
        UserError: Data, labels or queue can't be read or don't agree, or the output can't be
            written.
    """
    suffix = _SUFFIXES[format]
    inputs = [path for path in (labels, queue) if path is not None]
    check_target(output, (suffix,), inputs)
    if not inputs:
        raise ConfigError("nothing to export: give --labels FILE, --queue FILE or both")
    if labels is not None and not labels.exists():
        raise DataError(f"{display_path(labels)}: not found")
    table = read_data(data, root=root, unlabeled=True)
    rows = {} if labels is None else LabelsTable(labels).rows
    queued = [] if queue is None else read_queue(queue)
    entries = _entries(table, rows, queued, inputs)
    if format == "label-studio":
        write_json(output, label_studio.tasks(entries, prefix))
        return Exported(len(entries), 0)
    if format == "cvat":
        files = files_of(table)
        if files is None or files.in_parquet:
            raise ConfigError(f"{display_path(data)}: CVAT's form needs image files")
        wanted = [entry.key for entry in entries]
        paths = {
            key: Path(files[row])
            for key, row in zip(wanted, index_of(table.keys, wanted).tolist(), strict=True)
        }
        count = cvat.write(output, entries, paths)
        return Exported(count, len(entries) - count)
    answered = [entry for entry in entries if entry.label is not None]
    if format == "fiftyone":
        answered = [entry for entry in answered if entry.label]
        write_json(output, fiftyone.tree(answered))
    else:
        write_rows(output, ("path", "label"), [(one.key, one.label) for one in answered])
    return Exported(len(answered), len(entries) - len(answered))


def _entries(
    table: ImageTable, labels: dict[str, str], queue: Sequence[Queued], inputs: Sequence[Path]
) -> list[Entry]:
    """Return the images of the queue in their order, after those that only have a label."""
    queued = {image.path: image for image in queue}
    keys = [*labels, *(key for key in queued if key not in labels)]
    known = index_of(table.keys, keys)
    if unknown := [keys[i] for i in np.flatnonzero(known < 0).tolist()]:
        names = " and ".join(map(display_path, inputs))
        raise DataError(f"{names}: the data has no images {summarize(unknown, 3)}")
    entries = []
    for key in keys:
        image = queued.get(key)
        label = labels.get(key)
        if image is None:
            entries.append(Entry(key, label))
        else:
            entries.append(
                Entry(key, label, image.guess, image.confidence, image.score, image.method)
            )
    return entries
