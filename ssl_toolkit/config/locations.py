"""Where the example configurations are."""

from __future__ import annotations

from pathlib import Path


def configs_dir() -> Path:
    """The folder ``configs/``: inside an installed wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def find_config(name: str) -> Path:
    """A configuration file by path, or by its name below `configs_dir`.

    A name that is neither is returned as given; reading it tells the user that it is missing.
    """
    path = Path(name)
    shipped = configs_dir() / name
    return shipped if not path.exists() and shipped.is_file() else path
