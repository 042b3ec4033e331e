"""Export a trained classifier to a folder that timm or this toolkit opens."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import safetensors.torch
import torch
from torch import Tensor, nn

from ssl_toolkit.config.images import Fit, PixelFormat, Size, parse_size, sides, stored_size
from ssl_toolkit.errors import ModelError
from ssl_toolkit.files import write_atomically, write_json
from ssl_toolkit.interfaces import ChannelStatistics, Task
from ssl_toolkit.models.classifier import Classifier, in_eval_mode
from ssl_toolkit.models.factory import describe, rebuild
from ssl_toolkit.models.feature_input import input_text
from ssl_toolkit.models.heads import FeatureHead
from ssl_toolkit.models.predictor import Predictor, restore_predictor
from ssl_toolkit.models.timm_backbone import TimmBackbone

ALGORITHM = "algorithm.safetensors"
"""Name of the file with the tensors that `Algorithm.predict` and `stranger_scores` use."""


def export_model(
    model: Classifier | Predictor,
    folder: Path,
    *,
    backbone_name: str,
    classes: Sequence[str],
    image_size: Size,
    bits: int = 8,
    fit: Fit = "crop",
    thresholds: Sequence[float] | None = None,
    known_scores: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write ``model.safetensors``, ``config.json`` and, if need be, ``algorithm.safetensors``.

    With a timm backbone the folder has timm's format: ``timm.create_model("local-dir:FOLDER",
    pretrained=True)`` gives the same logits for images normalized by the ``mean`` and ``std`` of
    its configuration; likewise for a backbone with a `Backbone.timm_module`, after its import. The
    weights of other backbones have the keys
    ``backbone.…`` and ``head.…``. `load_exported` opens all of them. ``input`` and ``output`` of
    the configuration describe the network's input and output. Each file is replaced atomically.
    timm can't open a model whose algorithm overrides `Algorithm.predict`, nor one with a
    `FeatureHead` or with features of stages.

    Args:
        model: The classifier, not wrapped by a compiler or for several processes.
        folder: Path to the folder, created if it is missing.
        backbone_name: Name for `find_backbone`.
        classes: C names in the order of the logits.
        image_size: Size in pixels of the training images.
        bits: Bits of a channel of the training images.
        fit: How images got the image size.
        thresholds: C probabilities from which on an image has a class, for ``--task multilabel``.
        known_scores: Quantiles of stranger scores of images of the classes; None for none.

    Returns:
        The content of ``config.json``; it has a key ``architecture`` if timm can open the folder.

    Raises:
        OSError: The folder can't be written.
    """
    predict: dict[str, Any] | None = None
    if isinstance(model, Predictor):
        predict, algorithm_state = model.description(), model.algorithm_state()
    classifier = model.classifier if isinstance(model, Predictor) else model
    mean, std = (t.flatten().tolist() for t in (classifier.mean, classifier.std))
    channels = classifier.channels
    config: dict[str, Any] = {
        **describe(classifier, backbone_name),
        "classes": list(classes),
        "image_size": stored_size(image_size),
        "bits": bits,
        "fit": fit,
        "mean": mean,
        "std": std,
        "num_classes": classifier.num_classes,
        "num_features": classifier.backbone.feature_dim,
        "input": input_text(
            backbone_name,
            f"{shape_text(channels, image_size)} float, {order_text(channels)}(image - mean) / std "
            f"of images in [0, 1]; {preparation(image_size, fit, bits)}",
        ),
        "output": "logits in the order of `classes`; their "
        f"{'softmax' if thresholds is None else 'sigmoid'} is the probabilities",
    }
    if thresholds is not None:
        config["thresholds"] = list(thresholds)
    if known_scores is not None:
        config["known_scores"] = dict(known_scores)
    state = {
        key: tensor
        for key, tensor in classifier.state_dict().items()
        if key.startswith(("backbone.", "head."))
    }
    backbone = classifier.backbone
    timm_config: dict[str, Any] | None = None
    if predict is not None:
        config["predict"] = predict
        _write_tensors(folder / ALGORITHM, algorithm_state)
    by_head = predict is None or "predict" not in predict["methods"]
    if isinstance(classifier.head, FeatureHead) or len(classifier.blocks) > 1:
        by_head = False  # timm's models have neither
    if by_head and backbone.timm_module:
        timm_config = {
            "architecture": backbone_name.rpartition(":")[2],
            "pretrained_cfg": {"classifier": "head"},
        }
        if channels != 3:
            timm_config["model_args"] = {"in_chans": channels}
    elif (
        by_head
        and isinstance(backbone, TimmBackbone)
        and (copied := _timm_model(classifier, image_size))
    ):
        state = copied.state_dict()
        published: dict[str, Any] = getattr(backbone.model, "pretrained_cfg", {})
        keys = ["classifier", "pool_size", "fixed_input_size"]
        if channels == 3:  # timm would convert the weights of the first layer from RGB
            keys.append("first_conv")
        timm_config = {
            "architecture": backbone.architecture,
            "model_args": backbone.build_arguments,
            "pretrained_cfg": {key: published[key] for key in keys if key in published},
        }
    if timm_config is not None:
        timm_config["pretrained_cfg"] |= {
            "input_size": [channels, *sides(image_size)],
            "mean": mean,
            "std": std,
            "num_classes": classifier.num_classes,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "crop_mode": "border" if fit == "pad" else "center",
        }
        config |= timm_config | {"label_names": list(classes)}
    _write_tensors(folder / "model.safetensors", state)
    write_json(folder / "config.json", config)
    return config


def load_exported(folder: Path) -> tuple[Classifier | Predictor, dict[str, Any]]:
    """Open what `export_model` wrote.

    Returns:
        The classifier on the CPU in eval mode, with the algorithm that predicts if there is one,
        and the configuration with its keys ``backbone``, ``classes``, ``image_size``, ``fit``,
        ``mean`` and ``std``.

    Raises:
        ModelError: The folder contains no exported model, or its weights don't fit.
        PluginError: The package of the backbone or the algorithm is not installed.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        mean, std = _statistics(config)
        _ = config["backbone"], config["classes"], config["image_size"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{folder} contains no exported model: {error!r} in config.json"
        ) from error
    check_description(folder / "config.json", config)
    config = {"channels": 3, "bits": 8, **config}  # of earlier versions
    classifier, notes = rebuild(config, mean, std, folder / "model.safetensors")
    if any("skipped its head" in note for note in notes):
        raise ModelError(f"{folder}: the head in model.safetensors does not match config.json")
    classifier.set_statistics(mean, std)
    if not config.get("predict"):
        return classifier.eval(), config
    try:
        state = safetensors.torch.load_file(folder / ALGORITHM)
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelError(f"{folder / ALGORITHM}: not found or corrupt: {error}") from error
    return restore_predictor(classifier, config, state, str(folder / "config.json")), config


def check_description(path: Path, content: Mapping[str, Any]) -> None:
    """Check the description of a network that is stored with its weights.

    Args:
        path: Path for the message.
        content: The keys ``backbone``, ``classes``, ``image_size`` and ``fit``.

    Raises:
        ModelError: A value is missing, or has a wrong type or range.
    """
    classes, channels = content.get("classes"), content.get("channels", 3)
    checks = {
        "backbone": ("a name", isinstance(content.get("backbone"), str)),
        "classes": (
            "a list of at least two names",
            isinstance(classes, list | tuple)
            and len(classes) > 1
            and all(isinstance(name, str) for name in classes),
        ),
        "image_size": ("a side in pixels, or HEIGHTxWIDTH", _is_size(content.get("image_size"))),
        "channels": ("a whole number of at least 1", type(channels) is int and channels > 0),
        "bits": ("8 or 16", content.get("bits", 8) in (8, 16)),
        "fit": (f"one of {', '.join(get_args(Fit))}", content.get("fit") in get_args(Fit)),
        "stages": ("an integer from 0 to 8", content.get("stages", 0) in range(9)),
        "arguments": ("a map", isinstance(content.get("arguments", {}), dict)),
        "lora": ("a map", isinstance(content.get("lora", {}), dict)),
        "task": (
            f"one of {', '.join(get_args(Task))}",
            content.get("task", "multiclass") in get_args(Task),
        ),
        "thresholds": (
            "a number from 0 to 1 for each class",
            _are_thresholds(content.get("thresholds"), classes),
        ),
    }
    for key, (expected, is_valid) in checks.items():
        if not is_valid:
            value = str(content.get(key))[:80]
            raise ModelError(f"{path}: invalid {key} {value!r}: expected {expected}")


def _is_size(value: object) -> bool:
    with contextlib.suppress(ValueError):
        return value is not None and parse_size(value) is not None
    return False


def _are_thresholds(values: object, classes: object) -> bool:
    """Return True if there are none, or as many as classes."""
    if values is None:
        return True
    if not (isinstance(values, list | tuple) and isinstance(classes, list | tuple)):
        return False
    numbers = all(isinstance(value, int | float) and 0 <= value <= 1 for value in values)
    return numbers and len(values) == len(classes)


def _statistics(config: Mapping[str, Any]) -> tuple[ChannelStatistics, ChannelStatistics]:
    """Return mean and standard deviation; raise a ValueError or TypeError if they are invalid."""
    mean, std = (tuple(map(float, config[key])) for key in ("mean", "std"))
    if not min(std) > 0:
        raise ValueError("std must be above 0")
    if not len(mean) == len(std) == config.get("channels", 3):
        raise ValueError(f"mean and std must have {config.get('channels', 3)} numbers each")
    return mean, std


def preparation(image_size: Size, fit: Fit, bits: int = 8) -> str:
    """Describe how image files are converted to the input of the network."""
    white = PixelFormat(bits=bits).white
    if isinstance(image_size, int):
        side, then = "shorter", "the middle square cut out"
        if fit == "pad":
            side, then = "longer", "centered on a white square"
        scaled = f"their {side} side scaled to {image_size} pixels (bicubic, antialiased), {then}"
    else:
        height, width = image_size
        size = f"{height} pixels high and {width} wide"
        scaled = f"their middle part of that shape cut out and scaled to be {size}"
        if fit == "pad":
            scaled = f"scaled to fit into an image {size}, and centered on white"
        scaled += " (bicubic, antialiased)"
    return f"images are turned as EXIF says, {scaled}, and divided by {white}"


def shape_text(channels: int, image_size: Size) -> str:
    """Return the shape of a batch of images, such as ``(N, 3, 32, 32)``."""
    return f"(N, {channels}, {', '.join(map(str, sides(image_size)))})"


def order_text(channels: int) -> str:
    """Return the order of the channels and a comma; empty if it is that of the data."""
    return {1: "gray, ", 2: "gray and alpha, ", 3: "RGB, "}.get(channels, "")


def _timm_model(classifier: Classifier, image_size: Size) -> nn.Module | None:
    """Return the same model built by timm, with the head; None if its logits differ."""
    import timm

    backbone = classifier.backbone
    assert isinstance(backbone, TimmBackbone)
    if not isinstance(classifier.head, nn.Linear):
        return None
    try:
        # A new model draws random weights, which the trained ones then replace.
        with torch.random.fork_rng(devices=[]):
            model: Any = timm.create_model(
                backbone.architecture,
                num_classes=classifier.num_classes,
                **backbone.build_arguments,
            )
        model.load_state_dict(backbone.model.state_dict(), strict=False)
        heads = model.get_classifier()
        for head in heads if isinstance(heads, tuple) else (heads,):
            head.load_state_dict(classifier.head.state_dict())
        device, dtype = classifier.mean.device, classifier.mean.dtype
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(
            2, classifier.channels, *sides(image_size), generator=generator, dtype=dtype
        )
        with torch.no_grad(), in_eval_mode(classifier):
            ours = classifier(images.to(device)).logits.cpu()
            model = model.to(dtype).eval()
            theirs = model((images - classifier.mean.cpu()) / classifier.std.cpu())
            same = torch.allclose(theirs, ours, rtol=1e-3, atol=1e-3)
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return None
    return model if same else None


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    content = safetensors.torch.save(
        {key: _contiguous_copy(tensor) for key, tensor in tensors.items()},
        metadata={"format": "pt"},
    )
    write_atomically(path, lambda file: file.write(content))


def _contiguous_copy(tensor: Tensor) -> Tensor:
    # Safetensors accepts neither shared memory nor another memory format.
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
