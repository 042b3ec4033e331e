"""EuroSAT, TissueMNIST and Semi-Aves, on tiny files in the published form."""

from __future__ import annotations

import numpy as np
import pytest
from benchmark_files import write_eurosat, write_semi_aves, write_tissue_mnist
from ssl_toolkit_benchmarks import EuroSAT, SemiAves, TissueMNIST
from ssl_toolkit_benchmarks.eurosat import CLASSES
from tiny_images import rows_of

from ssl_toolkit.data.load import verify
from ssl_toolkit.data.readers.image_files import open_files
from ssl_toolkit.data.splits.draw import draw_split
from ssl_toolkit.errors import DataError


@pytest.mark.parametrize("form", ["eurosat/2750", "2750", "EuroSAT_RGB", "."])
def test_eurosat_has_the_split_of_usb(tmp_path, form):
    write_eurosat(tmp_path / form)
    (tmp_path / form / "Forest" / "._Forest_1.jpg").write_bytes(b"left by a tool")
    table = EuroSAT().load(tmp_path)
    assert table.classes == CLASSES
    forest = {key: part for key, (part, name) in rows_of(table).items() if name == "Forest"}
    # In the order of file names, in which 10 is next to 1.
    names = [f"Forest/Forest_{number}.jpg" for number in (1, 10, 2, 3, 4, 5, 6, 7, 8, 9)]
    assert forest == dict(zip(names, ["pool"] * 6 + ["validation"] * 2 + ["test"] * 2, strict=True))
    assert table.notes == ("eurosat is incomplete: 100 of 27,000 images",)
    split = draw_split(table, seed=0, labels_per_class=EuroSAT.defaults.labels_per_class)
    parts = (split.labeled, split.unlabeled, split.validation, split.test)
    assert [len(rows) for rows in parts] == [40, 20, 20, 20]
    assert open_files(table).read(np.array([0, 99]), 32).shape == (2, 32, 32, 3)


def test_bad_files_of_eurosat(tmp_path):
    with pytest.raises(DataError, match=r"eurosat is not in .*no folders AnnualCrop to SeaLake.*"
                       r"--root DIR, or fetch it with --download"):  # fmt: skip
        EuroSAT().load(tmp_path)
    (tmp_path / "EuroSAT.zip").write_bytes(b"")
    with pytest.raises(DataError, match=r"--root DIR, unpack EuroSAT\.zip there"):
        EuroSAT().load(tmp_path)
    write_eurosat(tmp_path / "2750", 4)
    (tmp_path / "2750" / "River" / "River_4.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"can't read image .*River_4\.jpg"):
        verify(open_files(EuroSAT().load(tmp_path)), 32)
    for path in (tmp_path / "2750" / "River").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"eurosat is incomplete: .*River has 0 \.jpg.*--root DIR"):
        EuroSAT().load(tmp_path)


def test_eurosat_is_only_downloaded_on_request(tmp_path, monkeypatch):
    asked = []

    def fetch(root, download):
        asked.append((root, download))
        raise RuntimeError("no network")

    monkeypatch.setattr("torchvision.datasets.EuroSAT", fetch)
    with pytest.raises(DataError, match="eurosat is not in"):
        EuroSAT().load(tmp_path)
    assert not asked
    with pytest.raises(DataError, match=r"eurosat .* can't be downloaded \(no network\)"):
        EuroSAT().load(tmp_path, download=True)
    assert asked == [(tmp_path, True)]
    write_eurosat(tmp_path / "2750")
    EuroSAT().load(tmp_path, download=True)
    assert len(asked) == 1


def test_tissuemnist(tmp_path):
    arrays = write_tissue_mnist(tmp_path)
    table = TissueMNIST().load(tmp_path)
    assert len(table.classes) == 8
    assert table.classes[4] == "Leukocytes"
    assert table.splits.tolist() == ["pool"] * 32 + ["validation"] * 8 + ["test"] * 9
    assert table.labels.tolist() == [*range(8)] * 6 + [0]
    read = table.read(np.array([3]), 28)[0]
    assert (read == arrays["train_images"][3][..., None]).all()
    assert table.read(np.array([48]), 32).shape == (1, 32, 32, 3)
    assert table.keys[-1] == "tissuemnist/test/8"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_images": np.zeros((32, 28, 28))}, r"train has no images, but float64 \(32, 28"),
        ({"val_images": np.zeros((8, 28), np.uint8)}, r"val has no images, but uint8 \(8, 28\)"),
        ({"test_images": np.zeros((4, 28, 28), np.uint8)}, r"4 images, but labels \(9,\)"),
        ({"train_labels": np.full((32, 1), 8)}, r"train has labels 8 to 8, not in 0 to 7"),
        ({"train_labels": np.full((32, 1), -1)}, r"train has labels -1 to -1"),
        ({"train_labels": np.full((32, 1), 0.5)}, r"32 images, but labels"),
    ],
)
def test_bad_arrays_of_tissuemnist(tmp_path, changed, words):
    write_tissue_mnist(tmp_path, **changed)
    with pytest.raises(DataError, match=rf"tissuemnist in .*corrupt.*{words}.*--root DIR"):
        TissueMNIST().load(tmp_path)


def test_bad_files_of_tissuemnist(tmp_path):
    with pytest.raises(DataError, match=r"tissuemnist is not in .*npz missing.*--root DIR, or"):
        TissueMNIST().load(tmp_path)
    path = tmp_path / "tissuemnist.npz"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=r"corrupt.*File is not a zip file"):
        TissueMNIST().load(tmp_path)
    write_tissue_mnist(tmp_path)
    content = bytearray(path.read_bytes())
    content[200:4000] = bytes(3800)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"tissuemnist in .*corrupt"):
        TissueMNIST().load(tmp_path)
    np.savez(path, train_images=np.zeros((1, 28, 28), np.uint8))
    with pytest.raises(DataError, match=r"corrupt.*train_labels"):
        TissueMNIST().load(tmp_path)


def test_tissuemnist_is_only_downloaded_on_request(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "torchvision.datasets.utils.download_url",
        lambda url, root, name, md5: (
            write_tissue_mnist(root) if name == "tissuemnist.npz" and md5 else None
        ),
    )
    with pytest.raises(DataError, match="tissuemnist is not in"):
        TissueMNIST().load(tmp_path)
    assert len(TissueMNIST().load(tmp_path, download=True).keys) == 49


def test_semi_aves(tmp_path):
    write_semi_aves(tmp_path)
    table = SemiAves().load(tmp_path)
    assert table.classes == tuple(str(number) for number in range(200))
    rows = rows_of(table)
    assert rows["trainval_images/7/1.jpg"] == ("labeled", "7")
    assert rows["trainval_images/7/2.jpg"] == ("validation", "7")
    assert rows["u_train_in/3.jpg"] == ("unlabeled", "")
    assert rows["test/199.jpg"] == ("test", "199")
    assert table.notes == (
        "semi_aves is incomplete: 400 of 3,959 labeled and 200 of 4,000 test images",
    )
    split = draw_split(table, seed=0)
    parts = (split.labeled, split.unlabeled, split.validation, split.test)
    assert [len(rows) for rows in parts] == [400, 30, 200, 200]
    assert verify(open_files(table), 224).read(np.array([0]), 224).shape == (1, 224, 224, 3)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"test": ["test/0.jpg 200"]}, r"test\.txt, line 1: class 200; expected a path and a cl"),
        ({"test": ["test/0.jpg -1"]}, r"test\.txt, line 1: class -1"),
        ({"u_train_in": ["u_train_in/0.jpg 3"]}, r"u_train_in\.txt, line 1: class 3"),
        ({"val": ["trainval_images/0/0.jpg 0"]}, r"val\.txt, line 1: .*is in a list already"),
        ({"val": ["trainval_images/0/2.jpg zero"]}, r"val\.txt, line 1: .*is invalid; expected"),
        ({"val": ["../elsewhere/2.jpg 0"]}, r"val\.txt, line 1: .*is invalid; expected"),
    ],
)
def test_bad_lists_of_semi_aves(tmp_path, changed, words):
    write_semi_aves(tmp_path / "birds", **changed)
    with pytest.raises(DataError, match=words):
        SemiAves().load(tmp_path / "birds")


def test_missing_files_of_semi_aves(tmp_path):
    with pytest.raises(DataError, match=r"semi_aves is not in .*\(l_train\.txt, .*test missing\); "
                       r"give the folder that holds trainval_images/, .*val\.txt, test\.txt with "
                       r"--root DIR; it can't be fetched"):  # fmt: skip
        SemiAves().load(tmp_path, download=True)
    write_semi_aves(tmp_path)
    (tmp_path / "test" / "5.jpg").unlink()
    with pytest.raises(DataError, match=r"test/5\.jpg: no such file"):
        verify(open_files(SemiAves().load(tmp_path)), 224)
