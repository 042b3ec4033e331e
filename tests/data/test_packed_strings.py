import numpy as np
import pytest

from ssl_toolkit.data import packed_strings as module
from ssl_toolkit.data.packed_strings import PackedStrings, index_of, may_have_duplicates

ODD = ["a/1.png", "", "ä/猫.png", "a\udc80b", "x" * 300, "\ud83d\ude00", "z"]


@pytest.mark.parametrize("block", [1, 3, 4096])
@pytest.mark.parametrize("given", [[], ["a"], ["a", "bc", ""], ODD])
def test_texts_are_a_sequence_of_what_was_put_in(given, block, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", block)
    texts = PackedStrings(given)
    assert len(texts) == len(given)
    assert list(texts) == given
    assert [texts[place] for place in range(len(given))] == given
    assert texts == given
    assert texts == tuple(given)
    assert texts[1:5:2] == tuple(given[1:5:2])
    assert texts.is_ascii() == all(text.isascii() for text in given)
    if given:
        assert texts[-1] == texts[np.int64(len(given) - 1)] == given[-1]
        assert texts.index(given[-1]) == given.index(given[-1])
        assert texts != given[:-1]
        assert texts != [*given[:-1], "other"]
    for place in (len(given), -len(given) - 1):
        with pytest.raises(IndexError):
            texts[place]


def test_texts_grow():
    texts = PackedStrings()
    texts.append("a")
    texts.extend(["b", "ü"])
    assert repr(texts) == "PackedStrings(['a', 'b', 'ü'])"
    assert repr(PackedStrings("x" * 11)).endswith(", …)")


def test_texts_take_little_memory():
    texts = PackedStrings(f"images/{number:07}.png" for number in range(1000))
    assert len(texts._bytes) + texts._ends.itemsize * len(texts._ends) < 30 * 1001


def test_duplicates():
    assert not may_have_duplicates(["a", "b", "ab"])
    assert may_have_duplicates(["a", "b", "a"])
    assert not may_have_duplicates([])


class Alike(str):
    """A text whose hash is that of all others."""

    __slots__ = ()

    def __hash__(self):
        return 7

    __eq__ = str.__eq__


@pytest.mark.parametrize("kind", [str, Alike])
def test_places(kind):
    texts = [kind(text) for text in ("c", "a", "b", "d")]
    wanted = [kind(text) for text in ("a", "x", "d", "a", "c")]
    assert index_of(texts, wanted).tolist() == [1, -1, 3, 1, 0]
    assert index_of([], wanted).tolist() == [-1] * 5
    assert index_of(texts, []).tolist() == []
