"""A run's model in the forms that others open, each opened in a process of its own."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_runs import fake_run
from in_process import call, refusal
from numpy.typing import NDArray
from torch import Tensor, nn

from ssl_toolkit import Backbone, load_model, registry
from ssl_toolkit.errors import ModelError
from ssl_toolkit.inference.export import export
from ssl_toolkit.models import programs
from ssl_toolkit.models.export import load_exported
from ssl_toolkit.models.factory import build_classifier

CLASSES = [str(digit) for digit in range(10)]
FORMS = ["timm", "torch-export", "onnx"]

# Each takes the export and a file of images in [0, 1], and leaves probabilities and the names of
# the classes. The toolkit itself is imported nowhere but for the wide ResNets in timm.
TIMM = """
import json, sys, numpy, timm, torch
if {wide}:
    import ssl_toolkit_wide_resnet.timm_registration
model = timm.create_model("local-dir:" + sys.argv[1], pretrained=True).eval()
data = timm.data.resolve_model_data_config(model)
mean, std = (torch.tensor(data[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
classes = model.pretrained_cfg["label_names"]
run = lambda x: model((torch.from_numpy(x) - mean) / std).softmax(-1).detach().numpy()
"""
TORCH_EXPORT = """
import json, sys, numpy, torch
extra = {{"metadata.json": ""}}
program = torch.export.load(sys.argv[1], extra_files=extra).module()
classes = json.loads(extra["metadata.json"])["classes"]
run = lambda x: program(torch.from_numpy(x)).numpy()
"""
ONNX = """
import json, sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
run = lambda x: session.run(["probabilities"], {{"images": x}})[0]
assert "torch" not in sys.modules
"""
SAVE = """
assert {wide} or "ssl_toolkit" not in sys.modules
images = numpy.load(sys.argv[2])
numpy.savez(sys.argv[3], one=run(images[:1]), five=run(images), classes=classes)
"""
OPEN = {"timm": TIMM, "torch-export": TORCH_EXPORT, "onnx": ONNX}


@pytest.fixture(scope="module", params=["wrn_10_1", "test_resnet"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; only its ``export/`` is written to."""
    folder = tmp_path_factory.mktemp("export") / "run"
    done = call(
        "run", "--algo", "supervised", "--backbone", request.param, "--steps", 2,
        "--batch-size", 8, "--device", "cpu", "--output", folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what `export` needs of a run on ``wrn_10_1``."""
    folder = tmp_path_factory.mktemp("wide") / "run"
    done = call("run", "--algo", "supervised", "--steps", 1, "--batch-size", 8, "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder


def opened_elsewhere(
    form: str, exported: Path, images: NDArray[np.float32], place: Path, *, wide: bool
) -> dict[str, NDArray[Any]]:
    np.save(place / "images.npy", images)
    given = [exported, place / "images.npy", place / "found.npz"]
    program = (OPEN[form] + SAVE).format(wide=wide)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *map(str, given)],
        capture_output=True, text=True, check=False, cwd=place,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with np.load(place / "found.npz") as result:
        return dict(result)


@pytest.mark.parametrize("form", FORMS)
def test_a_new_process_predicts_the_same_probabilities(
    run: Path, form: str, tmp_path: Path
) -> None:
    if form == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
    target = tmp_path / {"timm": "folder", "torch-export": "m.pt2", "onnx": "m.onnx"}[form]
    done = call("export", run, "--format", form, "--output", target)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{target}\nopen it with ")

    model = load_model(run, device="cpu")
    size = model.image_size
    images = np.random.default_rng(0).random((5, 3, size, size), dtype=np.float32)
    expected = model(torch.from_numpy(images)).numpy()
    assert np.ptp(expected, axis=0).max() > 1e-3, "the images differ in what they give"
    result = opened_elsewhere(form, target, images, tmp_path, wide=model.backbone == "wrn_10_1")
    np.testing.assert_allclose(result["five"], expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(result["one"], expected[:1], rtol=0, atol=1e-4)
    assert result["classes"].tolist() == CLASSES


def test_the_path_of_an_export(wide: Path) -> None:
    assert export(wide, "timm")[0] == wide / "export" / "timm"
    path, opened_by = export(wide, "torch-export")
    assert path == wide / "export" / "model.pt2"
    assert opened_by == f"torch.export.load({str(path)!r}).module()(images)"
    copy = wide / "export" / "timm"
    for name in ("config.json", "model.safetensors", "README.md"):
        assert (copy / name).read_bytes() == (wide / "model" / name).read_bytes()
    assert sorted(os.listdir(copy)) == ["README.md", "config.json", "model.safetensors"]
    assert sorted(os.listdir(wide / "export")) == ["model.pt2", "timm"]


def test_a_fitted_head_is_not_written_for_timm(tmp_path: Path) -> None:
    done = call("run", "--algo", "linear_probe", "--backbone", "wrn_10_1", "--output",
                tmp_path / "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "create_model" not in (tmp_path / "run" / "model" / "README.md").read_text("utf-8")
    assert "architecture" not in load_exported(tmp_path / "run" / "model")[1]
    assert "timm has no such" in export(tmp_path / "run", "timm").opened_by


def test_the_exported_metadata_describes_the_model(wide: Path, tmp_path: Path) -> None:
    path, _ = export(wide, "torch-export", tmp_path / "model.pt2")
    extra = {"metadata.json": ""}
    torch.export.load(path, extra_files=extra)
    stated = json.loads(extra["metadata.json"])
    config = json.loads((wide / "model" / "config.json").read_text("utf-8"))
    assert stated["classes"] == config["classes"] == CLASSES
    assert (stated["image_size"], stated["backbone"]) == (8, "wrn_10_1")
    assert (stated["mean"], stated["std"]) == (config["mean"], config["std"])
    assert "(N, 3, 8, 8)" in stated["input"]
    assert "[0, 1], not normalized" in stated["input"]
    assert stated["inside"] == "(images - mean) / std, the network, softmax"
    assert "rows sum to 1" in stated["output"]
    assert "(image - mean) / std" in config["input"]
    assert config["output"].startswith("logits")
    for text in (stated["input"], config["input"]):
        assert "shorter side scaled to 8 pixels" in text


@pytest.mark.parametrize("form", ["timm", "torch-export"])
def test_an_existing_output(wide: Path, form: str, tmp_path: Path) -> None:
    target = tmp_path / ("folder" if form == "timm" else "model.pt2")
    given = ("export", wide, "--format", form, "--output", target)
    assert call(*given).returncode == 0
    inside = target / "config.json" if form == "timm" else target
    inside.write_text("mine")
    assert "--overwrite" in refusal(*given)
    assert inside.read_text() == "mine"
    assert call(*given, "--overwrite").returncode == 0
    assert inside.read_bytes() != b"mine"
    assert os.listdir(tmp_path) == [target.name]


def test_other_files_are_not_overwritten_by_an_export(wide: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    (tmp_path / "folder.pt2").mkdir()
    (tmp_path / "link").symlink_to(wide / "model")
    (tmp_path / "file").write_text("mine")
    for name, form, words in (
        ("thesis", "timm", "not the folder of a model"),
        ("link", "timm", "not the folder of a model"),
        ("file", "timm", "not the folder of a model"),
        ("folder.pt2", "torch-export", "a folder"),
        ("file", "torch-export", "ends in .pt2"),
        ("model.pt2", "onnx", "ends in .onnx"),
        ("file/model.pt2", "torch-export", "can't be written"),
    ):
        given = ("--format", form, "--output", tmp_path / name, "--overwrite")
        assert words in refusal("export", wide, *given)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.pt2", "link", "thesis"]


def test_a_failed_export_leaves_no_files_and_keeps_the_old_one(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    old = tmp_path / "old"
    export(wide, "timm", old)
    before = (old / "model.safetensors").read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    for form, name in (("timm", "new"), ("torch-export", "new.pt2"), ("timm", "old")):
        done = call("export", wide, "--format", form, "--output", tmp_path / name, "--overwrite")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"error: {tmp_path / name}: No space left on device\n"
    assert os.listdir(tmp_path) == ["old"]
    assert (old / "model.safetensors").read_bytes() == before


def test_a_folder_that_cannot_be_moved_into_place(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    old = tmp_path / "old"
    export(wide, "timm", old)
    (old / "config.json").write_text("mine")
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="Input/output"):
        export(wide, "timm", old, overwrite=True)
    assert os.listdir(tmp_path) == ["old"]
    assert (old / "config.json").read_text() == "mine"


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_an_unfinished_run(status: str, tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", summary={"status": status})
    before = sorted(os.listdir(run))
    message = refusal("export", run, "--format", "timm")
    assert f"the run is {status}" in message
    assert f"ssl-toolkit resume {run}" in message
    assert sorted(os.listdir(run)) == before


def test_wrong_runs_and_forms(tmp_path: Path) -> None:
    assert "not the folder of a run" in refusal("export", tmp_path, "--format", "timm")
    assert "'keras' is not one of" in refusal("export", tmp_path, "--format", "keras")
    assert "--format" in refusal("export", tmp_path)
    run = fake_run(tmp_path / "run")
    before = sorted(os.listdir(run))
    assert "contains no exported model" in refusal("export", run, "--format", "timm")
    assert sorted(os.listdir(run)) == before


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_onnx_without_its_packages(
    wide: Path, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    target = tmp_path / "model.onnx"
    message = refusal("export", wide, "--format", "onnx", "--output", target)
    assert 'pip install "ssl-toolkit[onnx]"' in message
    assert package in message
    assert os.listdir(tmp_path) == []


class Own(Backbone):
    feature_dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.conv(images).mean(dim=(2, 3))
        return features


class ByHand(Backbone):
    feature_dim = 3

    def forward(self, images: Tensor) -> Tensor:
        means = images.mean(dim=(2, 3))
        return means if means.sum().item() > 0 else -means  # no graph holds this branch


def test_what_exporters_log_about_their_internals_is_not_printed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("onnxscript.optimizer")
    with programs._quiet():
        logger.warning("Skipping constant folding")
        logger.error("a failure")
    assert [record.message for record in caplog.records] == ["a failure"]


def test_a_backbone_that_is_unknown_to_timm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    registry.register_backbone("own")(Own)
    run = tmp_path / "run"
    settings = ("--algo", "supervised", "--backbone", "own", "--steps", 1, "--batch-size", 8)
    assert call("run", *settings, "--output", run).returncode == 0
    path, opened_by = export(run, "timm")
    assert opened_by == f"ssl_toolkit.load_model({str(path)!r}); timm has no such backbone or head"
    assert "create_model" not in (run / "model" / "README.md").read_text("utf-8")
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(load_model(path)(images), load_model(run)(images))


def test_a_backbone_that_cannot_be_exported_as_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    registry.register_backbone("by_hand")(ByHand)
    classifier, _ = build_classifier(
        "by_hand", 2, image_size=8, dataset_mean=(0, 0, 0), dataset_std=(1, 1, 1), seed=0
    )
    config = {"backbone": "by_hand", "image_size": 8, "channels": 3, "bits": 8}
    with pytest.raises(ModelError, match=r"'by_hand' can't be written as torch-export .*timm"):
        programs.torch_export_file(classifier.eval(), config)


def test_an_export_that_predicts_differently_is_not_written(
    wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, config = load_exported(wide / "model")

    class Wrong(programs.Probabilities):
        def forward(self, images: Tensor) -> Tensor:
            traced = torch.compiler.is_exporting()
            return super().forward(images) * (0.9 if traced else 1.0)

    monkeypatch.setattr(programs, "Probabilities", Wrong)
    with pytest.raises(ModelError, match="can't be written as torch-export"):
        programs.torch_export_file(classifier, config)
