"""Label Studio: a JSON list of tasks, with choices in annotations and predictions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from ssl_toolkit.data.readers.rows import RowErrors
from ssl_toolkit.errors import DataError
from ssl_toolkit.labeling.exchange.answers import Answer, Entry
from ssl_toolkit.text import display_path

FROM, TO = "label", "image"
"""Names of the control and of the image in the labeling configuration of a project."""
LOCAL_FILES = "/data/local-files/?d="
"""Start of the address of an image in Label Studio's local storage."""

_HASH = re.compile(r"[0-9a-f]{8}-")  # at the start of the name of an uploaded file


def tasks(entries: Sequence[Entry], prefix: str = LOCAL_FILES) -> list[dict[str, Any]]:
    """Return tasks to import into a project, in the order of the entries.

    Args:
        entries: Images.
        prefix: Start of the addresses of the images; the quoted key follows.
    """
    return [_task(entry, prefix) for entry in entries]


def _task(entry: Entry, prefix: str) -> dict[str, Any]:
    task: dict[str, Any] = {"data": {TO: prefix + quote(entry.key), "path": entry.key}}
    if entry.label is not None:
        result = [_choice(entry.label)] if entry.label else []
        task["annotations"] = [{"result": result, "was_cancelled": not entry.label}]
    if entry.guess:
        prediction: dict[str, Any] = {"result": [_choice(entry.guess)]}
        if entry.method:
            prediction["model_version"] = f"ssl-toolkit, {entry.method}"
        if entry.confidence is not None:
            prediction["score"] = entry.confidence
        task["predictions"] = [prediction]
    if entry.score is not None:
        task["data"]["next_score"] = entry.score
    return task


def _choice(label: str) -> dict[str, Any]:
    value = {"choices": [label]}
    return {"from_name": FROM, "to_name": TO, "type": "choices", "value": value}


def answers(tree: Any, path: Path, bad: RowErrors) -> Iterator[Answer]:
    """Yield the choices of the annotations; a cancelled annotation means a skipped image.

    Args:
        tree: Content of the file.
        path: Path to the file, for messages.
        bad: Collects the tasks that can't be read.

    Raises:
        DataError: The content is no list of tasks.
    """
    name = display_path(path)
    if not isinstance(tree, list) or not all(isinstance(task, dict) for task in tree):
        raise DataError(f"{name}: no list of tasks; export the project as JSON")
    if tree and not any("annotations" in task or "data" in task for task in tree):
        raise DataError(f"{name}: no tasks with data; export the project as JSON, not JSON-MIN")
    for number, task in enumerate(tree, 1):
        try:
            (image, other), labels = _image_of(task), _labels_of(task)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            bad.add(number, f"no task of Label Studio with choices ({error})")
            continue
        if len(labels) > 1:
            listed = " and ".join(map(repr, labels))
            bad.add(number, f"two answers for {image!r}: {listed}; keep one of them")
        elif labels:
            yield Answer(number, image, labels[0], other)


def _image_of(task: dict[str, Any]) -> tuple[str, str]:
    """Return the image of a task, and its other name if the first may start with a hash.

    The image is the key if the task was exported here, else the path in the address. The other name
    is without the hash that Label Studio puts before the names of uploaded files.
    """
    data = task["data"]
    if isinstance(key := data.get("path"), str):
        return key, ""
    address = data.get(TO) or next(
        (value for value in data.values() if isinstance(value, str)), None
    )
    if not isinstance(address, str):
        raise ValueError("its data names no image")
    parts = urlsplit(address)
    if local := parse_qs(parts.query).get("d"):
        return local[0], ""
    name = unquote(parts.path)
    folder, slash, base = name.rpartition("/")
    uploaded = "/upload/" in f"/{folder}/" and _HASH.match(base)
    return name, folder + slash + base[uploaded.end() :] if uploaded else ""


def _labels_of(task: dict[str, Any]) -> list[str]:
    """Return the different answers of a task, an empty one if it was only skipped."""
    labels: list[str] = []
    skipped = False
    for annotation in task.get("annotations") or []:
        choices: list[str] = []
        for one in annotation["result"]:
            if one.get("type") == "choices":
                choices += one["value"]["choices"]
        if not all(isinstance(choice, str) and choice for choice in choices):
            raise ValueError("a choice is no text")
        if annotation.get("was_cancelled") or not choices:
            skipped = True
        else:
            labels += choices
    return [*dict.fromkeys(labels)] or ([""] if skipped else [])
