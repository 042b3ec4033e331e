"""List the images of a command's arguments: files, and all images in folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ssl_toolkit.data.images.kinds import kind_of_name
from ssl_toolkit.data.readers.folders import real_path, walk
from ssl_toolkit.data.readers.image_files import unused_notes
from ssl_toolkit.errors import DataError
from ssl_toolkit.text import display_path, display_text, summarize


@dataclass(frozen=True)
class Listing:
    """Images, by the names under which they are reported."""

    names: list[str]
    """(N,) the argument, joined with the relative path if it is a folder."""
    paths: list[Path]
    """(N,) the files."""
    notes: list[str]
    """Messages about files that are not used."""


def list_images(arguments: Sequence[str]) -> Listing:
    """Find the images, in the order of the arguments and, within folders, of names.

    Folders are walked like ``unlabeled/``: hidden files are skipped, cyclic links are not followed,
    and images are recognized by extension. A file argument is an image regardless of its extension.
    No file is opened.

    Args:
        arguments: Paths of files and folders.

    Raises:
        DataError: Some don't exist, or are folders without images; one message each.
    """
    listing = Listing([], [], [])
    faults = []
    unused: list[str] = []
    links: list[str] = []
    for argument in arguments:
        path = Path(argument)
        if not path.is_dir():
            if not os.path.lexists(path):
                faults.append(f"{display_text(argument)}: no such image or folder")
            listing.names.append(display_text(argument))
            listing.paths.append(path)
            continue
        tree = walk(path, display_text(os.path.join(argument, ""))[:-1], root=real_path(path))
        if not tree.images:
            others = [name for name in tree.unused if kind_of_name(name)]
            reason = "; ".join(["there are no images in this folder", *unused_notes(others, "")])
            faults.append(f"{display_path(path)}: {reason}")
        listing.names.extend(tree.images)
        listing.paths.extend(tree.images.values())
        unused += tree.unused
        links += tree.links
    if faults:
        raise DataError(faults)
    listing.notes.extend(unused_notes(unused, "no image's extension"))
    if links:
        listing.notes.append(f"links not followed (they lead in a circle): {summarize(links)}")
    return listing
