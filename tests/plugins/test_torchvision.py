import inspect
import struct

import numpy as np
import pytest
from ssl_toolkit_torchvision.dataset import TorchvisionSet
from ssl_toolkit_torchvision.tables import SETS
from tiny_images import put

from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.data.load import load_table, named_dataset
from ssl_toolkit.data.readers.image_files import open_files
from ssl_toolkit.errors import DataError, PluginError


def load_set(name, root):
    """The table, with its files open."""
    return open_files(named_dataset(f"torchvision:{name}").load(root))


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
    table = load_set("FashionMNIST", tmp_path)
    assert table.classes[9] == "Ankle boot"
    assert table.splits.tolist() == ["pool"] * 20 + ["test"] * 10
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
    table = load_set("DTD", tmp_path)
    assert table.classes == tuple(kinds)
    assert table.splits.tolist() == ["pool"] * 2 + ["validation"] * 2 + ["test"] * 2
    assert table.read(np.array([1]), 4)[0, 0, 0].tolist() == [50] * 3
    assert table.keys[4] == "dtd/test/dtd/dtd/images/banded/banded_test.jpg"
    assert table.digest(0) == table.digest(2)  # of the bytes of the files


def dtd(tmp_path):
    for part in ("train", "val", "test"):
        names = [f"{kind}/{kind}_{part}.jpg" for kind in ("banded", "dotted")]
        for place, name in enumerate(names):
            put(tmp_path / "dtd" / "dtd" / "images" / name, 50 * place + len(part))
        list_ = tmp_path / "dtd" / "dtd" / "labels" / f"{part}1.txt"
        list_.parent.mkdir(exist_ok=True)
        list_.write_text("\n".join(names))
    return tmp_path


def settings(root, **more):
    keys = {"dataset": "torchvision:DTD", "root": str(root), "image_size": 4} | more
    return validate([Layer("test", keys)]).settings


def test_files_are_verified_and_cached_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    root = dtd(tmp_path / "sets")
    messages = []
    table = load_table(
        settings(root, workers=2), lambda done, total: messages.append((done, total))
    )
    assert messages[-1] == (6, 6)
    messages.clear()
    again = load_table(settings(root), lambda done, total: messages.append((done, total)))
    assert messages == []  # from the cache
    assert (again.read(np.arange(6), 4) == table.read(np.arange(6), 4)).all()
    for kind in ("banded", "dotted"):
        (root / "dtd" / "dtd" / "images" / kind / f"{kind}_val.jpg").write_bytes(b"oops")
    with pytest.raises(DataError) as caught:
        load_table(settings(root))
    assert len(caught.value.messages) == 3
    assert "banded_val.jpg: not an image" in caught.value.messages[0]
    table = load_table(settings(root, on_bad_image="skip"))
    assert table.splits.tolist() == ["pool"] * 2 + ["test"] * 2
    assert table.labels.tolist() == [0, 1, 0, 1]
    assert [key.rpartition("/")[2] for key in table.keys] == [
        "banded_train.jpg", "dotted_train.jpg", "banded_test.jpg", "dotted_test.jpg"
    ]  # fmt: skip
    assert table.read(np.array([3]), 4)[0, 0, 0, 0] == 54
    assert any("unreadable images skipped: 2 of 6" in note for note in table.notes)


@pytest.fixture
def unchecked(monkeypatch):
    """Small files instead of those that torchvision knows the checksums of."""
    for module in ("fer2013", "lfw", "omniglot"):
        monkeypatch.setattr(
            f"torchvision.datasets.{module}.check_integrity", lambda path, md5=None: True
        )


@pytest.mark.parametrize(
    ("name", "head"),
    [("fer2013.csv", "emotion,pixels,Usage"), ("icml_face_data.csv", "emotion, Usage, pixels")],
)
def test_fer2013(tmp_path, unchecked, name, head):
    usages = ["Training"] * 7 + ["PublicTest", "PrivateTest"]
    lines = [head]
    for number, usage in enumerate(usages):
        pixels = " ".join([str(number)] * 48 * 48)
        row = {"emotion": str(number % 7), "pixels": pixels, "Usage": usage}
        lines.append(",".join(row[column.strip()] for column in head.split(",")))
    (tmp_path / "fer2013").mkdir()
    (tmp_path / "fer2013" / name).write_text("\n".join(lines))
    table = load_set("FER2013", tmp_path)
    assert table.classes[3] == "happy"
    assert table.splits.tolist() == ["pool"] * 7 + ["test"] * 2
    assert table.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert table.read(np.array([8]), 48)[0, 0, 0].tolist() == [8] * 3


def test_fer2013_without_test_labels_is_reported(tmp_path, unchecked):
    (tmp_path / "fer2013").mkdir()
    pixels = " ".join(["0"] * 48 * 48)
    (tmp_path / "fer2013" / "train.csv").write_text(f"emotion,pixels\n0,{pixels}\n")
    (tmp_path / "fer2013" / "test.csv").write_text(f"pixels\n{pixels}\n")
    with pytest.raises(DataError, match=r"test images carry no labels \(fer2013\.csv"):
        TorchvisionSet("FER2013").load(tmp_path)


def test_lfw_people(tmp_path, unchecked):
    top = tmp_path / "lfw-py"
    people = {"Ann": 2, "Bob": 1, "Cem": 1}
    for place, (name, count) in enumerate(people.items()):
        for number in range(1, count + 1):
            put(top / "lfw_funneled" / name / f"{name}_{number:04d}.jpg", 10 * place + number)
    (top / "lfw-names.txt").write_text("".join(f"{n}\t{c}\n" for n, c in people.items()))
    (top / "people.txt").write_text("2\n2\nAnn\t2\nCem\t1\n1\nBob\t1\n")
    table = load_set("LFWPeople", tmp_path)
    assert table.classes == ("Ann", "Bob", "Cem")
    assert [key.rpartition("/")[2] for key in table.keys] == [
        "Ann_0001.jpg", "Ann_0002.jpg", "Bob_0001.jpg", "Cem_0001.jpg"
    ]  # fmt: skip
    assert table.labels.tolist() == [0, 0, 1, 2]
    assert table.read(np.arange(4), 4)[:, 0, 0, 0].tolist() == [1, 2, 11, 21]


def test_inaturalist(tmp_path):
    kinds = [f"{n:05d}_Animalia_Chordata_Aves_Order_Family_Genus_kind{n}" for n in range(2)]
    for version, count in (("2021_train", 2), ("2021_valid", 1)):
        for place, kind in enumerate(kinds):
            for number in range(count):
                put(tmp_path / version / kind / f"{number}.jpg", 10 * place + number)
    table = load_set("INaturalist", tmp_path)
    assert table.classes == tuple(kinds)
    assert table.splits.tolist() == ["pool"] * 4 + ["test"] * 2
    assert table.labels.tolist() == [0, 0, 1, 1, 0, 1]
    assert table.keys[1] == f"inaturalist/pool/2021_train/{kinds[0]}/1.jpg"
    assert table.read(np.arange(6), 4)[:, 0, 0, 0].tolist() == [0, 1, 10, 11, 0, 10]


def test_omniglot(tmp_path, unchecked):
    top = tmp_path / "omniglot-py" / "images_background"
    for place, kind in enumerate(("Greek/character01", "Greek/character02", "Latin/character01")):
        for number in range(2):
            put(top / kind / f"{place}_{number}.png", 10 * place + number)
    table = load_set("Omniglot", tmp_path)
    assert table.classes == ("Greek/character01", "Greek/character02", "Latin/character01")
    assert table.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert table.read(np.array([5]), 4)[0, 0, 0].tolist() == [21] * 3


def test_caltech101(tmp_path):
    top = tmp_path / "caltech101" / "101_ObjectCategories"
    (tmp_path / "caltech101" / "Annotations").mkdir(parents=True)
    for place, kind in enumerate(("BACKGROUND_Google", "ant", "bass")):
        for number in (1, 2):
            put(top / kind / f"image_{number:04d}.jpg", 10 * place + number)
    table = load_set("Caltech101", tmp_path)
    assert table.classes == ("ant", "bass")
    assert table.labels.tolist() == [0, 0, 1, 1]
    assert table.read(np.arange(4), 4)[:, 0, 0, 0].tolist() == [11, 12, 21, 22]


@pytest.mark.parametrize("name", ["CelebA", "CocoDetection", "Kinetics", "VOCDetection"])
def test_data_sets_not_for_classification_are_reported(name):
    with pytest.raises(
        PluginError, match=f"torchvision:{name} is not for classification"
    ) as message:
        TorchvisionSet(name)
    assert len(message.value.messages) == 1


def test_a_set_without_a_test_split_is_a_pool(tmp_path):
    for name in ("AnnualCrop/1.jpg", "Forest/2.jpg", "Forest/3.jpg"):
        put(tmp_path / "eurosat" / "2750" / name)
    table = load_set("EuroSAT", tmp_path)
    assert table.classes == ("AnnualCrop", "Forest")
    assert table.labels.tolist() == [0, 1, 1]
    assert set(table.splits) == {"pool"}


def test_missing_files_are_reported_and_nothing_is_downloaded(tmp_path):
    with pytest.raises(DataError) as caught:
        TorchvisionSet("MNIST").load(tmp_path / "none")
    (message,) = caught.value.messages
    for word in ("torchvision:MNIST", str(tmp_path / "none"), "--download", "--root DIR"):
        assert word in message


@pytest.mark.parametrize(
    ("name", "near"), [("Flower102", "Flowers102"), ("cifar10", "CIFAR10"), ("dtd", "DTD")]
)
def test_unknown_classes_suggest_close_matches(name, near):
    with pytest.raises(PluginError, match=r".") as caught:
        named_dataset(f"torchvision:{name}")
    message = caught.value.messages[0]
    start = f"unknown dataset torchvision:{name} (did you mean {near!r}"
    assert message.startswith(start)
    assert "?); known: CIFAR10, " in message
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


@pytest.mark.parametrize("name", ["torchvision", "torchvision:"])
def test_a_missing_name_is_reported(name):
    with pytest.raises(PluginError, match="write torchvision:NAME; known: CIFAR10, ") as caught:
        named_dataset(name)
    assert len(caught.value.messages) == 1


@pytest.mark.slow
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
