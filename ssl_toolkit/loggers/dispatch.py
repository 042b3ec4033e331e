"""Send each row of metrics to the loggers of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ssl_toolkit import registry
from ssl_toolkit.console import Console
from ssl_toolkit.errors import PluginError, UserError
from ssl_toolkit.interfaces import Logger, RunInfo

Row = dict[str, Any]


class Log:
    """The active loggers of a run, as a context manager that closes them.

    A logger that fails after the start is removed with one warning; training continues without it.

    Args:
        run: The run.
        names: Names of the loggers.
        console: Prints warnings and the notes of loggers.
        summary: Returns the content of ``summary.json`` when the block ends.

    Raises:
        UserError: A logger can't start; those already started are closed.
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
        """Send a row of metrics to each logger."""
        self._each(lambda logger: logger.log(row))

    def _finish(self, error: BaseException | None) -> None:
        if not self._active:
            return
        final = {**self._summary()}
        if error is not None and final["status"] == "running":
            # No other code records this exception.
            final |= {"status": "failed", "reason": _describe(error)}
        self._each(lambda logger: logger.finish(final))

    def _each(self, act: Callable[[Logger], None]) -> None:
        for name, logger in list(self._active.items()):
            try:
                act(logger)
            except (Exception, SystemExit) as error:
                del self._active[name]
                self._console.warn(
                    f"logger {name!r} failed; the run continues without it: {_describe(error)}"
                )


def _start(name: str, run: RunInfo) -> Logger:
    entry, plugin = registry.find("loggers", name), registry.load("loggers", name)
    try:
        logger: Logger = plugin(run)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"logger {entry.name!r} of {entry.distribution} can't start: {_describe(error)}"
        ) from error
    return logger


def _describe(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
