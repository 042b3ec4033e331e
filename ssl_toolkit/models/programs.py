"""Export a trained classifier to one file that runs without this toolkit: torch.export, ONNX."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ssl_toolkit.config.images import parse_size, sides
from ssl_toolkit.errors import ModelError
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.export import order_text, preparation, shape_text
from ssl_toolkit.models.feature_input import feature_length, input_text
from ssl_toolkit.models.predictor import Predictor

METADATA = "metadata.json"
"""Name of the extra file of a torch.export program."""

_CHECKED = (1, 3)
"""Batch sizes for which a program's output is compared with the classifier's."""


class Probabilities(nn.Module):
    """Images in [0, 1] to probabilities: normalization, backbone, head, softmax or sigmoid.

    Args:
        classifier: shared, not copied.
    """

    def __init__(self, classifier: Classifier | Predictor) -> None:
        super().__init__()
        if isinstance(classifier, Predictor) and "predict" not in classifier.methods:
            classifier = classifier.classifier
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) float in [0, 1], not normalized, to (N, C) float32 probabilities."""
        return self.classifier.probabilities(self.classifier(images).logits)


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a program's file, from the configuration of an exported model.

    Args:
        config: Configuration, as `load_exported` returns it.

    Returns:
        ``classes`` in the order of the probabilities, ``image_size``, ``fit``, ``backbone``,
        ``mean`` and ``std`` of the normalization, and descriptions ``input``, ``inside`` and
        ``output``.
    """
    size, channels, bits = (config[key] for key in ("image_size", "channels", "bits"))
    several = config.get("task") == "multilabel"
    last, rows = ("sigmoid", "of each class") if several else ("softmax", "rows sum to 1")
    return {
        "classes": config["classes"],
        "image_size": size,
        "channels": channels,
        "bits": bits,
        "fit": config["fit"],
        "backbone": config["backbone"],
        "mean": config["mean"],
        "std": config["std"],
        "input": "images: "
        + input_text(
            config["backbone"],
            f"{shape_text(channels, parse_size(size))} float32, any N >= 1, "
            f"{order_text(channels).replace(',', ' in [0, 1],') or 'in [0, 1], '}not "
            f"normalized; {preparation(parse_size(size), config['fit'], bits)}",
        ),
        "inside": f"(images - mean) / std, the network, {last}",
        "output": f"probabilities: (N, C) float32, {rows}, classes in the order of `classes`",
        **({"task": config["task"], "thresholds": config["thresholds"]} if several else {}),
    }


def torch_export_file(classifier: Classifier | Predictor, config: dict[str, Any]) -> bytes:
    """Return the content of a ``.pt2`` file for ``torch.export.load``.

    The program takes (N, C, H, W) float32 images in [0, 1] for any N >= 1 and gives a probability
    for each class: normalization and softmax are inside, scaling to H x W pixels is not. The extra
    file ``metadata.json`` holds what `metadata` returns.

    Args:
        classifier: Classifier on the CPU in eval mode.
        config: Configuration, as `load_exported` returns it.

    Raises:
        ModelError: The backbone can't be exported, or the program's output differs.
    """
    program = _program(classifier, config, "torch-export")
    buffer = io.BytesIO()
    text = json.dumps(metadata(config), ensure_ascii=False, allow_nan=False)
    with _quiet():
        torch.export.save(program, buffer, extra_files={METADATA: text})
    return buffer.getvalue()


def onnx_file(classifier: Classifier | Predictor, config: dict[str, Any]) -> bytes:
    """Return the content of an ``.onnx`` file, weights included.

    Input ``images`` and output ``probabilities`` are those of `torch_export_file`. The metadata
    properties hold what `metadata` returns: texts as they are, the other values as JSON.

    Args:
        classifier: Classifier on the CPU in eval mode.
        config: Configuration, as `load_exported` returns it.

    Raises:
        ModelError: the packages are missing (see `require_onnx`), the backbone can't be exported,
            or the file would be larger than the 2 GB that ONNX allows.
    """
    require_onnx()
    program = _program(classifier, config, "onnx")
    try:
        with _quiet():
            made: Any = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["images"],
                output_names=["probabilities"],
                verbose=False,
            )
            for key, value in metadata(config).items():
                made.model.metadata_props[key] = (
                    value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                )
            content: bytes = made.model_proto.SerializeToString()
    except Exception as error:
        raise _unfit(config, "onnx", error) from error
    return content


def require_onnx() -> None:
    """Check that the packages that write ONNX are installed.

    Raises:
        ModelError: A package is missing; the message names the extra to install.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            f"--format onnx needs {' and '.join(missing)}, which {_is(missing)} not installed: "
            'pip install "ssl-toolkit[onnx]"'
        )


def _program(
    classifier: Classifier | Predictor, config: dict[str, Any], form: str
) -> ExportedProgram:
    """Return the classifier as a graph for any batch size, checked against the classifier."""
    module = Probabilities(classifier).eval()
    length = feature_length(config["backbone"])
    shape: tuple[int, ...] = (config["channels"], *sides(parse_size(config["image_size"])))
    shape = shape if length is None else (length,)
    images = torch.rand(max(_CHECKED), *shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad(), _quiet():
            batch = {0: Dim("batch", min=1)}
            program = torch.export.export(module, (images,), dynamic_shapes={"images": batch})
            run = program.module()
            for count in _CHECKED:
                torch.testing.assert_close(
                    run(images[:count]), module(images[:count]), rtol=0, atol=1e-5
                )
    except Exception as error:
        raise _unfit(config, form, error) from error
    return program


def _unfit(config: dict[str, Any], form: str, error: Exception) -> ModelError:
    """Return the error for an exporter's exception, which can be of almost any type."""
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    backbone = f"backbone {config['backbone']!r}"
    predict = config.get("predict")
    if predict and "predict" in predict["methods"]:
        name = predict["algorithm"]
        return ModelError(
            f"{backbone} and predict of algorithm {name!r} can't be written as {form} ({reason})"
        )
    return ModelError(
        f"{backbone} can't be written as {form} ({reason}); --format timm copies its weights"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporters' warnings about their internals, also those that they log."""
    logger = logging.getLogger("onnxscript")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
