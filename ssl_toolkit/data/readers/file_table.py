"""Find image files below a folder and collect them into a table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ssl_toolkit.data.cache.image_files import ImageFiles, with_files
from ssl_toolkit.data.images.files import IMAGE_SUFFIXES
from ssl_toolkit.data.images.kinds import kind_of_name
from ssl_toolkit.data.packed_strings import PackedStrings
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable, Part
from ssl_toolkit.text import display_path, display_text, summarize

MAX_MESSAGES = 20

# In lower case.
_LEFT_BY_TOOLS = {
    "$recycle.bin", "@eadir", "__macosx", "__pycache__", "desktop.ini", "ehthumbs.db", "icon\r",
    "lost+found", "system volume information", "thumbs.db",
}  # fmt: skip


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
        DataError: The folder can't be listed.
    """
    try:
        items = [folder / name for name in os.listdir(folder) if not _left_by_tools(name)]
    except OSError as error:
        raise DataError(f"can't list the folder {display_path(folder)}: {error.strerror}") from None
    return sorted(items, key=lambda path: display_text(path.name))


def walk(top: Path, key: str, *, root: Path, others: Sequence[Path] = ()) -> FileTree:
    """Collect the images below one folder.

    Real folders come first; then each linked folder that was not seen yet is walked once, so that
    no circle of links goes round and it doesn't matter which of two links is met first. Not
    followed: a link into one of `others`, to a folder elsewhere in the data folder, or to a
    folder that holds the data folder; and a link to a single image in one of `others`.

    Args:
        top: The folder to walk; walked in any case, also when it is a link.
        key: Its key, the start of all keys below it.
        root: The real path of the data folder.
        others: Real paths of the folders whose images must not come in.

    Raises:
        DataError: A folder can't be listed.
    """
    tree = FileTree()
    base = real_path(top)
    seen = {base}
    linked: list[tuple[Path, str]] = []

    def may_enter(real: Path) -> bool:
        elsewhere = real.is_relative_to(root) and not real.is_relative_to(base)
        return not (real in seen or elsewhere or root.is_relative_to(real) or in_any(real, others))

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
    """Return notes on files that aren't used, first those of image formats that aren't supported.

    Args:
        names: The files.
        why: What is said of the others.
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind_of_name(name), []).append(name)
    others = kinds.pop("", [])
    notes = [
        f"files not used, {len(files)}, each {kind}, which isn't read; convert them to JPEG or "
        f"PNG: {summarize(files)}"
        for kind, files in kinds.items()
    ]
    if others:
        notes.append(f"files not used, {len(others)} ({why}): {summarize(others)}")
    return notes


def real_path(path: Path) -> Path:
    """Resolve all links of a path; a broken link leads where it would lead."""
    return Path(os.path.realpath(path))


def in_any(path: Path, folders: Sequence[Path]) -> bool:
    """Return True if a real path is one of the folders or below one."""
    return any(map(path.is_relative_to, folders))


@dataclass
class TableBuilder:
    """Rows of a table of image files, and notes on the files that are not used."""

    keys: PackedStrings = field(default_factory=PackedStrings)
    paths: PackedStrings = field(default_factory=PackedStrings)
    """May be the keys themselves."""
    base: str = ""
    """Folder of the relative `paths`; empty for the current one."""
    labels: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, tree: FileTree, label: int, part: Part) -> None:
        """Add the images of a file tree, all with one label (-1 for none) and part."""
        self.keys.extend(tree.images)
        self.paths.extend(map(str, tree.images.values()))
        self.labels += [label] * len(tree.images)
        self.parts += [part] * len(tree.images)
        self.unused += tree.unused
        self.links += tree.links

    def table(self, classes: tuple[str, ...]) -> ImageTable:
        """Return the table; no file is opened."""
        notes = [f"ignored folders: {summarize(self.ignored)}"] if self.ignored else []
        notes += unused_notes(self.unused, "no image's extension, or outside the class folders")
        if self.links:
            notes.append(
                "links not followed (they lead into another split, or in a circle): "
                f"{summarize(self.links)}"
            )
        table = ImageTable(
            classes=classes,
            keys=self.keys,
            labels=np.array(self.labels, dtype=np.int64),
            parts=np.array(self.parts, dtype=np.str_),
            notes=(*notes, *self.notes),
        )
        return with_files(table, ImageFiles(self.paths, self.base))


def file_table(
    folder: Path,
    classes: Sequence[str],
    files: Iterable[tuple[str, int, Part]],
    notes: Sequence[str] = (),
    sources: Sequence[str] = (),
) -> ImageTable:
    """Return a table of the image files of a folder; opens none of them.

    The toolkit decodes them once into its cache, reports unreadable ones, finds duplicates, and
    can stream them.

    Args:
        folder: Path to the folder.
        classes: Names of the labels 0, 1, ...
        files: For each image its path relative to the folder, which becomes its key, its label
            (-1 for none) and its part.
        notes: Lines the user should see.
        sources: Place where each image is listed, such as ``train.txt, line 3``, for messages.

    Raises:
        DataError: A file is outside the folder, by its path or by a link. The folder and the
            folders directly in it may be links themselves.
    """
    rows = TableBuilder()
    base = os.path.abspath(folder)
    faults: list[str] = []
    links: dict[str, Links] = {}
    for index, (key, label, part) in enumerate(files):
        source = f"{sources[index]}: " if sources else ""
        top, _, _ = key.partition("/")
        if os.path.isabs(key) or ".." in key.split("/") or "\0" in key:
            faults.append(f"{source}{key!r} is not a path below {display_path(folder)}")
            continue
        if top not in links:
            links[top] = Links(base, [top])
        if outside := links[top].outside(key):
            faults.append(
                f"{source}{key!r} leads by a link out of {display_path(folder)} to {outside}"
            )
        rows.keys.append(key)
        rows.paths.append(os.path.join(base, key))
        rows.labels.append(label)
        rows.parts.append(part)
    if faults:
        raise DataError(faults[:MAX_MESSAGES])
    rows.notes += notes
    return rows.table(tuple(classes))


def inside(text: str, base: str) -> str | None:
    """Return a path as written relative to a folder; None if it leads outside.

    Steps back (``..``) and absolute paths are right as long as they end inside.

    Args:
        text: The path.
        base: The folder, absolute.
    """
    if not text or "\0" in text:
        return None
    full = os.path.normpath(os.path.join(base, text))
    for start in (base, os.path.realpath(base)):
        start = start.rstrip(os.sep) + os.sep
        if full.startswith(start):
            return full[len(start) :]
    return None


class Links:
    """Find paths that lead out of a folder by a link; each folder on the way is checked once.

    Args:
        base: The folder, absolute.
        tops: Folders in it that may be links themselves.
    """

    def __init__(self, base: str, tops: Iterable[str] = ()) -> None:
        self._base = base
        self._roots = [real_path(Path(base, top)) for top in ("", *tops)]
        self._folders: dict[str, str] = {}

    def outside(self, key: str) -> str:
        """Return where a path in the folder leads, and the way out; empty if that is inside."""
        name = file_name(key)
        folder = os.path.dirname(name)
        if folder not in self._folders:
            self._folders[folder] = self._leads_to(folder)
        path = os.path.join(self._base, name)
        return self._folders[folder] or (self._leads_to(name) if os.path.islink(path) else "")

    def _leads_to(self, name: str) -> str:
        real = real_path(Path(self._base, name))
        if any(real.is_relative_to(root) for root in self._roots):
            return ""
        return (
            f"{display_path(real)}; write where the images are, and name a folder of all with "
            "--root"
        )


def file_name(key: str) -> str:
    """Return a UTF-8 text as the name of a file, whatever the encoding of the locale."""
    return key if key.isascii() else os.fsdecode(key.encode("utf-8", "surrogatepass"))


def _left_by_tools(name: str) -> bool:
    """Return True for hidden files, AppleDouble companions (``._x``), thumbnails and the like."""
    return name.startswith(".") or name.lower() in _LEFT_BY_TOOLS
