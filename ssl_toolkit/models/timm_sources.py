"""Resolve the name of a timm model: one of timm's, a repository of the hub, or a local folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_toolkit import registry
from ssl_toolkit.errors import ModelError, PluginError, one_line
from ssl_toolkit.models.published import hub_file

HUB, FOLDER = "hf-hub:", "local-dir:"
_KEYS = (
    *("input_size", "fixed_input_size", "mean", "std", "num_classes", "first_conv", "classifier"),
    *("pool_size", "interpolation", "crop_pct", "custom_load", "license"),
)


def has_source(name: str) -> bool:
    """Return True if a name of a backbone contains where its configuration is."""
    return name.startswith((HUB, FOLDER))


@dataclass(frozen=True)
class TimmSource:
    """A timm model before it is built."""

    name: str
    """Name in timm, with or without a tag."""
    configuration: Any
    """timm's ``PretrainedCfg``, None if the model has none."""
    arguments: dict[str, Any]
    """Arguments of the model in the configuration of a repository or folder."""


def find_model(name: str) -> TimmSource:
    """Return the architecture and configuration of a model.

    Args:
        name: Name in timm, ``hf-hub:ORGANIZATION/NAME``, or ``local-dir:PATH`` of a folder that
            timm's ``save_for_hf`` has written.

    Raises:
        PluginError: timm has no such model; the message has near names.
        ModelError: The name has no repository or folder, or that has no valid configuration.
    """
    import timm

    if not has_source(name):
        _require_known(name, name)
        return TimmSource(name, timm.get_pretrained_cfg(name), {})
    place = name.partition(":")[2]
    if not place.strip():
        form = f"{HUB}ORGANIZATION/NAME" if name.startswith(HUB) else f"{FOLDER}PATH"
        raise ModelError(f"backbone {name!r}: nothing follows the colon; give {form}")
    if name.startswith(HUB):
        path = hub_file(name, place, "config.json")
        source = {"source": "hf-hub", "hf_hub_id": place}
    else:
        path = Path(place).expanduser() / "config.json"
        source = {"source": "local-dir", "file": str(path.parent)}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        architecture, stored = str(content["architecture"]), content.get("model_args", {})
        arguments = {key: stored[key] for key in stored if key not in ("num_classes", "in_chans")}
        stored = content.get("pretrained_cfg", content)
        values: dict[str, Any] = {key: stored[key] for key in _KEYS if key in stored}
        configuration = timm.models.PretrainedCfg(**values | source)
        int(configuration.input_size[-1])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise ModelError(
            f"backbone {name!r}: {path} is not found or not the configuration of a timm model "
            f"({reason}); give a folder that timm.models.save_for_hf has written"
        ) from error
    _require_known(architecture, name)
    return TimmSource(architecture, configuration, arguments)


def _require_known(architecture: str, name: str) -> None:
    import timm

    known = timm.list_pretrained() if "." in architecture else timm.list_models()
    if architecture not in known and not timm.is_model(architecture):
        names = [entry.name for entry in registry.entries("backbones")]
        of = "" if architecture == name else f" of {name!r}"
        raise PluginError(
            f"unknown backbone {architecture!r}{of}"
            f"{registry.did_you_mean(architecture, [*known, *names])}; "
            f"known: {', '.join(sorted(set(names)))}, and the models of timm"
        )
