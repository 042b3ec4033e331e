import numpy as np
import pytest
import torch

from ssl_toolkit.engine.random_orders import BalancedStream, IndexStream, derive_seed
from ssl_toolkit.engine.training_images import (
    ImageSource,
    channel_statistics,
    load_images,
)
from ssl_toolkit.interfaces import ImageTable


def table_of(images: np.ndarray) -> ImageTable:
    return ImageTable(
        classes=("a", "b"),
        keys=tuple(str(row) for row in range(len(images))),
        labels=np.zeros(len(images), dtype=np.int64),
        splits=np.full(len(images), "pool"),
        read=lambda rows, size: images[rows],
    )


def test_a_store_returns_the_requested_rows_in_order():
    images = np.random.default_rng(0).integers(0, 256, (600, 4, 4, 3)).astype(np.uint8)
    rows = np.random.default_rng(1).permutation(600)[:520]
    calls = []
    store = load_images(table_of(images), rows, 4, "cpu", lambda *message: calls.append(message))
    assert calls == [(256, 520), (512, 520), (520, 520)]
    assert len(store) == 520
    assert store.images.dtype == torch.uint8
    got = store.gather(torch.tensor([519, 0, 0]))
    expected = images[rows[[519, 0, 0]]].transpose(0, 3, 1, 2) / 255
    assert got.dtype == torch.float32
    assert got.shape == (3, 3, 4, 4)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
    got.zero_()
    assert store.gather(torch.tensor([519])).max() > 0


def test_store_refuses_other_tensors():
    for wrong in (torch.zeros(2, 3, 4, 4), torch.zeros(4, 4, 3, dtype=torch.uint8)):
        with pytest.raises(ValueError, match=r"must be \(N, C, H, W\) uint8 or uint16"):
            ImageSource(wrong)


def test_channel_statistics_are_those_of_float64():
    images = torch.randint(0, 256, (300, 3, 5, 7), dtype=torch.uint8)
    images[:, 1] //= 3
    rows = torch.arange(0, 300, 2)
    mean, std = channel_statistics((ImageSource(images), rows))
    exact = images[rows].double() / 255
    np.testing.assert_allclose(mean, exact.mean((0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(std, exact.std((0, 2, 3), correction=0), rtol=1e-12)
    assert (mean, std) == channel_statistics((ImageSource(images), rows.flip(0)))


def test_constant_channels_keep_a_width():
    store = ImageSource(torch.full((2, 3, 4, 4), 255, dtype=torch.uint8))
    assert channel_statistics((store, torch.tensor([0, 1]))) == ((1.0,) * 3, (1 / 255,) * 3)
    with pytest.raises(ValueError, match="at least one image"):
        channel_statistics((store, torch.tensor([])))


def test_derived_seeds():
    # A fixed value: the seeds of a finished run must mean the same for ever.
    assert derive_seed(0, "labelled", 3) == 562_052_615_721_414_437
    seeds = {derive_seed(*parts) for parts in ((0,), ("0",), (0, 0), (0, "0"), ("00",), (-1,))}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_index_stream_is_a_function_of_the_position():
    whole = IndexStream(7, 3, "labeled").take(0, 40)
    assert whole.dtype == torch.int64
    for epoch in range(5):
        assert sorted(whole[7 * epoch : 7 * epoch + 7].tolist()) == list(range(7))
    assert len({tuple(whole[7 * e : 7 * e + 7].tolist()) for e in range(5)}) > 1
    for batch in (1, 3, 16):
        stream = IndexStream(7, 3, "labeled")
        pieces = [stream.take(start, min(batch, 40 - start)) for start in range(0, 40, batch)]
        assert torch.equal(torch.cat(pieces), whole)
    stream = IndexStream(7, 3, "labeled")
    stream.take(0, 40)
    assert torch.equal(stream.take(5, 20), whole[5:25])
    assert stream.at(39) == whole[39]
    assert stream.take(4, 0).shape == (0,)


def test_index_streams_differ_by_seed_and_name():
    orders = [
        IndexStream(50, seed, name).take(0, 50).tolist() for seed in (0, 1) for name in ("x", "y")
    ]
    assert len({tuple(order) for order in orders}) == 4


def test_index_stream_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    IndexStream(9, 0, "x").take(0, 20)
    assert torch.equal(torch.rand(1), expected)


def test_streams_refuse_invalid_arguments():
    with pytest.raises(ValueError, match="at least one index"):
        IndexStream(0, 0, "x")
    with pytest.raises(ValueError, match="at least 0"):
        IndexStream(3, 0, "x").take(-1, 2)
    for labels in ([], [0, -1]):
        with pytest.raises(ValueError, match="at least one label"):
            BalancedStream(labels, 0, "x")


def test_balanced_stream_shows_classes_equally():
    labels = torch.tensor([0] * 9 + [2] * 3 + [5])
    stream = BalancedStream(labels, 4, "labeled")
    whole = stream.take(0, 27 * 3)
    shown = labels[whole].view(27, 3)
    assert (shown.sort(dim=1).values == torch.tensor([0, 2, 5])).all()
    assert len({tuple(row) for row in shown.tolist()}) > 1
    counts = torch.bincount(whole, minlength=13)
    assert counts.tolist() == [3] * 9 + [9] * 3 + [27]
    again = BalancedStream(labels.tolist(), 4, "labeled")
    assert torch.equal(torch.cat([again.take(s, 4) for s in range(0, 80, 4)]), whole[:80])
    assert not torch.equal(BalancedStream(labels, 5, "labeled").take(0, 81), whole)
