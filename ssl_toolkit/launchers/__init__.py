"""Built-in launchers, a file each; `work` and `tied` are how all of them start a command."""

from __future__ import annotations

import importlib.util

from ssl_toolkit.errors import PluginError


def require(package: str, launcher: str) -> None:
    """Refuse a launcher whose package is missing, without importing it.

    Raises:
        PluginError: says how it is installed.
    """
    if importlib.util.find_spec(package) is None:
        raise PluginError(
            f"launcher {launcher!r} needs the package {package}, which is not installed: "
            f"pip install 'ssl-toolkit[{launcher}]'"
        )
