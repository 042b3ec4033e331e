"""Augmenters by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssl_toolkit import registry
from ssl_toolkit.config.loading import check_options
from ssl_toolkit.interfaces import Augmenter


def make_augmenter(
    name: str, options: Mapping[str, Any] | None = None, *, flip: bool = True
) -> Augmenter:
    """Return a registered augmenter, such as for `Algorithm.augmenters`.

    Args:
        name: Name of the augmenter, as for ``augment.strong``.
        options: Its options; the defaults if None.
        flip: True if mirrored images keep their class (`TaskInfo.flip`).

    Raises:
        PluginError: The augmenter is unknown or broken.
        ConfigError: An option is unknown or invalid.
    """
    plugin: type[Augmenter] = registry.load("augmenters", name)
    return plugin(check_options(plugin.Config, dict(options or {}), name), flip=flip)
