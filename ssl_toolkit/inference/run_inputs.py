"""What commands read, and so must not replace by what they write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssl_toolkit.config import yaml
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.files import check_target
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.text import display_path


def inputs_of(run: Path) -> list[Path]:
    """The files of a run, and those that its configuration names."""
    folder = RunFolder(run)
    inputs = _paths_in(folder, ("data", "labels", "split", "weights"))
    return [*folder.files(), *filter(None, inputs)]


def data_of(run: Path) -> list[tuple[Path, Path | None]]:
    """What a run was trained on and the root of its paths; empty where it names no files."""
    data, root = _paths_in(RunFolder(run), ("data", "root"))
    return [(data, root)] if data else [(root, None)] if root else []


def _paths_in(folder: RunFolder, keys: Sequence[str]) -> list[Path | None]:
    try:
        config = yaml.read(folder.config)
    except ConfigError:  # an exported model has none; the reader of a damaged one reports it
        config = {}
    named = (config.get(key) for key in keys)
    return [Path(name) if isinstance(name, str) else None for name in named]


def check_beside(path: Path | None, data: Path, root: Path | None = None) -> None:
    """Refuse a drawing that would replace one of the images of some data, or lie among them.

    Args:
        path: None for no drawing.
        data: the folder or file that ``--data`` names.
        root: what the paths of a manifest are relative to.

    Raises:
        ConfigError: it would.
        DataError: the data can't be read.
    """
    if path is None:
        return
    if data.is_dir() and path.resolve().is_relative_to(data.resolve()):
        raise ConfigError(
            f"{display_path(path)}: nothing is written into the data; choose another place"
        )
    if data.is_file() and path.exists():
        from ssl_toolkit.data.load import read_data

        check_target(path, inputs=read_data(data, root=root).files or ())
