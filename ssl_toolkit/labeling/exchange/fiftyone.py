"""FiftyOne's ``labels.json`` of a classification data set: ``classes`` and ``labels``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ssl_toolkit.data.readers.rows import RowErrors
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.labeling.exchange.answers import Answer, Entry, without_suffix
from ssl_toolkit.text import display_path


class Pairs(list[tuple[str, Any]]):
    """The members of a JSON object in their order, repeated names among them."""


def tree(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the content of the file: a class index by path without extension.

    Images without a label are left out.

    Raises:
        ConfigError: Two images differ only in their extension.
    """
    labeled = [(entry.key, entry.label) for entry in entries if entry.label]
    classes = sorted({label for _, label in labeled})
    index = {name: number for number, name in enumerate(classes)}
    labels: dict[str, int] = {}
    for key, label in labeled:
        name = without_suffix(key)
        if name in labels:
            raise ConfigError(
                f"two images have the path {name!r} without their extensions, by which FiftyOne "
                "names them; rename one of them, or choose another format"
            )
        labels[name] = index[label]
    return {"classes": classes, "labels": labels}


def answers(content: Any, path: Path, bad: RowErrors) -> Iterator[Answer]:
    """Yield the labels of the file, whose objects were read as `Pairs`; null means no answer.

    Args:
        content: Content of the file.
        path: Path to the file, for messages.
        bad: Collects the labels that can't be read.

    Raises:
        DataError: The content has no ``labels``, or ``classes`` is no list of texts.
    """
    name = display_path(path)
    members = dict(content) if isinstance(content, Pairs) else {}
    classes, labels = members.get("classes"), members.get("labels")
    if not isinstance(labels, Pairs):
        raise DataError(
            f"{name}: neither tasks of Label Studio nor labels of FiftyOne: no object 'labels'"
        )
    if classes is not None and not (
        isinstance(classes, list) and all(isinstance(one, str) for one in classes)
    ):
        raise DataError(f"{name}: 'classes' is no list of texts")
    for number, (image, target) in enumerate(labels, 1):
        if isinstance(target, Pairs):  # exported with confidences
            target = dict(target).get("label")
        if target is None:
            continue
        if isinstance(target, str):
            yield Answer(number, image, target)
        elif isinstance(target, bool) or not isinstance(target, int):
            bad.add(number, f"{image!r} has the label {target!r}, neither a class nor its index")
        elif classes is None or not 0 <= target < len(classes):
            count = len(classes or [])
            bad.add(
                number, f"{image!r} has the class index {target}, and there are {count} classes"
            )
        else:
            yield Answer(number, image, classes[target])
