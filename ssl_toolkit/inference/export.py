"""Export the model of a finished run for other libraries."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ssl_toolkit.errors import ModelError
from ssl_toolkit.files import at_home, check_writable, naming, write_bytes
from ssl_toolkit.models.export import ALGORITHM, load_exported
from ssl_toolkit.models.factory import find_backbone
from ssl_toolkit.models.programs import onnx_file, require_onnx, torch_export_file
from ssl_toolkit.runs.folder import RunFolder, require_completed
from ssl_toolkit.text import display_path

Format = Literal["timm", "torch-export", "onnx"]

_NAMES: dict[Format, str] = {"timm": "timm", "torch-export": "model.pt2", "onnx": "model.onnx"}
_WEIGHTS, _CONFIG, _CARD = "model.safetensors", "config.json", "README.md"


class ExportedModel(NamedTuple):
    """A model written by `export`."""

    path: Path
    opened_by: str
    """A line of Python that loads it."""


def export(
    run: str | os.PathLike[str],
    format: Format,
    output: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
) -> ExportedModel:
    """Write the model of a finished run in a format of other libraries.

    ``timm`` copies the run's ``model/``, which maps normalized images to logits; its configuration
    has the normalization. ``torch-export`` and ``onnx`` write a file that maps images (N, C, H, W)
    in [0, 1] to probabilities, for any N (see `torch_export_file`, `onnx_file`).

    Args:
        run: Folder of the run; its data isn't needed.
        format: ``timm``, ``torch-export`` or ``onnx``.
        output: Path; None for ``timm/``, ``model.pt2`` or ``model.onnx`` in ``RUN/export/``.
        overwrite: Replace an earlier export.

    Returns:
        The path, and the line of Python that loads the model.

    Raises:
        ModelError: The run isn't finished, its model is damaged or doesn't fit the format, a
            package is missing, or the output can't be written. Nothing was written.
        PluginError: The backbone's package is not installed.
        OSError: The output can't be written, as on a full disk; an earlier export remains.
    """
    folder, form = RunFolder(at_home(run)), format
    require_completed(folder, folder.read_summary().status)
    target = folder.path / "export" / _NAMES[form] if output is None else at_home(output)
    _check_target(target, form, overwrite)
    if form == "onnx":
        require_onnx()
    classifier, config = load_exported(folder.model)
    if form == "timm":
        predict = config.get("predict")
        if predict and "predict" in predict["methods"]:
            raise ModelError(
                f"--format timm: algorithm {predict['algorithm']!r} predicts by more than backbone "
                "and head, which timm can't store; use --format torch-export or onnx"
            )
        _copy_model(folder.model, target)
    else:
        make = torch_export_file if form == "torch-export" else onnx_file
        write_bytes(target, make(classifier.requires_grad_(False), config))
    return ExportedModel(target, _how_to_open(target, form, config))


def _check_target(target: Path, form: Format, overwrite: bool) -> None:
    suffix = Path(_NAMES[form]).suffix
    name = f"--output {display_path(target)}"
    if suffix and target.suffix != suffix:
        raise ModelError(f"{name}: the name of a {form} file ends in {suffix}")
    check_writable(target.absolute().parent, name)
    if not (target.exists() or target.is_symlink()):
        return
    if not overwrite:
        raise ModelError(f"{name}: exists; choose another name, or replace it with --overwrite")
    if form == "timm":
        complete = all((target / name).is_file() for name in (_CONFIG, _WEIGHTS))
        if target.is_symlink() or not complete:
            raise ModelError(f"{name}: not the folder of a model, so it is not overwritten")
    elif target.is_dir():
        raise ModelError(f"{name}: a folder; give the name of a file")


def _copy_model(source: Path, target: Path) -> None:
    """Copy a model's folder atomically."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    previous = target.with_name(f".{target.name}.{os.getpid()}.before")
    try:
        with naming(target, partial, previous):
            for name in (_CONFIG, _WEIGHTS, ALGORITHM, _CARD):
                if (source / name).is_file():
                    write_bytes(partial / name, (source / name).read_bytes())
            if target.exists():
                target.rename(previous)  # a non-empty folder can't be replaced in one step
            partial.rename(target)
    except BaseException:
        if previous.exists() and not target.exists():
            previous.rename(target)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(previous, ignore_errors=True)


def _how_to_open(target: Path, form: Format, config: dict[str, Any]) -> str:
    where = display_path(target)
    if form == "torch-export":
        return f"torch.export.load({where!r}).module()(images)"
    if form == "onnx":
        return f'onnxruntime.InferenceSession({where!r}).run(None, {{"images": images}})'
    if "architecture" not in config:
        return f"ssl_toolkit.load_model({where!r}); timm has no such backbone or head"
    call = f'timm.create_model("local-dir:{where}", pretrained=True)'
    module = find_backbone(config["backbone"])[0].timm_module
    return f"{call} after `import {module}`" if module else call
