"""Input files of commands, which their outputs must not replace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssl_toolkit.config import yaml
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.files import check_target
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.text import display_path


def inputs_of(run: Path) -> list[Path]:
    """Return the files of a run, and those that its configuration names."""
    folder = RunFolder(run)
    inputs = _paths_in(folder, ("data", "labels", "pseudo_labels", "split", "weights"))
    return [*folder.files(), *filter(None, inputs)]


def data_of(run: Path) -> list[tuple[Path, Path | None]]:
    """Return the data of a run and the root of its paths; empty for a data set with neither."""
    data, root = _paths_in(RunFolder(run), ("data", "root"))
    return [(data, root)] if data else [(root, None)] if root else []


def _paths_in(folder: RunFolder, keys: Sequence[str]) -> list[Path | None]:
    try:
        config = yaml.read(folder.config)
    except ConfigError:  # an exported model has none; reading the run reports a damaged one
        config = {}
    values = (config.get(key) for key in keys)
    return [Path(name) if isinstance(name, str) else None for name in values]


def check_beside(path: Path | None, data: Path, root: Path | None = None) -> None:
    """Raise if an image file would replace an image of the data, or be in its folder.

    Args:
        path: Path to the image file; None for none.
        data: Path to the folder or file of the data.
        root: Folder that the paths of a manifest are relative to.

    Raises:
        ConfigError: The path is in the data.
        DataError: The data can't be read.
    """
    if path is None:
        return
    if data.is_dir() and path.resolve().is_relative_to(data.resolve()):
        raise ConfigError(
            f"{display_path(path)}: this is in the folder of the data; choose another folder"
        )
    if data.is_file() and path.exists():
        from ssl_toolkit.data.load import read_data

        check_target(path, inputs=read_data(data, root=root).files or ())
