import inspect
import struct

import numpy as np
import pytest
from picture_files import put

from ssl_toolkit.data.torchvision_sets import PREFIX, SETS, TorchvisionSet
from ssl_toolkit.errors import DataError, PluginError


def idx(path, array):
    """MNIST's file format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def mnist(root, name="FashionMNIST"):
    rng = np.random.default_rng(0)
    pixels = {part: rng.integers(0, 256, (count, 28, 28)) for part, count in
              (("train", 20), ("t10k", 10))}  # fmt: skip
    for part, images in pixels.items():
        raw = root / name / "raw"
        idx(raw / f"{part}-images-idx3-ubyte", images)
        idx(raw / f"{part}-labels-idx1-ubyte", np.arange(len(images)) % 10)
    return pixels


def test_a_set_of_arrays(tmp_path):
    pixels = mnist(tmp_path)
    table = TorchvisionSet("torchvision:FashionMNIST").load(tmp_path)
    assert table.classes[9] == "Ankle boot"
    assert table.parts.tolist() == ["pool"] * 20 + ["test"] * 10
    assert table.labels.tolist() == [*range(10)] * 3
    assert table.keys[::20] == ("fashionmnist/pool/00", "fashionmnist/test/00")
    read = table.read(np.array([3, 21]), 28)
    assert (read[0] == pixels["train"][3][..., None]).all()
    assert (read[1] == pixels["t10k"][1][..., None]).all()
    assert table.digest(3) != table.digest(4)
    assert table.digest(3) == table.digest(3)


def test_a_set_of_files_with_three_parts(tmp_path):
    kinds = ["banded", "dotted"]
    for part in ("train", "val", "test"):
        names = [f"{kind}/{kind}_{part}.jpg" for kind in kinds]
        for place, name in enumerate(names):
            put(tmp_path / "dtd" / "dtd" / "images" / name, 50 * place)
        list_ = tmp_path / "dtd" / "dtd" / "labels" / f"{part}1.txt"
        list_.parent.mkdir(exist_ok=True)
        list_.write_text("\n".join(names))
    table = TorchvisionSet("DTD").load(tmp_path)
    assert table.classes == tuple(kinds)
    assert table.parts.tolist() == ["pool"] * 2 + ["validation"] * 2 + ["test"] * 2
    assert table.read(np.array([1]), 4)[0, 0, 0].tolist() == [50] * 3
    (tmp_path / "dtd" / "dtd" / "images" / kinds[0] / "banded_test.jpg").write_bytes(b"oops")
    with pytest.raises(DataError, match="can't read picture dtd/test/0"):
        table.read(np.array([4]), 4)


def test_a_set_without_a_test_split_is_a_pool(tmp_path):
    for name in ("AnnualCrop/1.jpg", "Forest/2.jpg", "Forest/3.jpg"):
        put(tmp_path / "eurosat" / "2750" / name)
    table = TorchvisionSet("EuroSAT").load(tmp_path)
    assert table.classes == ("AnnualCrop", "Forest")
    assert table.labels.tolist() == [0, 1, 1]
    assert set(table.parts) == {"pool"}


def test_missing_files_are_told_and_nothing_is_fetched(tmp_path):
    with pytest.raises(DataError) as caught:
        TorchvisionSet("MNIST").load(tmp_path / "none")
    (message,) = caught.value.messages
    for word in ("torchvision:MNIST", str(tmp_path / "none"), "--download", "--root DIR"):
        assert word in message


@pytest.mark.parametrize(
    ("name", "near"), [("Flower102", "Flowers102"), ("cifar10", "CIFAR10"), ("dtd", "DTD")]
)
def test_unknown_classes_tell_near_ones(name, near):
    with pytest.raises(
        PluginError, match=f"unknown dataset torchvision:{name}, did you mean.*{near}"
    ):
        TorchvisionSet(PREFIX + name)
    with pytest.raises(PluginError, match="known: CIFAR10, "):
        TorchvisionSet("VOCDetection")


@pytest.mark.parametrize("name", SETS)
def test_the_table_fits_torchvision(name):
    import torchvision.datasets

    parameters = inspect.signature(getattr(torchvision.datasets, name).__init__).parameters
    for arguments in SETS[name].values():
        # EMNIST and QMNIST pass what they don't name on to MNIST.
        known = parameters.keys() | ({"train"} if "kwargs" in parameters else set())
        assert arguments.keys() <= known
    assert "pool" in SETS[name]


def test_the_command_knows_the_names(tmp_path, command):
    mnist(tmp_path)
    done = command(
        "run", "--dataset", "torchvision:FashionMNIST", "--root", tmp_path, "--steps", 1,
        "--labels-per-class", 1, "--batch-size", 2, "--backbone", "wrn_10_1", "--image-size", 8,
        "--algo", "fixmatch", "--output", "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = command("run", "--dataset", "torchvision:Flower102")
    assert done.returncode == 2
    assert "did you mean 'Flowers102'?" in done.stderr
