"""The loggers of a run: checked before its folder is made, told each row, closed at its end."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ssl_toolkit import registry
from ssl_toolkit.console import Console
from ssl_toolkit.errors import PluginError, UserError
from ssl_toolkit.interfaces import Logger, RunInfo

Row = dict[str, Any]


def check_loggers(names: Sequence[str]) -> None:
    """Refuse loggers that can't work here, without importing their packages.

    Raises:
        PluginError: one is unknown or broken, or a package that it needs is missing.
    """
    for name in names:
        require(registry.find("loggers", name), registry.load("loggers", name))


def require(entry: registry.Entry, plugin: type[Logger]) -> None:
    """Refuse a logger whose packages are missing.

    Raises:
        PluginError: names the package and how it is installed.
    """
    for package in plugin.packages:
        if importlib.util.find_spec(package) is None:
            install = f"'ssl-toolkit[{entry.name}]'" if entry.built_in else package
            raise PluginError(
                f"logger {entry.name!r} needs the package {package}, which is not installed: "
                f"pip install {install}"
            )


class Log:
    """The loggers of a run at work; a context manager that closes them however the block ends.

    One that fails after the start is told once, by its name and the reason, and left out from
    there on: training goes on without it.

    Args:
        run: what is logged.
        names: of the loggers.
        console: where warnings go, and what loggers have to say.
        summary: reads ``summary.json`` as it is when the block ends.

    Raises:
        UserError: a logger can't start; those before it are closed.
    """

    def __init__(
        self,
        run: RunInfo,
        names: Sequence[str],
        console: Console,
        summary: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._console = console
        self._summary = summary
        self._active: dict[str, Logger] = {}
        try:
            for name in dict.fromkeys(names):
                self._active[name] = logger = _start(name, run)
                if logger.note:
                    console.say(f"logger {name!r}: {logger.note}", important=True)
        except BaseException as error:
            self._finish(error)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finish(error)

    def row(self, row: Row) -> None:
        """Hand a row of metrics to each logger."""
        self._each(lambda logger: logger.log(row))

    def _finish(self, error: BaseException | None) -> None:
        if not self._active:
            return
        final = {**self._summary()}
        if error is not None and final["status"] == "running":
            # It ended in a way that nothing foresaw.
            final |= {"status": "failed", "reason": _told(error)}
        self._each(lambda logger: logger.finish(final))

    def _each(self, act: Callable[[Logger], None]) -> None:
        for name, logger in list(self._active.items()):
            try:
                act(logger)
            except (Exception, SystemExit) as error:
                del self._active[name]
                self._console.warn(
                    f"logger {name!r} failed, so the run goes on without it: {_told(error)}"
                )


def _start(name: str, run: RunInfo) -> Logger:
    entry, plugin = registry.find("loggers", name), registry.load("loggers", name)
    try:
        logger: Logger = plugin(run)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"logger {entry.name!r} of {entry.distribution} can't start: {_told(error)}"
        ) from error
    return logger


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def final_scores(summary: Mapping[str, Any]) -> dict[str, float]:
    """The test scores of a finished run by dotted name, ``test.accuracy`` and so on."""
    scores = summary.get("test") or {}
    return {f"test.{k}": float(v) for k, v in scores.items() if isinstance(v, int | float)}
