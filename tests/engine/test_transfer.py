"""``run --backbone resnet50 --pretrained``, as people type it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from in_process import Command, call
from pretrained_runs import flags, make_images

from ssl_toolkit.config import yaml
from ssl_toolkit.models import published
from ssl_toolkit.runs import auto

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face cache with weights of the right shape."""
    hub = tmp_path_factory.mktemp("hub")
    for name in ("resnet50", "test_resnet"):
        repository = hub / f"models--timm--{name}.{timm.get_pretrained_cfg(name).tag}"
        snapshot = repository / "snapshots" / REVISION
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(REVISION)
        torch.manual_seed(0)
        model = timm.create_model(name)
        safetensors.torch.save_file(model.state_dict(), snapshot / "model.safetensors")
    return hub


TYPED = ("run", "--algo", "simple", "--backbone", "resnet50", "--pretrained")
SMALL = ("run", "--algo", "simple", "--backbone", "test_resnet", "--pretrained")
SHORT = ("--steps", 1, "--batch-size", 2, "--set", "simple.strong_views=1", "--output", "run")


@pytest.mark.slow
def test_cached_weights_on_the_embedded_data(
    command: Command, cache: Path, cases: Path, tmp_path: Path
) -> None:
    # The features of all 1,797 digits and of their views are computed.
    done = command(*SMALL, *SHORT, env={"HF_HUB_CACHE": str(cache)})
    assert done.returncode == 0, done.stderr
    assert "for your own images: --data" in done.stdout
    config = yaml.read(tmp_path / "run" / "config.yaml")
    assert config["image_size"] == "32"
    assert float(config["optimizer"]["backbone_lr"]) == 2e-5
    assert config["augment"]["strong"] == "randaugment"
    exported = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert exported["mean"] == pytest.approx(timm.get_pretrained_cfg("test_resnet").mean)
    assert exported["stages"] == 2
    record = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert record["probe"]["test"]["count"] == record["counts"]["test"]
    assert call("predict", tmp_path / "run", cases / "c00_base" / "test").returncode == 0


def test_a_trained_backbone_with_a_plain_head_has_the_format_of_timm(
    command: Command, cache: Path, cases: Path, tmp_path: Path
) -> None:
    own = (*SMALL, "--data", cases / "c00_base", "--image-size", 32, "--set", "model.freeze=none")
    done = command(*own, *SHORT, env={"HF_HUB_CACHE": str(cache)})
    assert done.returncode == 0, done.stderr
    exported = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert exported["mean"] == pytest.approx(timm.get_pretrained_cfg("test_resnet").mean)
    model = timm.create_model(f"local-dir:{tmp_path / 'run' / 'model'}", pretrained=True)
    assert model.num_classes == len(exported["classes"])


def test_transfer_to_own_images(command: Command, cache: Path, cases: Path, tmp_path: Path) -> None:
    own = (*TYPED, "--data", cases / "c00_base", "--image-size", 32)
    done = command(*own, *SHORT, env={"HF_HUB_CACHE": str(cache)})
    assert done.returncode == 0, done.stderr
    config = yaml.read(tmp_path / "run" / "config.yaml")
    assert config["augment"]["strong"] == "fixed"
    assert float(config["optimizer"]["backbone_lr"]) == 2e-5
    assert float(config["lr"]) == 0.002


def test_image_size_of_small_images(command: Command, cases: Path) -> None:
    done = command(*TYPED, "--data", cases / "c00_base", "--dry-run")
    assert done.returncode == 0, done.stderr
    # Images of a few pixels need no 224.
    assert "image_size: 128\n" in done.stdout


def test_offline_without_weights_fails_immediately_with_the_way_out(
    command: Command, tmp_path: Path
) -> None:
    started = time.monotonic()
    done = command("list", "--verbose")  # the imports alone, for comparison
    imports = time.monotonic() - started
    started = time.monotonic()
    empty = {"HF_HUB_CACHE": str(tmp_path / "none"), "TORCH_HOME": str(tmp_path / "none")}
    done = command(*TYPED, env=empty)
    assert time.monotonic() - started < 4 * imports + 10
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "resnet50" in line
    assert "--weights" in line
    assert not (tmp_path / "runs").exists()


def test_weights_from_a_file(command: Command, cache: Path, cases: Path, tmp_path: Path) -> None:
    (file,) = cache.glob("*test_resnet*/**/model.safetensors")
    own = (*SMALL, "--data", cases / "c00_base", "--image-size", 32)
    done = command(*own, *SHORT, "--weights", file)
    assert done.returncode == 0, done.stderr
    assert "head" in done.stdout  # another head is dropped, and that is said
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert any("tensors of the backbone loaded" in note for note in record["notes"])


PATHS: dict[str, tuple[str, ...]] = {
    "simple": (),
    "supervised": ("--set", "model.freeze=none"),
    "fixmatch": ("--set", "model.head_init=zero", "--set", "model.freeze={part}"),
    "mixmatch": (),
    "linear_probe": (),
    "graph_probe": (),
    "auto": (),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "part"),
    [
        ("resnet50", "layer3"),
        ("vit_tiny_patch16_224", "blocks.10"),
    ],
)
def test_every_path_of_large_backbones(
    backbone: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published weights of the right shape: no accuracy, but all that happens to a run."""
    torch.manual_seed(0)
    state = timm.create_model(backbone).state_dict()
    monkeypatch.setattr(published, "published_weights", lambda *_: (tmp_path / "weights", state))
    monkeypatch.setattr(auto, "BUDGET", 0.0)
    make_images(tmp_path / "images", 6)
    for algo, more in PATHS.items():
        given = flags(tmp_path, backbone, algo=algo, labels_per_class=2, batch_size=2)
        place = given.index("--weights")
        del given[place : place + 2]
        views = ("--set", "model.feature_views=2")
        more = (*views, *(word.format(part=part) for word in more))
        done = call("run", *given, *more, "--output", tmp_path / algo, "--quiet")
        assert done.returncode == 0, (algo, done.stderr)
        summary = json.loads((tmp_path / algo / "summary.json").read_text())
        assert summary["probe"] is not None
        assert summary["fitted"] == (algo in FITTED)
        assert summary["test"] is not None


FITTED = {"linear_probe", "graph_probe", "auto"}
