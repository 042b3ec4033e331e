"""Where the example configurations are."""

from __future__ import annotations

from pathlib import Path

from ssl_toolkit.errors import ConfigError
from ssl_toolkit.files import at_home
from ssl_toolkit.registry import did_you_mean


def configs_dir() -> Path:
    """The folder ``configs/``: inside an installed wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def find_config(name: str) -> Path:
    """A configuration file by path, or by its name below `configs_dir`.

    Raises:
        ConfigError: it is neither; the message suggests near names of packaged files.
    """
    path = at_home(name)
    shipped = configs_dir() / name
    if path.exists():
        return path
    if shipped.is_file():
        return shipped
    known = [str(one.relative_to(configs_dir())) for one in configs_dir().rglob("*.yaml")]
    raise ConfigError(
        f"{path}: no such file, nor one that comes with ssl-toolkit{did_you_mean(name, known)}"
    )
