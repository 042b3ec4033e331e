"""`Algorithm.predict` in evaluation, the saved model, and everything that opens it."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import projected
import pytest
import torch
from in_process import refusal
from PIL import Image
from projected import Projected
from torch import Tensor

import ssl_toolkit
from ssl_toolkit import ForwardOutput, ModelError, PluginError, load_model, registry
from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.inference.export import export
from ssl_toolkit.models.export import ALGORITHM
from ssl_toolkit.runs.predictions import read_arrays

KEYS = {
    "algo": "projected",
    "projected": {"adjustment": 0.5},
    "backbone": "plain",
    "steps": 20,
    "eval_every": 5,
    "batch_size": 16,
    "device": "cpu",
    "lr": 0.05,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "run"
    ssl_toolkit.train(KEYS | {"output": str(folder)})
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def by_hand(run: Path) -> tuple[Tensor, Tensor]:
    """Probabilities and labels of the test images, from the tensors in the folder."""
    experiment = prepare(validate([Layer("test", KEYS)]))
    model = load_model(run, "cpu")
    rows, labels = experiment.test
    pixels = experiment.trainer.batches.images.inputs.gather(rows)
    with torch.no_grad():
        features = model.classifier(pixels).features
    state = load_state(run)
    logits = features @ state["second.weight"].T + state["second.bias"]
    return (logits - 0.5 * state["mean"].log()).softmax(dim=-1), labels


def load_state(run: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(run / "model" / ALGORITHM)


def test_the_run_reports_what_predict_returns(run: Path) -> None:
    probs, labels = by_hand(run)
    arrays = read_arrays(run / "predictions.npz")
    assert np.abs(arrays["test_probabilities"] - probs.numpy()).max() < 1e-6
    summary = json.loads((run / "summary.json").read_text())
    accuracy = (probs.argmax(dim=-1) == labels).double().mean().item()
    assert summary["test"]["accuracy"] == pytest.approx(accuracy)
    assert accuracy > 0.2
    with torch.no_grad():  # the head of the model predicts something else
        experiment = prepare(validate([Layer("test", KEYS)]))
        rows, _ = experiment.test
        pixels = experiment.trainer.batches.images.inputs.gather(rows)
        head = load_model(run, "cpu").classifier(pixels).logits.softmax(dim=-1)
    assert (head - probs).abs().max() > 0.01


def test_the_state_is_that_of_the_best_evaluation(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    best = torch.load(run / "checkpoints" / "best.pt", weights_only=True)
    assert best["step"] == summary["best_step"]
    for name, value in load_state(run).items():
        assert torch.equal(value, best["algorithm_state"][name]), name


def test_evaluating_again_gives_the_same_scores(run: Path) -> None:
    found = ssl_toolkit.evaluate(run)
    summary = json.loads((run / "summary.json").read_text())
    assert found.test is not None
    assert found.test.accuracy == summary["test"]["accuracy"]
    assert found.test.nll == pytest.approx(summary["test"]["nll"])
    assert ssl_toolkit.check_run(run).faults == []


def test_the_model_its_folder_and_its_commands_agree(
    run: Path, images: Path, tmp_path: Path
) -> None:
    model = load_model(run, "cpu")
    expected = model.predict(sorted(images.iterdir()))
    assert not np.allclose(expected, model.classifier(_pixels(images)).logits.softmax(-1).detach())
    copied = shutil.copytree(run / "model", tmp_path / "model")
    assert np.array_equal(load_model(copied, "cpu").predict(sorted(images.iterdir())), expected)
    rows = list(ssl_toolkit.predict(copied, images))
    assert [row.label for row in rows] == [model.classes[i] for i in expected.argmax(axis=1)]
    confidences = ssl_toolkit.pseudo_label(copied, images, threshold=0.0).confidences
    assert confidences == pytest.approx(expected.max(axis=1), abs=1e-5)


def _pixels(images: Path) -> Tensor:
    arrays = [np.asarray(Image.open(path)) for path in sorted(images.iterdir())]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2) / 255


@pytest.mark.parametrize("validation", [True, False])
def test_a_checkpoint_predicts_like_the_run_that_wrote_it(
    validation: bool, run: Path, images: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "model")
    expected = load_model(run, "cpu").predict(sorted(images.iterdir()))
    if not validation:
        (folder / "checkpoints" / "best.pt").unlink()
        trainer = prepare(validate([Layer("test", KEYS)])).trainer
        path = folder / "checkpoints" / "last.pt"
        trainer.load_state_dict(torch.load(path, weights_only=True))
        with torch.no_grad():
            expected = trainer.predictor.eval()(_pixels(images)).logits.softmax(dim=-1).numpy()
    found = load_model(folder, "cpu").predict(sorted(images.iterdir()))
    assert np.abs(found - expected).max() < 1e-6


def test_a_checkpoint_has_the_averages_of_an_addon(images: Path, tmp_path: Path) -> None:
    """Without validation images, `evaluate` reads the last checkpoint."""
    keys = KEYS | {"algo": "supervised+abc", "val_fraction": 0.0, "steps": 2}
    del keys["projected"]
    ssl_toolkit.train(keys | {"output": str(tmp_path / "run")})
    found = ssl_toolkit.evaluate(tmp_path / "run").test
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found is not None
    assert found.nll == pytest.approx(summary["test"]["nll"])
    expected = load_model(tmp_path / "run", "cpu")
    shutil.rmtree(tmp_path / "run" / "model")
    opened = load_model(tmp_path / "run", "cpu")
    paths = sorted(images.iterdir())
    np.testing.assert_allclose(opened.predict(paths), expected.predict(paths), atol=1e-6)
    content = pickle.dumps(opened)  # as scikit-learn stores estimators
    assert np.array_equal(pickle.loads(content).predict(paths), opened.predict(paths))
    assert len(content) < (tmp_path / "run" / "checkpoints" / "last.pt").stat().st_size / 2


PROGRAM = """
import sys, numpy, torch
images = numpy.load(sys.argv[2])
if sys.argv[1].endswith("onnx"):
    import onnxruntime
    session = onnxruntime.InferenceSession(sys.argv[1])
    found = session.run(None, {"images": images})[0]
else:
    found = torch.export.load(sys.argv[1]).module()(torch.from_numpy(images)).detach().numpy()
assert "ssl_toolkit" not in sys.modules and "projected" not in sys.modules
numpy.save(sys.argv[3], found)
"""


@pytest.mark.parametrize("form", ["torch-export", "onnx"])
def test_an_exported_program_needs_no_plugin(
    form: str, run: Path, images: Path, tmp_path: Path
) -> None:
    if form == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    suffix = {"torch-export": "pt2", "onnx": "onnx"}[form]
    exported = export(run, form, tmp_path / f"model.{suffix}").path  # type: ignore[arg-type]
    pixels = _pixels(images).numpy()
    np.save(tmp_path / "images.npy", pixels)
    arguments = [exported, tmp_path / "images.npy", tmp_path / "found.npy"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    expected = load_model(run, "cpu").predict(sorted(images.iterdir()))
    assert np.abs(np.load(tmp_path / "found.npy") - expected).max() < 1e-5


def test_an_exported_run_with_an_add_on_predicts_with_its_head(
    images: Path, tmp_path: Path
) -> None:
    keys = {"algo": "fixmatch+abc", "backbone": "plain", "steps": 2, "device": "cpu"}
    ssl_toolkit.train(keys | {"output": str(tmp_path / "run")})
    model = load_model(tmp_path / "run", "cpu")
    expected = model.predict(sorted(images.iterdir()))
    exported = export(tmp_path / "run", "torch-export", tmp_path / "model.pt2").path
    pixels = _pixels(images)
    with torch.no_grad():
        found = torch.export.load(exported).module()(pixels).numpy()
        head = model.classifier(pixels).logits.softmax(dim=-1).numpy()
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(found - head).max() > 1e-3


def test_timm_is_refused_with_the_way_out(run: Path, tmp_path: Path) -> None:
    message = refusal("export", run, "--format", "timm", "--output", tmp_path / "timm")
    assert len(message.splitlines()) == 1
    assert "algorithm 'projected' predicts by more than backbone and head" in message
    assert "use --format torch-export or onnx" in message
    assert "architecture" not in json.loads((run / "model" / "config.json").read_text())


def test_a_program_that_predict_does_not_permit(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predict(self: Projected, output: ForwardOutput) -> Tensor:
        return output.logits if output.logits.sum().item() > 0 else -output.logits

    monkeypatch.setattr(Projected, "predict", predict)
    with pytest.raises(ModelError) as caught:
        export(run, "torch-export", tmp_path / "model.pt2")
    assert "predict of algorithm 'projected' can't be written as torch-export" in str(caught.value)


def test_a_missing_plugin_is_reported_in_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(registry._registered, ("algorithms", "projected"))
    with pytest.raises(PluginError) as caught:
        load_model(run)
    message = str(caught.value)
    assert "\n" not in message
    assert "config.json: the model predicts by algorithm 'projected', which is not found" in message
    assert "register its class before loading" in message


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", "algorithm.safetensors: not found or corrupt"),
        ("corrupt", "algorithm.safetensors: not found or corrupt"),
        ("other", "the state of the algorithm does not fit: missing ['mean'"),
        ("options", "the algorithm that predicts can't be restored: ValidationError"),
        ("task", "the algorithm that predicts can't be restored: KeyError"),
    ],
)
def test_a_damaged_folder(damage: str, message: str, run: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = shutil.copytree(run / "model", tmp_path / "model")
    path, config = folder / ALGORITHM, json.loads((folder / "config.json").read_text())
    if damage == "missing":
        path.unlink()
    elif damage == "corrupt":
        path.write_bytes(b"no tensors")
    elif damage == "other":
        save_file({"other": torch.zeros(1)}, path)
    elif damage == "options":
        config["predict"]["options"]["adjustment"] = -1
    else:
        del config["predict"]["task"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "predict of algorithm 'projected' returned NoneType instead of logits (2, 10)"),
        (torch.zeros(2, 3), "returned the shape (2, 3) instead of logits (2, 10)"),
    ],
)
def test_a_wrong_result_is_refused_before_training(
    result: Tensor | None, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Projected, "predict", lambda self, output: result)
    with pytest.raises(PluginError) as caught:
        ssl_toolkit.train(KEYS | {"output": str(tmp_path / "run")})
    assert message in str(caught.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


@ssl_toolkit.register_algorithm("two_networks")
class TwoNetworks(ssl_toolkit.Algorithm):
    """It adds the features of an averaged second network to those of the projector's head."""

    averaged_modules = ("second",)

    def __init__(self, config: ssl_toolkit.Options, task: ssl_toolkit.TaskInfo) -> None:
        super().__init__(config, task)
        self.second = task.new_model()

    def views(self) -> ssl_toolkit.Views:
        return ssl_toolkit.Views()

    def predict(self, output: ForwardOutput) -> Tensor:
        head: torch.nn.Linear = self.second.head
        return output.logits + head(output.features)

    def step(self, batch: ssl_toolkit.Batch, ctx: ssl_toolkit.Context) -> ssl_toolkit.StepOutput:
        images = batch.labeled_weak[0]
        average = ctx.averaged("second")(images)
        assert isinstance(average, ForwardOutput)
        assert not average.logits.requires_grad
        logits = ctx.model(images) + self.second(images).logits
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        return ssl_toolkit.StepOutput({"supervised": ssl_toolkit.Loss(loss)})


def test_a_model_with_a_second_network_is_restored(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    keys = {"algo": "two_networks", "backbone": "plain", "steps": 3, "device": "cpu"}
    ssl_toolkit.train(keys | {"output": str(folder)})
    first = load_model(folder, "cpu").predict(sorted(images.iterdir()))
    shutil.rmtree(folder / "model")
    again = load_model(folder, "cpu").predict(sorted(images.iterdir()))
    assert np.abs(first - again).max() < 1e-6


def test_other_algorithms_store_nothing_more(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    keys = {"algo": "supervised", "backbone": "plain", "steps": 1, "device": "cpu"}
    ssl_toolkit.train(keys | {"output": str(folder)})
    assert not (folder / "model" / ALGORITHM).exists()
    assert "predict" not in json.loads((folder / "model" / "config.json").read_text())


assert projected
