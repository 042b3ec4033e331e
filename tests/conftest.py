"""What every test stands on: one thread, no network, and the command line in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Before torch is imported: pytest-xdist runs one test a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["HF_HUB_OFFLINE"] = "1"
# pytest-xdist sets it; commands then wrap their output as in a terminal.
os.environ.pop("COLUMNS", None)
# Scripts that tests start import what tests share, too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(__file__).parent / "support"), os.environ.get("PYTHONPATH")))
)

import pytest
from case_folders import case_folders  # noqa: F401
from in_process import Command


@pytest.fixture(autouse=True, scope="session")
def image_caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep decoded images out of the home folder; the commands in processes of their own too."""
    os.environ["SSL_TOOLKIT_CACHE"] = str(tmp_path_factory.mktemp("caches"))


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run ``ssl-toolkit`` as a person does, in a folder of its own.

    Keyword arguments: ``env`` adds variables, ``timeout`` in seconds (default 120).
    """

    def run(
        *arguments: object, env: dict[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ssl_toolkit", *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | (env or {}),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )

    return run
