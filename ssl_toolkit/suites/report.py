"""Write the results of a suite again from the comparisons in its folder."""

from __future__ import annotations

from pathlib import Path

from ssl_toolkit.errors import ModelError
from ssl_toolkit.suites.page import JSON
from ssl_toolkit.suites.results import Benchmark, collect
from ssl_toolkit.suites.run import suite_of


def report_suite(folder: Path) -> Benchmark | None:
    """Collect the results of a suite, with the reasons of members that were not run.

    Args:
        folder: Path to a folder.

    Returns:
        The results, or None if no suite was run in the folder.

    Raises:
        ConfigError: Its ``suite.yaml`` is invalid.
    """
    suite = suite_of(folder)
    if suite is None:
        return None
    try:
        before = Benchmark.read(folder / JSON).members
    except (FileNotFoundError, ModelError):
        before = ()
    reasons = {
        status: {one.name: one.reason for one in before if one.status == status}
        for status in ("missing data", "failed")
    }
    return collect(suite, folder, missing=reasons["missing data"], failures=reasons["failed"])
