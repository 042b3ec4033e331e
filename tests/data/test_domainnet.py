import numpy as np
import pytest
from ssl_toolkit_benchmarks.domainnet import DomainNetReal
from tiny_images import put, rows_of

from ssl_toolkit.data.load import verify
from ssl_toolkit.data.splits.draw import draw_split
from ssl_toolkit.errors import DataError


@pytest.fixture
def root(tmp_path):
    """345 classes as in the archive: folders in the order of names, numbers from 0."""
    names = sorted(f"{word}_{number}" for number in range(69) for word in "abcde")
    lists = {"train": [], "test": []}
    for label, name in enumerate(names):
        count = 13 + label % 3  # long-tailed, a little
        for number in range(count + 1):
            file = f"real/{name}/real_{label + 1:03d}_{number:06d}.jpg"
            put(tmp_path / file, label % 256)
            lists["train" if number < count else "test"].append(f"{file} {label}")
    for part, lines in lists.items():
        (tmp_path / f"real_{part}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_lists_and_the_papers_numbers(root):
    table = DomainNetReal().load(root)
    assert len(table.classes) == 345
    assert table.classes[0] == "a_0"
    rows = rows_of(table)
    assert rows["real/a_0/real_001_000000.jpg"] == ("pool", "a_0")
    assert rows["real/a_0/real_001_000013.jpg"] == ("test", "a_0")
    assert np.bincount(table.labels[table.splits == "test"]).tolist() == [1] * 345
    defaults = DomainNetReal.defaults
    assert (defaults.image_size, defaults.batch_size) == (84, 16)
    assert [round(value, 4) for value in defaults.mean] == [0.6051, 0.5841, 0.5487]
    split = draw_split(
        table,
        seed=0,
        labels_per_class=defaults.labels_per_class,
        val_fraction=defaults.val_fraction,
    )
    assert len(split.labeled) == 3795
    assert not any("incomplete" in note for note in table.notes)
    assert table.read(np.array([0]), 84).shape == (1, 84, 84, 3)


def small(root, train, test="real/zebra/9.jpg 0\n"):
    for name in ("zebra", "ant"):
        for number in (1, 2, 9):
            put(root / "real" / name / f"{number}.jpg", number)
    put(root / "out.jpg")
    (root / "real_train.txt").write_text(train)
    (root / "real_test.txt").write_text(test)
    return root


def test_classes_are_ordered_by_number_and_a_subset_is_reported(tmp_path):
    table = DomainNetReal().load(small(tmp_path, "real/zebra/1.jpg 0\nreal/ant/1.jpg 1\n"))
    assert table.classes == ("zebra", "ant")
    assert any("2 of 345 classes" in note for note in table.notes)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("real/zebra/1.jpg 0\nreal/ant/1.jpg 0\n", "line 2.*number 0 of class 'zebra'"),
        ("real/zebra/1.jpg 0\nreal/ant/1.jpg 2\n", r"not numbered from 0.*missing: 1"),
        ("real/zebra/1.jpg 0\nreal/zebra/2.jpg 1\n", "not numbered from 0"),
        ("real/zebra/1.jpg 0\n../real/ant/1.jpg 1\n", "line 2.*is invalid"),
        ("real/zebra/1.jpg 0\n/etc/real/passwd.jpg 1\n", "line 2.*is invalid"),
        ("real/zebra/1.jpg zero\n", "line 1.*is invalid"),
        ("real/zebra/1.jpg 0\nreal/zebra/1.jpg 0\n", "line 2.*is in a list already"),
        ("real/zebra/9.jpg 0\nreal/ant/1.jpg 1\n", r"real_test\.txt, line 1.*already"),
        ("real/zebra/1.jpg 0\nreal/ant/7.jpg 1\n", r"real/ant/7\.jpg: no such file"),
    ],
)
def test_invalid_lists(tmp_path, train, words):
    with pytest.raises(DataError, match=words):
        verify(DomainNetReal().load(small(tmp_path, train)), 84)


def test_missing_files_are_reported(tmp_path):
    with pytest.raises(DataError) as caught:
        DomainNetReal().load(tmp_path, download=True)
    for word in ("real_train.txt, real_test.txt, real missing", "--root DIR", "can't be fetched"):
        assert word in caught.value.messages[0]
    small(tmp_path, "real/x/1.jpg 0\nreal/y/1.jpg 1\n", "real/x/2.jpg 0\n")
    with pytest.raises(DataError, match=r"none of the 3 images .* unpack real\.zip"):
        DomainNetReal().load(tmp_path)
