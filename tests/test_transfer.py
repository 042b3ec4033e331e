"""``run --backbone resnet50 --pretrained``, as people type it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from in_process import Command

from ssl_toolkit.config import yaml

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face cache with weights of the right shape for timm's resnet50."""
    hub = tmp_path_factory.mktemp("hub")
    repository = hub / "models--timm--resnet50.a1_in1k"
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    torch.manual_seed(0)
    model = timm.create_model("resnet50")
    safetensors.torch.save_file(model.state_dict(), snapshot / "model.safetensors")
    return hub


TYPED = ("run", "--algo", "simple", "--backbone", "resnet50", "--pretrained")
SHORT = ("--steps", 1, "--batch-size", 2, "--set", "simple.strong_views=1", "--output", "run")


def test_cached_weights_on_the_embedded_data(command: Command, cache: Path, tmp_path: Path) -> None:
    done = command(*TYPED, *SHORT, env={"HF_HUB_CACHE": str(cache)})
    assert done.returncode == 0, done.stderr
    assert "for your own pictures: --data" in done.stdout
    config = yaml.read(tmp_path / "run" / "config.yaml")
    assert config["image_size"] == "32"
    assert float(config["optimizer"]["feature_lr"]) == 2e-5
    assert config["augment"]["strong"] == "randaugment"
    exported = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert exported["mean"] == pytest.approx([0.485, 0.456, 0.406])
    # The exported folder is timm's own form.
    model = timm.create_model(f"local-dir:{tmp_path / 'run' / 'model'}", pretrained=True)
    assert model.num_classes == 10


def test_transfer_to_own_pictures(
    command: Command, cache: Path, cases: Path, tmp_path: Path
) -> None:
    own = (*TYPED, "--data", cases / "c00_base", "--image-size", 32)
    done = command(*own, *SHORT, env={"HF_HUB_CACHE": str(cache)})
    assert done.returncode == 0, done.stderr
    config = yaml.read(tmp_path / "run" / "config.yaml")
    assert config["augment"]["strong"] == "fixed"
    assert float(config["optimizer"]["feature_lr"]) == 2e-5
    assert float(config["lr"]) == 0.002


def test_own_image_size_of_the_backbone(command: Command, cases: Path) -> None:
    done = command(*TYPED, "--data", cases / "c00_base", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "image_size: 224\n" in done.stdout


def test_offline_without_weights_ends_at_once_with_the_way_out(
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


def test_weights_from_a_file(command: Command, cache: Path, tmp_path: Path) -> None:
    (file,) = cache.rglob("model.safetensors")
    done = command(*TYPED, *SHORT, "--weights", file)
    assert done.returncode == 0, done.stderr
    assert "head" in done.stdout  # another head is dropped, and that is said
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert any("tensors of the backbone loaded" in note for note in record["notes"])
