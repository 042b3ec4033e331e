"""A user's own folders of images as an `ImageTable`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Literal, get_args

from ssl_toolkit.data.class_names import class_name
from ssl_toolkit.data.images import npy
from ssl_toolkit.data.images.files import FILE_SUFFIXES, IMAGE_SUFFIXES
from ssl_toolkit.data.images.kinds import kind_of_name, way_out
from ssl_toolkit.data.readers.image_files import FileTree, TableBuilder
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable, SplitName
from ssl_toolkit.text import display_path, display_text, summarize

LAYOUTS = (
    "labeled/<class>/… with unlabeled/… and test/<class>/… (and validation/<class>/…); or "
    "train/<class>/… with test/<class>/… (and val/<class>/…); or <class>/… alone; or *.tar shards; "
    "or *.parquet files; or metadata.csv; and --data takes a manifest too: FILE.csv, .tsv or "
    ".jsonl with path, label, split, or FILE.txt with `path label` lines; and FILE.npz with images "
    "and labels"
)
"""The accepted layouts, for messages."""

Source = Literal["labeled", "unlabeled", "train", "validation", "val", "test"]

# British spellings too; upper and lower case alike, so that Train/ never becomes a class.
SPLITS: dict[str, Source] = {name: name for name in get_args(Source)}
SPLITS |= {"labelled": "labeled", "unlabelled": "unlabeled"}
"""Meaning of the folders of a layout, by their names in lower case."""

# In lower case.
_LEFT_BY_TOOLS = {
    "$recycle.bin", "@eadir", "__macosx", "__pycache__", "desktop.ini", "ehthumbs.db", "icon\r",
    "lost+found", "system volume information", "thumbs.db",
}  # fmt: skip


def read_folder(top: Path, rows: TableBuilder, *, unlabeled: bool = False) -> tuple[str, ...]:
    """Add the images of a folder; open none of them and write nothing there.

    The layout is recognized by the names of the folders (see `LAYOUTS`; also ``labelled`` and
    ``unlabelled``, upper or lower case). Classes are the folders in ``labeled/`` or ``train/``, or
    the top ones, sorted as text. ``val/`` without ``test/`` beside ``train/`` is the test split.
    Links are followed once and never from the unlabeled images into labeled, validation or test
    ones.

    Args:
        top: Path to the data folder.
        rows: Receives the images, and notes on what was ignored. Without unlabeled images in the
            ``labeled/`` layout a note starts "no unlabeled images".
        unlabeled: Accept fewer than two classes in ``labeled/`` or ``train/``.

    Returns:
        The classes.

    Raises:
        DataError: The layout is unknown, classes don't agree, or one has no images.
    """
    items = entries(top)
    folders = [item for item in items if item.is_dir()]
    rows.unused += [display_text(item.name) for item in items if not item.is_dir()]
    sources = _sources(top, folders)
    main = sources.get("labeled") or sources.get("train")
    if main:
        classes = _read_splits(top, sources, folders, rows)
    elif sources:
        names = summarize([f"{display_text(folder.name)}/" for folder in sources.values()])
        where = display_path(top)
        if unlabeled:
            raise DataError(f"{where} has {names} but no {where}/unlabeled/ with images to label")
        raise DataError(
            f"{where} has {names} but neither labeled/ nor train/"
            f"{_start(top) * ('unlabeled' in sources)}; a data folder holds {LAYOUTS}"
        )
    else:
        classes = _read_classes(top, "", folders, "pool", (), rows)
    if unlabeled and not main and len(classes) < 2 and rows.keys:
        where = display_path(top)
        raise DataError(
            f"{where} has images in the folder {classes[0]}/, and one folder makes no classes; to "
            f"label images, move all below {where}/unlabeled/"
        )
    if not (unlabeled and len(classes) < 2):
        _check_classes(main or top, f"{display_text(main.name)}/" if main else "", classes, rows)
    return classes


def folders_are_classes(path: Path, table: ImageTable) -> str:
    """Return how to label images whose class is their folder, for messages; empty for others.

    Args:
        path: Path to the data.
        table: Its images.
    """
    folders = {class_name(key.partition("/")[0]) for key in table.keys[:1]}
    if not path.is_dir() or not folders <= {*table.classes}:
        return ""
    return (
        f"; its folders are the classes {summarize(table.classes)}: if they are no classes, move "
        f"them below {display_path(path)}/unlabeled/"
    )


def read_pool(top: Path, rows: TableBuilder) -> tuple[str, ...] | None:
    """Add the images of a folder that has none in ``labeled/``, ``train/`` or class folders.

    That is a folder of images without subfolders; or ``unlabeled/`` with or without
    ``test/<class>/`` and ``validation/<class>/``.

    Args:
        top: Path to the data folder.
        rows: Receives the images.

    Returns:
        The classes of test and validation images; None, with no image added, for another layout.
    """
    items = entries(top)
    folders = [item for item in items if item.is_dir()]
    sources = _sources(top, folders)
    pool, real = sources.get("unlabeled"), real_path(top)
    if not folders and any(item.suffix.lower() in FILE_SUFFIXES for item in items):
        tree = walk(top, "", root=real)
        tree.images = {key.removeprefix("/"): path for key, path in tree.images.items()}
        rows.add(tree, -1, "unlabeled")
        return ()
    if pool is None or "labeled" in sources or "train" in sources:
        return None
    validation = sources.get("validation") or sources.get("val")
    named: dict[SplitName, Path | None] = {"validation": validation, "test": sources.get("test")}
    splits = {part: folder for part, folder in named.items() if folder is not None}
    used = [pool, *splits.values()]
    _check_apart(used)
    rows.ignored += [display_text(folder.name) for folder in folders if folder not in used]
    kinds = {part: [item for item in entries(f) if item.is_dir()] for part, f in splits.items()}
    classes = tuple(sorted({_class_of(item) for items in kinds.values() for item in items}))
    others = [real_path(folder) for folder in used]
    for part, folder in splits.items():
        apart = [other for other in others if other != real_path(folder)]
        prefix = f"{display_text(folder.name)}/"
        _read_classes(top, prefix, kinds[part], part, apart, rows, classes)
    rows.add(walk(pool, display_text(pool.name), root=real, others=others[1:]), -1, "unlabeled")
    return classes


def _sources(top: Path, folders: Sequence[Path]) -> dict[Source, Path]:
    """Return the folders with a meaning in a layout, by that meaning."""
    sources: dict[Source, Path] = {}
    for folder in folders:
        source = SPLITS.get(folder.name.lower())
        if source in sources:
            raise _both(top, sources[source], folder)
        if source is not None:
            sources[source] = folder
    return sources


def _read_splits(
    top: Path, sources: dict[Source, Path], folders: Sequence[Path], rows: TableBuilder
) -> tuple[str, ...]:
    """Read the layouts with a folder a split; returns the classes."""
    main: SplitName = "labeled" if "labeled" in sources else "pool"
    validation, val = sources.get("validation"), sources.get("val")
    test, pool = sources.get("test"), sources.get("unlabeled")
    if main == "pool" and test is None and val is not None:
        test, val = val, None
        rows.notes.append("val/ is taken as the test split: there is no test/ beside train/")
    if validation is not None and val is not None:
        raise _both(top, validation, val)
    if main == "pool" and pool is not None:
        rows.notes.append(
            f"{display_text(pool.name)}/ is not used beside train/; rename train/ to labeled/ to "
            "use it"
        )
        pool = None
    sources_of_parts: dict[SplitName, Path | None] = {
        main: sources["labeled" if main == "labeled" else "train"],
        "validation": validation or val,
        "test": test,
    }
    splits = {part: folder for part, folder in sources_of_parts.items() if folder is not None}
    used = [*splits.values(), *([pool] if pool is not None else [])]
    _check_apart(used)
    rows.ignored += [display_text(folder.name) for folder in folders if folder not in used]
    classes: tuple[str, ...] = ()
    faults: list[str] = []
    for part, folder in splits.items():
        name = display_text(folder.name)
        inside = entries(folder)
        rows.unused += [f"{name}/{display_text(item.name)}" for item in inside if not item.is_dir()]
        kinds = [item for item in inside if item.is_dir()]
        others = [real_path(other) for other in splits.values() if other != folder]
        if part == main:
            classes = _read_classes(top, f"{name}/", kinds, part, others, rows)
            continue
        unknown = [item for item in kinds if _class_of(item) not in classes]
        faults += [
            f"{display_path(item)} is a class that {display_text(splits[main].name)}/ doesn't "
            f"have (it has {summarize(classes)}); add images of it there, or remove the folder"
            for item in unknown
        ]
        if not unknown:
            _read_classes(top, f"{name}/", kinds, part, others, rows, classes)
    if faults:
        raise DataError(faults)
    if main == "labeled":
        _read_unlabeled(top, pool, [real_path(folder) for folder in splits.values()], rows)
    return classes


def _read_classes(
    top: Path,
    prefix: str,
    folders: Sequence[Path],
    part: SplitName,
    others: Sequence[Path],
    rows: TableBuilder,
    classes: tuple[str, ...] | None = None,
) -> tuple[str, ...]:
    """Read class folders into the table; returns `classes`, by default those read here."""
    root = real_path(top)
    kinds: list[str] = []
    for folder in sorted(folders, key=_class_of):
        kind, name = _class_of(folder), display_text(folder.name)
        real = real_path(folder)
        home = real_path(folder.parent)
        if folder.is_symlink() and (
            in_any(real, [home, *others]) or home.is_relative_to(real) or root.is_relative_to(real)
        ):
            rows.links.append(prefix + name)
            continue
        tree = walk(folder, prefix + name, root=root, others=others)
        if not prefix and not tree.images and not any(map(kind_of_name, tree.unused)):
            rows.ignored.append(name)  # beside the classes of a single pool: no class
            continue
        if kind not in kinds[-1:]:
            kinds.append(kind)
        label = len(kinds) - 1 if classes is None else classes.index(kind)
        rows.add(tree, label, part)
    return tuple(kinds) if classes is None else classes


def _class_of(folder: Path) -> str:
    """Return the class of a folder: names in different Unicode forms are one class."""
    return class_name(display_text(folder.name))


def _read_unlabeled(
    top: Path, pool: Path | None, others: Sequence[Path], rows: TableBuilder
) -> None:
    if pool is None:
        rows.notes.append(f"no unlabeled images: there is no folder {display_path(top)}/unlabeled")
        return
    tree = walk(pool, display_text(pool.name), root=real_path(top), others=others)
    rows.add(tree, -1, "unlabeled")
    if not tree.images:
        rows.notes.append(f"no unlabeled images: the folder {display_path(pool)} holds none")


def _check_apart(folders: Sequence[Path]) -> None:
    for folder, other in permutations(folders, 2):
        if real_path(folder).is_relative_to(real_path(other)):
            raise DataError(
                f"{display_path(folder)} and {display_path(other)} lead to the same images; "
                "splits must not share a folder"
            )


def _both(top: Path, first: Path, other: Path) -> DataError:
    return DataError(
        f"{display_path(top)} has both {display_text(first.name)}/ and "
        f"{display_text(other.name)}/, which mean the "
        "same; keep one of them"
    )


def _check_classes(folder: Path, start: str, classes: tuple[str, ...], rows: TableBuilder) -> None:
    """Refuse classes without images; `start` is the start of the keys in the folder of classes."""
    where = display_path(folder)
    pairs = zip(rows.labels, rows.splits, strict=True)
    filled = {label for label, part in pairs if part in ("labeled", "pool")}
    empty = []
    for label, name in enumerate(classes):
        if label not in filled:
            prefix = f"{start}{name}/"
            kinds = Counter(kind_of_name(key) for key in rows.unused if key.startswith(prefix))
            others = [
                f"{n} files, each {kind}: {way_out(kind)}" for kind, n in kinds.items() if kind
            ]
            but = f", but {'; '.join(others)}" if others else ""
            empty.append(f"class folder {where}/{name} has no image{but}; add some, or remove it")
    if empty:
        raise DataError(empty)
    if len(classes) < 2:
        suffixes = {Path(key).suffix.lower() for key in rows.unused}
        loose = not classes and not suffixes.isdisjoint(FILE_SUFFIXES)
        raise DataError(
            f"{where} has images in {len(classes)} class folders, and at least two classes are "
            f"needed{_start(folder) * loose}; a data folder holds {LAYOUTS}"
        )


def _start(top: Path) -> str:
    return f"; if no image has a label yet, start with `ssl-toolkit label next {display_path(top)}`"


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder sorted by name, without files that tools leave behind.

    Raises:
        DataError: The folder can't be listed.
    """
    try:
        items = [folder / name for name in os.listdir(folder) if not left_by_tools(name)]
    except OSError as error:
        raise DataError(f"can't list the folder {display_path(folder)}: {error.strerror}") from None
    return sorted(items, key=lambda path: display_text(path.name))


def walk(top: Path, key: str, *, root: Path, others: Sequence[Path] = ()) -> FileTree:
    """Collect the images below one folder.

    Real folders come first; then each linked folder that was not seen yet is walked once, so that
    cyclic links end and the order of two links doesn't matter. Not
    followed: a link into one of `others`, to a folder elsewhere in the data folder, or to a
    folder that holds the data folder; and a link to a single image in one of `others`. Arrays
    (``.npy``) beside images of other formats are not used: they hold masks or features of these.

    Args:
        top: The folder to walk; walked in any case, also when it is a link.
        key: Its key, the start of all keys below it.
        root: The real path of the data folder.
        others: Real paths of the folders whose images must be excluded.

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
            elif path.suffix.lower() not in FILE_SUFFIXES:
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
    if any(path.suffix.lower() in IMAGE_SUFFIXES for path in tree.images.values()):
        arrays = [key for key, path in tree.images.items() if path.suffix.lower() == npy.SUFFIX]
        tree.unused += arrays
        for key in arrays:
            del tree.images[key]
    tree.images = dict(sorted(tree.images.items()))
    return tree


def real_path(path: Path) -> Path:
    """Resolve all links of a path; a broken link leads where it would lead."""
    return Path(os.path.realpath(path))


def in_any(path: Path, folders: Sequence[Path]) -> bool:
    """Return True if a real path is one of the folders or below one."""
    return any(map(path.is_relative_to, folders))


def left_by_tools(name: str) -> bool:
    """Return True for hidden files, AppleDouble companions (``._x``), thumbnails and the like."""
    return name.startswith(".") or name.lower() in _LEFT_BY_TOOLS
