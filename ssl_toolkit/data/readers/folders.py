"""A user's own folders of images as an `ImageTable`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.cache.format import Progress
from ssl_toolkit.data.class_names import class_name
from ssl_toolkit.data.images.kinds import kind_of_name, way_out
from ssl_toolkit.data.readers.file_tree import entries, in_any, is_inside, real_path, walk
from ssl_toolkit.data.readers.table_builder import TableBuilder
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable, Part
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
_SOURCES: dict[str, Source] = {
    "labeled": "labeled",
    "labelled": "labeled",
    "unlabeled": "unlabeled",
    "unlabelled": "unlabeled",
    "train": "train",
    "validation": "validation",
    "val": "val",
    "test": "test",
}


def read_folder(
    path: Path | str,
    *,
    on_bad_image: Literal["error", "skip"] = "error",
    workers: int = 0,
    size: int | None = None,
    progress: Progress | None = None,
    lazily: bool = False,
    fit: Fit = "crop",
) -> ImageTable:
    """List the images of a folder; nothing is written there.

    The layout is recognized by the names of the folders (see `LAYOUTS`; also ``labelled`` and
    ``unlabelled``, upper or lower case). Classes are the folders in ``labeled/`` or ``train/``, or
    the top ones, sorted as text. ``val/`` without ``test/`` beside ``train/`` is the test split.
    Every image is verified by decoding it. Links are followed once and never from the unlabeled
    images into labeled, validation or test ones.

    Args:
        path: the data folder.
        on_bad_image: ``error`` refuses the folder and names every unreadable image of every
            split at once; ``skip`` leaves exactly those out and names each in a note.
        workers: threads that decode; 0 decodes in the calling one.
        size: side in pixels at which they are decoded into the cache, from which ``read`` then
            serves that size; None verifies only.
        progress: called while they are decoded.
        lazily: open no image; unreadable ones stay in the table.
        fit: see `images.fit_image`.

    Returns:
        The table; its notes say what was understood, ignored, not used and skipped. Without
        unlabeled images in the ``labeled/`` layout a note starts "no unlabeled images".

    Raises:
        DataError: no such folder, a layout that can't be read, classes that don't agree, a class
            without images, or unreadable images.
    """
    top = Path(path)
    if not top.is_dir():
        kind = "is a file, not a folder" if top.exists() else "doesn't exist"
        raise DataError(
            f"the data folder {display_path(top)} {kind}; give one that holds {LAYOUTS}"
        )
    rows = TableBuilder(workers, size, progress, lazily, fit)
    inside = entries(top)
    folders = [entry for entry in inside if entry.is_dir()]
    rows.unused += [display_text(entry.name) for entry in inside if not entry.is_dir()]
    sources = _sources(top, folders)
    if "labeled" in sources or "train" in sources:
        classes = _read_splits(top, sources, rows)
        used = set(rows.folders)
        rows.ignored += [display_text(folder.name) for folder in folders if folder not in used]
    elif sources:
        names = summarize([f"{display_text(folder.name)}/" for folder in sources.values()])
        raise DataError(
            f"{display_path(top)} has {names} but neither labeled/ nor train/; a data folder holds "
            f"{LAYOUTS}"
        )
    else:
        classes = _read_classes(top, "", folders, "pool", (), rows)
        if len(classes) < 2:
            raise DataError(
                f"{display_path(top)} holds images in {len(classes)} class folders, two are the "
                "least; "
                f"a data folder holds {LAYOUTS}"
            )
    rows.drop_unreadable(refuse=on_bad_image == "error")
    _check_classes(top, classes, rows)
    return rows.table(classes)


def _sources(top: Path, folders: Sequence[Path]) -> dict[Source, Path]:
    """The folders that mean something in a layout, by what they mean."""
    sources: dict[Source, Path] = {}
    for folder in folders:
        source = _SOURCES.get(folder.name.lower())
        if source in sources:
            raise _both(top, sources[source], folder)
        if source is not None:
            sources[source] = folder
    return sources


def _read_splits(top: Path, sources: dict[Source, Path], rows: TableBuilder) -> tuple[str, ...]:
    """Read the layouts with a folder a split; returns the classes."""
    main: Part = "labeled" if "labeled" in sources else "pool"
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
    found: dict[Part, Path | None] = {
        main: sources["labeled" if main == "labeled" else "train"],
        "validation": validation or val,
        "test": test,
    }
    splits = {part: folder for part, folder in found.items() if folder is not None}
    rows.folders = [*splits.values(), *([pool] if pool is not None else [])]
    _check_apart(rows.folders)
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
        foreign = [item for item in kinds if _class_of(item) not in classes]
        faults += [
            f"{display_path(item)} is a class that {display_text(splits[main].name)}/ doesn't "
            "have (it has "
            f"{summarize(classes)}); add images of it there, or remove the folder"
            for item in foreign
        ]
        if not foreign:
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
    part: Part,
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
            is_inside(real, home)
            or is_inside(home, real)
            or is_inside(root, real)
            or in_any(real, others)
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
    """The class of a folder: two folders of one name in two Unicode forms are one class."""
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
    for folder in folders:
        for other in folders:
            if folder != other and is_inside(real_path(folder), real_path(other)):
                raise DataError(
                    f"{display_path(folder)} and {display_path(other)} lead to the same images; "
                    "splits must not share a folder"
                )


def _both(top: Path, one: Path, other: Path) -> DataError:
    return DataError(
        f"{display_path(top)} has both {display_text(one.name)}/ and "
        f"{display_text(other.name)}/, which mean the "
        "same; keep one of them"
    )


def _check_classes(top: Path, classes: tuple[str, ...], rows: TableBuilder) -> None:
    where = display_path(rows.folders[0] if rows.folders else top)
    start = f"{display_text(rows.folders[0].name)}/" if rows.folders else ""
    pairs = zip(rows.labels, rows.parts, strict=True)
    filled = {label for label, part in pairs if part in ("labeled", "pool")}
    empty = [
        f"class folder {where}/{kind} holds no readable image"
        f"{_but(f'{start}{kind}/', rows)}; add some, or remove it"
        for label, kind in enumerate(classes)
        if label not in filled
    ]
    if empty:
        raise DataError(empty)
    if len(classes) < 2:
        raise DataError(
            f"{where} has {len(classes)} class folders; at least two classes are needed"
        )


def _but(start: str, rows: TableBuilder) -> str:
    """Describe the other files of a class folder without images; empty if unknown."""
    kinds = Counter(kind_of_name(name) for name in rows.unused if name.startswith(start))
    skipped = [note for note in rows.notes if note.startswith(f"skipped {start}")]
    others = [
        f"{count} files, each {kind}: {way_out(kind)}" for kind, count in kinds.items() if kind
    ]
    others += [f"{len(skipped)} unreadable ones, the first {skipped[0][8:]}"] if skipped else []
    return f", but {'; '.join(others)}" if others else ""
