"""Which files of a folder tree are images, and how far links are followed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ssl_toolkit.data.images.files import IMAGE_SUFFIXES
from ssl_toolkit.data.images.kinds import kind_of_name
from ssl_toolkit.errors import DataError
from ssl_toolkit.text import display_path, display_text, summarize

# In lower case.
_LEFT_BY_TOOLS = frozenset(
    (
        "$recycle.bin",
        "@eadir",
        "__macosx",
        "__pycache__",
        "desktop.ini",
        "ehthumbs.db",
        "icon\r",
        "lost+found",
        "system volume information",
        "thumbs.db",
    )
)


@dataclass
class FileTree:
    """Files below a folder; keys are relative to the data folder, with ``/``, as UTF-8 text."""

    images: dict[str, Path] = field(default_factory=dict)
    """By key, in the order of the keys; broken links among them."""
    unused: list[str] = field(default_factory=list)
    """Files whose extension isn't an image's."""
    links: list[str] = field(default_factory=list)
    """Links that were not followed because they lead into another split or in a circle."""


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder sorted by name, without files that tools leave behind.

    Raises:
        DataError: the folder can't be listed.
    """
    try:
        found = [folder / name for name in os.listdir(folder) if not _left_by_tools(name)]
    except OSError as error:
        raise DataError(f"can't list the folder {display_path(folder)}: {error.strerror}") from None
    return sorted(found, key=lambda path: display_text(path.name))


def walk(top: Path, key: str, *, root: Path, others: Sequence[Path] = ()) -> FileTree:
    """Collect the images below one folder.

    Real folders come first; then each linked folder that was not seen yet is walked once, so that
    no circle of links goes round and it doesn't matter which of two links is met first. Not
    followed: a link into one of `others`, to a folder elsewhere in the data folder, or to a
    folder that holds the data folder; and a link to a single image in one of `others`.

    Args:
        top: the folder to walk; walked in any case, also when it is a link.
        key: its key, the start of all keys below it.
        root: the real path of the data folder.
        others: real paths of the folders whose images must not come in.

    Raises:
        DataError: a folder can't be listed.
    """
    tree = FileTree()
    base = real_path(top)
    seen = {base}
    linked: list[tuple[Path, str]] = []

    def may_enter(real: Path) -> bool:
        elsewhere = is_inside(real, root) and not is_inside(real, base)
        return not (real in seen or elsewhere or is_inside(root, real) or in_any(real, others))

    def descend(folder: Path, key: str) -> None:
        for path in entries(folder):
            inner = f"{key}/{display_text(path.name)}"
            if path.is_dir():
                if path.is_symlink():
                    linked.append((path, inner))
                else:
                    enter(path, inner)
            elif path.suffix.lower() not in IMAGE_SUFFIXES:
                tree.unused.append(inner)
            elif path.is_symlink() and in_any(real_path(path), others):
                tree.links.append(inner)
            else:
                tree.images[inner] = path

    def enter(folder: Path, key: str) -> None:
        real = real_path(folder)
        if may_enter(real):
            seen.add(real)
            descend(folder, key)
        else:
            tree.links.append(key)

    descend(top, key)
    for path, inner in linked:  # grows while linked folders hold more links
        enter(path, inner)
    tree.images = dict(sorted(tree.images.items()))
    return tree


def unused_notes(names: Iterable[str], why: str) -> list[str]:
    """Lines on files that aren't used, first those that hold images of a kind that isn't read.

    Args:
        names: the files.
        why: what is said of the others.
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind_of_name(name), []).append(name)
    others = kinds.pop("", [])
    notes = [
        f"files not used, {len(found)}, each {kind}, which isn't read; convert them to JPEG or "
        f"PNG: {summarize(found)}"
        for kind, found in kinds.items()
    ]
    return notes + (
        [f"files not used, {len(others)} ({why}): {summarize(others)}"] if others else []
    )


def real_path(path: Path) -> Path:
    """The path with all links resolved; a broken link's is where it would lead."""
    return Path(os.path.realpath(path))


def is_inside(path: Path, folder: Path) -> bool:
    """Return True if a real path is the folder or below it."""
    return path.is_relative_to(folder)


def in_any(path: Path, folders: Sequence[Path]) -> bool:
    """Return True if a real path is one of the folders or below one."""
    return any(is_inside(path, folder) for folder in folders)


def _left_by_tools(name: str) -> bool:
    """Hidden files, AppleDouble companions (``._x``), thumbnails, notebook checkpoints, ..."""
    return name.startswith(".") or name.lower() in _LEFT_BY_TOOLS
