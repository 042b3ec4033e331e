"""Errors raised by the code of a plugin, reported with plugin, file and line."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import nn

from ssl_toolkit import registry
from ssl_toolkit.config.plugin_names import kind_of, parts_of
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.engine.step_checks import WrongOutputError
from ssl_toolkit.errors import PluginError, ToolkitError
from ssl_toolkit.interfaces import Algorithm

T = TypeVar("T")
Frames = list[tuple[FrameType, int]]


@dataclass(frozen=True)
class Suspect:
    """A plugin that takes part in a run."""

    kind: str
    """Singular: ``algorithm``."""
    name: str
    entry: registry.Entry
    plugin: Any

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"{self.kind} {self.name!r}"

    @property
    def advice(self) -> str:
        """Advice for its author; a class of a notebook can't be checked by name."""
        if self.entry.distribution != registry.NOTEBOOK:
            return f"see `ssl-toolkit check {self.name}`"
        return f"see ssl_toolkit.testing.check_plugin({self.plugin.__name__})"


@contextmanager
def plugin_faults(settings: Settings, raised: type[ToolkitError]) -> Iterator[None]:
    """Report an error raised by the code of a plugin, inside the block, as that plugin's.

    Errors that are already reported in one line (those of this toolkit, of files, and CUDA out of
    memory) and errors outside of plugins pass unchanged.

    Args:
        settings: settings that name the plugins.
        raised: class of the error that is raised instead, with the original as its cause.

    Raises:
        ToolkitError: `raised`, in one line.
    """
    try:
        yield
    except (ToolkitError, OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if message := _message(error, _suspects(settings)):
            raise raised(message) from error
        raise


def construct(kind: str, name: str, plugin: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Construct a plugin; `plugin_faults` reports errors inside its ``__init__``.

    Args:
        kind: kind of the plugin, in the singular.
        name: registered name.
        plugin: class of the plugin.
        args: positional arguments of ``__init__``.
        kwargs: keyword arguments of ``__init__``.

    Raises:
        PluginError: ``__init__`` does not accept the arguments, or does not call its parent's.
    """
    where = f"__init__ of {kind} {name!r}{_definition(plugin, '__init__')}"
    try:
        inspect.signature(plugin).bind(*args, **kwargs)
    except TypeError as error:
        interface = f"ssl_toolkit.{kind.capitalize()}"
        raise PluginError(f"{where} does not take the arguments of {interface}: {error}") from error
    instance = plugin(*args, **kwargs)
    if isinstance(instance, nn.Module) and "_modules" not in vars(instance):
        raise PluginError(f"{where} does not call super().__init__")
    return instance


def own_frames(error: BaseException, package: str) -> Frames:
    """Return the frames of an error in the files of a package, the innermost one last."""
    return [(f, n) for f, n in traceback.walk_tb(error.__traceback__) if _package(f) == package]


def short(path: str | None) -> str:
    """Return a path to report: relative to the working directory if it is below that."""
    try:
        return str(Path(path or "").relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _message(error: Exception, suspects: list[Suspect]) -> str:
    """Describe the error in one line; empty if no plugin is involved."""
    if isinstance(error, WrongOutputError):
        (algorithm,) = (suspect for suspect in suspects if suspect.kind == "algorithm")
        place = _definition(algorithm.plugin, "step")
        return f"step of {algorithm.label}{place} {error}; {algorithm.advice}"
    outside = [suspect for suspect in suspects if not suspect.entry.built_in]
    for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
        for suspect in outside:
            package = suspect.plugin.__module__.partition(".")[0]
            if _package(frame) == package and _is_call_of(frame, suspect.plugin):
                innermost, line = own_frames(error, package)[-1]
                place = f"{short(innermost.f_code.co_filename)}:{line}"
                text = " ".join(_text(error).split())
                return (
                    f"{type(error).__name__} in {frame.f_code.co_name} of {suspect.label} ({place})"
                    f"{text and f': {text}'}{_hint(text, frame)}; {suspect.advice}"
                )
    return ""


def _hint(text: str, frame: FrameType) -> str:
    """List the available views if a step used others."""
    algorithm = _first_argument(frame)
    missing = "for dimension 0 with size" in text or "values to unpack" in text
    if not (missing and isinstance(algorithm, Algorithm) and frame.f_code.co_name != "views"):
        return ""
    views = algorithm.views()
    counts = {name: view.count for name, view in views.kinds.items()}
    text = ", ".join(f"{name}={count}" for name, count in counts.items())
    return f" (views() requests {text})"


def _suspects(settings: Settings) -> list[Suspect]:
    """Return the registered plugins of a run (backbones of timm are not registered)."""
    names: list[tuple[str, str | None]] = [*parts_of("algorithms", settings.algo)]
    names += [("augmenters", settings.augment.weak), ("augmenters", settings.augment.strong)]
    names += [("backbones", settings.backbone), ("datasets", settings.dataset)]
    suspects = []
    for group, name in names:
        if name is not None and registry.has(group, name):
            entry = registry.find(group, name)
            plugin, reason = registry.attempt(entry)
            if not reason:
                suspects.append(Suspect(kind_of(group), name, entry, plugin))
    return suspects


def _definition(plugin: Any, method: str) -> str:
    """Return file and line of a method in parentheses; empty if they are unknown."""
    code = getattr(inspect.unwrap(getattr(plugin, method)), "__code__", None)
    return f" ({short(code.co_filename)}:{code.co_firstlineno})" if code else ""


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_call_of(frame: FrameType, plugin: type) -> bool:
    """Return True if the frame is that of a method of the class, or of a function inside one."""
    first = _first_argument(frame)
    if first is plugin or isinstance(first, plugin):
        return True
    return frame.f_code.co_qualname.startswith(f"{plugin.__qualname__}.")


def _first_argument(frame: FrameType) -> object:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # __str__ is code of the plugin
        return ""
