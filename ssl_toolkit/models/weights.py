"""Load weights of this toolkit, timm and torchvision from files, without running their code."""

from __future__ import annotations

import argparse
import json
import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from ssl_toolkit.errors import ModelError
from ssl_toolkit.interfaces import Backbone
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.heads import head_for
from ssl_toolkit.text import summarize

_WRAPPERS = ("module.", "_orig_mod.", "model.", "backbone.")
# Averaged weights come first: a run, and a training by timm, reports their accuracy.
_NESTED = ("ema", "model_ema", "state_dict_ema", "state_dict", "weights", "model", "module")
_HEADS = ("head", "fc", "classifier", "linear", "head.fc")


class WeightsFile(NamedTuple):
    """The tensors of a file, and its metadata."""

    tensors: dict[str, Tensor]
    """On the CPU, under the file's own keys."""
    backbone: str | None = None
    classes: tuple[str, ...] | None = None


def read_weights(path: Path) -> WeightsFile:
    """Read safetensors, or a ``.pt``/``.pth`` file that holds tensors and plain values only.

    Weights may be nested (``state_dict``, ``model``, ``ema``, …); averaged weights take precedence.
    If the path is a folder, read ``model.safetensors`` in it.

    Raises:
        ModelError: The file is missing or corrupt, has no weights, or would run code when loaded.
    """
    if path.is_dir():
        path = path / "model.safetensors"
    if not path.is_file():
        raise ModelError(f"weights file {path} not found")
    if path.suffix == ".safetensors":
        try:
            tensors = safetensors.torch.load_file(path)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is not a readable safetensors file: {error}") from error
        return WeightsFile(tensors, *_record(_beside(path)))
    try:
        # timm's training script stores its arguments as a Namespace, which is plain data.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a foreign pickle protocol
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        foreign = re.search(r"GLOBAL (\S+)", str(error))
        named = f" (it names {foreign[1]})" if foreign else ""
        raise ModelError(
            f"{path} was not loaded: it is not plain tensors and would run code{named} "
            "or is corrupt; save its state_dict, or convert it to safetensors"
        ) from error
    except Exception as error:  # a corrupt file can raise almost anything
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{path} is not a readable weights file: {reason}") from error
    tensors = _tensors(content)
    if not tensors:
        raise ModelError(f"{path} contains no weights")
    return WeightsFile(tensors, *_record(content))


def load_weights(
    classifier: Classifier,
    path: Path,
    *,
    backbone_name: str | None = None,
    classes: Sequence[str] | None = None,
    with_head: bool = True,
) -> list[str]:
    """Copy the weights of a file into a classifier.

    Prefixes of wrappers (``module.``, ``_orig_mod.``, ``model.``, ``backbone.``) are ignored. The
    head is loaded if its shape matches and the file does not name other classes. Channel
    statistics in the file replace the classifier's. Timm models convert weights as timm does.

    Args:
        classifier: Classifier, changed in place.
        path: Path for `read_weights`.
        backbone_name: Name of the backbone, for messages.
        classes: Names of the classes in order, if known.
        with_head: False to leave the head as it is.

    Returns:
        Messages for the user: how much was loaded, and what was skipped, missing or unexpected.

    Raises:
        ModelError: As `read_weights`, or the weights don't fit the backbone.
    """
    backbone = classifier.backbone
    file = read_weights(path)
    source = _without_wrappers(file.tensors)
    if adapt := getattr(backbone, "adapt", None):
        source = adapt(source)
    keys = {_plain(key): key for key in backbone.state_dict()}
    fitting = {key: source[key] for key in keys if key in source}
    missing = [k for k in keys if k not in fitting and not k.endswith("num_batches_tracked")]
    _check_fit(backbone, path, file, keys, fitting, missing, backbone_name)
    backbone.load_state_dict({keys[key]: tensor for key, tensor in fitting.items()}, strict=False)
    notes = [f"{path}: {len(fitting)} of {len(keys)} tensors of the backbone loaded"]
    if missing:
        notes.append(
            f"{path}: {len(missing)} tensors missing, left as they were: {summarize(missing, 3)}"
        )

    rest = {key: tensor for key, tensor in source.items() if key not in fitting}
    mean, std = rest.pop("mean", None), rest.pop("std", None)
    if mean is not None and std is not None and mean.numel() == std.numel() == classifier.channels:
        classifier.set_statistics(mean.flatten().tolist(), std.flatten().tolist())
    prefix = _head_prefix(rest, classifier) if with_head else None
    if prefix is not None:
        values = {
            key.removeprefix(prefix): rest.pop(key) for key in list(rest) if key.startswith(prefix)
        }
        if note := _load_head(classifier, values, file.classes, classes):
            notes.append(f"{path}: {note}")
    if rest:
        notes.append(f"{path}: {len(rest)} unexpected tensors ignored: {summarize([*rest], 3)}")
    return notes


def _check_fit(
    backbone: Backbone,
    path: Path,
    file: WeightsFile,
    keys: Mapping[str, str],
    fitting: Mapping[str, Tensor],
    missing: Sequence[str],
    name: str | None,
) -> None:
    """Raise an error if the weights belong to another backbone."""
    mine = f"backbone {name!r}" if name else f"backbone {type(backbone).__name__}"
    theirs = f"{path}, weights of {file.backbone!r}," if file.backbone else str(path)
    state = backbone.state_dict()
    if keys and not fitting:
        raise ModelError(
            f"nothing in {theirs} fits {mine}: the file contains {summarize([*file.tensors], 3)}, "
            f"the backbone {summarize([*keys], 3)}"
        )
    wrong = [key for key, tensor in fitting.items() if tensor.shape != state[keys[key]].shape]
    if wrong:
        raise ModelError(
            f"{theirs} does not fit {mine}: {wrong[0]} is {tuple(fitting[wrong[0]].shape)} in the "
            f"file and {tuple(state[keys[wrong[0]]].shape)} in the backbone "
            f"({len(wrong)} of {len(keys)} tensors differ)"
        )
    if missing and file.backbone and name and _family(file.backbone) != _family(name):
        raise ModelError(f"{theirs} does not fit {mine}: {summarize(missing, 3)} are missing")


def _head_prefix(rest: Mapping[str, Tensor], classifier: Classifier) -> str | None:
    """Return the best matching prefix of the head's keys in a file, or None without a head."""
    model = getattr(classifier.backbone, "model", None)
    names = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    candidates = [*_HEADS, *((names,) if isinstance(names, str) else names)]
    wanted = set(classifier.head.state_dict())
    present = [f"{c}." for c in candidates if any(key.startswith(f"{c}.") for key in rest)]
    for prefix in present:
        if {key.removeprefix(prefix) for key in rest if key.startswith(prefix)} == wanted:
            return prefix
    return present[0] if present else None


def _load_head(
    classifier: Classifier,
    values: dict[str, Tensor],
    theirs: Sequence[str] | None,
    ours: Sequence[str] | None,
) -> str:
    """Load a head if it fits; otherwise return why it was skipped."""
    others = theirs if theirs and ours and tuple(theirs) != tuple(ours) else ()
    head = head_for(values)
    if (
        head is not None
        and head.predictor.out_features == classifier.num_classes
        and head.transform.in_features == classifier.backbone.feature_dim
        and not others
    ):
        classifier.head = head
    state = classifier.head.state_dict()
    if values.keys() != state.keys() or any(values[k].shape != state[k].shape for k in state):
        rows = next(iter(values.values())).shape[:1]
        of = f" of {rows[0]} classes" if rows else ""
        return f"skipped its head{of}; the new head is random"
    if others:
        names = summarize(others, 3)
        return f"skipped its head for other classes ({names}); the new head is random"
    classifier.head.load_state_dict(values)
    return ""


def _tensors(content: Any) -> dict[str, Tensor]:
    """Return the weights in a nested file, from the first of the known keys that has some."""
    if not isinstance(content, Mapping):
        return {}
    for key in _NESTED:
        if found := _tensors(content.get(key)):
            return found
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


def _record(content: Any) -> tuple[str | None, tuple[str, ...] | None]:
    """Return the names of backbone and classes, if a checkpoint or configuration has them."""
    if not isinstance(content, Mapping):
        return None, None
    backbone = content.get("backbone") or content.get("architecture") or content.get("arch")
    classes = content.get("classes") or content.get("label_names")
    listed = isinstance(classes, list | tuple) and all(isinstance(name, str) for name in classes)
    return (
        backbone if isinstance(backbone, str) else None,
        tuple(classes) if classes and listed else None,
    )


def _beside(path: Path) -> Any:
    try:
        return json.loads((path.parent / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _plain(key: str) -> str:
    key = key.replace("_orig_mod.", "")
    while key.startswith(_WRAPPERS):
        key = key.split(".", 1)[1]
    return key


def _without_wrappers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    plain = {_plain(key): tensor for key, tensor in tensors.items()}
    # Where a file holds two networks (a student and a teacher), keys must stay separate.
    return plain if len(plain) == len(tensors) else dict(tensors)


def _family(name: str) -> str:
    return name.rpartition(":")[2].partition(".")[0]
