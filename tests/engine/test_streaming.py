import threading
import warnings

import numpy as np
import pytest
import torch
from tiny_images import encoded, put
from webdataset_shards import samples, shard

from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.data.images.archives import tar_member
from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.image_files import files_of
from ssl_toolkit.engine import streaming
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.random_orders import IndexStream
from ssl_toolkit.engine.streaming import Blocks, StreamedImages, buffered_order, reading_order
from ssl_toolkit.errors import ConfigError, DataError


def draw(order, seed):
    return order(torch.Generator().manual_seed(seed)).tolist()


def test_a_buffered_order_is_a_permutation_within_the_buffer():
    sequence = torch.arange(1000) * 7 % 1000
    place = {index: at for at, index in enumerate(sequence.tolist())}
    order = buffered_order(sequence, [1000], 50)
    drawn = draw(order, 0)
    assert sorted(drawn) == list(range(1000))
    assert drawn != sequence.tolist()
    read = 0
    for left, index in enumerate(drawn):
        read = max(read, place[index] + 1)
        assert read - left <= 50  # what was read and has not left yet is held
    assert max(abs(place[index] - at) for at, index in enumerate(drawn)) > 25
    assert draw(order, 0) == drawn
    assert draw(order, 1) != drawn
    assert draw(buffered_order(sequence, [1000], 1), 3) == sequence.tolist()


def test_shards_are_contiguous_and_in_another_order_for_each_epoch():
    order = buffered_order(torch.arange(60), [10] * 6, 1)
    seen = {tuple(draw(order, seed)[::10]) for seed in range(8)}
    assert len(seen) > 4
    for starts in seen:
        assert sorted(starts) == [0, 10, 20, 30, 40, 50]


def test_a_stream_in_a_given_order_can_start_anywhere():
    order = buffered_order(torch.arange(30), [10, 20], 8)
    whole = IndexStream(30, 5, "unlabeled", order).take(0, 90)
    assert sorted(whole[:30].tolist()) == sorted(whole[60:].tolist()) == list(range(30))
    assert whole[:30].tolist() != whole[30:60].tolist()
    parts = [IndexStream(30, 5, "unlabeled", order).take(at, 7) for at in range(0, 84, 7)]
    assert torch.equal(torch.cat(parts), whole[:84])


def noise(number):
    """An image of some kilobytes."""
    import io

    from PIL import Image

    levels = np.random.default_rng(number).integers(0, 256, (40, 40, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("workers", [0, 3])
def test_every_block_is_read_once_per_epoch_and_few_are_in_memory(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(streaming, "BLOCK_BYTES", 4096)
    for number in range(3):
        members = [(f"{n:04d}.png", noise(n)) for n in range(50 * number, 50 * number + 50)]
        members += [(f"{n:04d}.cls", b"%d" % (n % 2)) for n in range(50 * number, 50 * number + 50)]
        shard(tmp_path / f"{number}.tar", members)
    table = read_data(tmp_path)
    files = files_of(table)
    assert files is not None
    files.workers = workers
    rows = np.arange(150)
    images = StreamedImages(files, rows, table.labels, 8, buffer=20, refuse=True)
    order = draw(reading_order(files, rows, 20), 0)
    held = 0
    for start in range(0, 150, 10):
        places = np.array(order[start : start + 10])
        taken = images.take(places)
        assert (taken == table.read(places, 8).transpose(0, 3, 1, 2)).all()
        held = max(held, len(images.blocks._recent))
    members = [tar_member(path) for path in files]
    blocks = {
        (file, at)
        for file, start, length in members
        for at in range(start // 4096, (start + length - 1) // 4096 + 1)
    }
    assert images.blocks.reads == len(blocks)
    assert held <= images.blocks.most < len(blocks) / 2


def test_reads_can_cross_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "BLOCK_BYTES", 10)
    (tmp_path / "x").write_bytes(bytes(range(35)))
    blocks = Blocks(2)
    for start, length in ((0, 35), (8, 5), (10, 10), (30, 9), (3, 1)):
        assert (
            blocks.read(str(tmp_path / "x"), start, length)
            == bytes(range(35))[start : start + length]
        )


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    shard(data / "train-000.tar", samples(6))
    shard(data / "train-001.tar", samples(6, start=6))
    shard(data / "unlabeled-000.tar", samples(8, start=20, labeled=False))
    shard(data / "unlabeled-001.tar", samples(8, start=30, labeled=False))
    shard(data / "test-000.tar", samples(4, start=40))
    return data


def config(folder, **more):
    keys = {
        "algo": "fixmatch", "backbone": "wrn_10_1", "data": str(folder), "image_size": 4,
        "labels_per_class": 2, "batch_size": 2, "steps": 4, "eval_every": 2, "log_every": 1,
        "device": "cpu", "stream_buffer": 6,
    }  # fmt: skip
    return validate([Layer("test", keys | more)])


def test_only_the_unlabeled_are_streamed(shards, tmp_path):
    experiment = prepare(config(shards))
    images = experiment.trainer.batches.images
    assert (len(images.labeled), len(images.unlabeled), len(experiment.test[0])) == (4, 24, 4)
    (cache,) = [path for path in (tmp_path / "cache" / "images").iterdir() if path.suffix == ""
                and not path.name.startswith(".")]  # fmt: skip
    assert (cache / "pixels").stat().st_size == 8 * 3 * 4 * 4
    everything = prepare(config(shards, stream_buffer=None)).trainer.batches.images
    assert torch.equal(images.hidden, everything.hidden)
    assert torch.equal(
        images.pool.gather(images.unlabeled), everything.pool.gather(everything.unlabeled)
    )
    assert torch.equal(
        images.loaded.gather(images.labeled), everything.loaded.gather(everything.labeled)
    )
    assert any("24 unlabeled images are decoded during training" in n for n in experiment.notes)


def test_batches_depend_on_seed_and_number_alone(shards):
    first = prepare(config(shards)).trainer.batches
    second = prepare(config(shards, workers=2)).trainer.batches
    for number in (3, 0, 7):
        one, other = first.draw(number), second.draw(number)
        assert torch.equal(one.unlabeled_indices, other.unlabeled_indices)
        assert torch.equal(one.unlabeled_weak, other.unlabeled_weak)
    assert not torch.equal(
        first.draw(0).unlabeled_indices,
        prepare(config(shards, seed=1)).trainer.batches.draw(0).unlabeled_indices,
    )


def test_a_stream_resumes_exactly(shards):
    whole = prepare(config(shards)).trainer
    whole.fit()
    begun = prepare(config(shards)).trainer
    begun.stop = lambda: "now" if begun.step == 2 else ""
    assert begun.fit() == "now"
    went_on = prepare(config(shards)).trainer
    went_on.load_state_dict(begun.state_dict())
    went_on.fit()
    assert went_on.step == whole.step == 4
    for name, tensor in whole.classifier.state_dict().items():
        assert torch.equal(tensor, went_on.classifier.state_dict()[name]), name


def test_unreadable_streamed_images_end_the_training(shards):
    shard(shards / "unlabeled-002.tar", [("oops.png", b"no image")])
    with pytest.raises(DataError) as caught:
        prepare(config(shards)).trainer.fit()
    assert "oops.png: not an image" in caught.value.messages[0]
    assert "--on-bad-image skip" in caught.value.messages[-1]


def test_or_another_image_of_the_same_class_replaces_it(tmp_path):
    members = [*samples(6), ("0003.png", b"no image")]  # the last one counts
    members = [(name, b"oops" if name == "0003.png" else content) for name, content in samples(6)]
    path = shard(tmp_path / "x.tar", members)
    table = read_data(path)
    files = files_of(table)
    assert files is not None
    images = StreamedImages(files, np.arange(6), table.labels, 4, buffer=3, refuse=False)
    assert images.take(np.array([2, 3]))[:, 0, 0, 0].tolist() == [2, 5]  # 5: odd as 3 is
    assert images.take(np.array([3]))[:, 0, 0, 0].tolist() == [5]
    assert [*images.skipped.values()] == ["not an image"]
    with pytest.raises(DataError, match="nor any other of its class"):
        StreamedImages(files, np.array([3]), table.labels[[3]], 4, buffer=3, refuse=False).take(
            np.array([0])
        )


def test_unreadable_labeled_and_test_images_are_reported_before_the_first_step(shards):
    shard(shards / "test-001.tar", [("oops.png", b"no image"), ("oops.cls", b"0")])
    with pytest.raises(DataError, match=r"oops\.png: not an image"):
        prepare(config(shards))
    experiment = prepare(config(shards, on_bad_image="skip"))
    assert len(experiment.test[0]) == 4
    assert any("skipped test-001.tar/oops.png" in note for note in experiment.notes)


def test_leaks_among_those_that_are_decoded_are_found(shards):
    shard(shards / "test-001.tar", [("0000.png", encoded(0)), ("0000.cls", b"0")])
    experiment = prepare(config(shards, labels_per_class=6))
    assert len(experiment.leaks.groups) == 1


def test_files_of_their_own_are_streamed_too(tmp_path):
    for number in range(12):
        put(tmp_path / "labeled" / str(number % 2) / f"{number}.png", number)
        put(tmp_path / "unlabeled" / f"{number}.png", 100 + number)
    images = prepare(config(tmp_path, labels_per_class=None)).trainer.batches.images
    assert (images.pool.pixels(images.unlabeled)[:, 0, 0, 0] >= 100).all()


def test_images_that_are_not_files_are_not_streamed(tmp_path):
    with pytest.raises(ConfigError, match="--stream-buffer: the images of digits are neither"):
        prepare(config("", data=None, dataset="digits"))


def batches_of(folder):
    return prepare(config(folder)).trainer.batches


def test_reading_ahead_changes_no_batch(shards):
    expected = [batches_of(shards).draw(number) for number in (0, 1, 2, 5, 6)]
    batches = batches_of(shards)
    with batches.reading_ahead(7):
        # As after a resume, batch 5 is not the one that was expected after 2.
        found = [batches.draw(number) for number in (0, 1, 2, 5, 6)]
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one.unlabeled_weak, other.unlabeled_weak)
        assert torch.equal(one.labeled_weak, other.labeled_weak)


def test_the_next_batch_is_decoded_in_a_thread_and_none_beyond_the_last(shards, monkeypatch):
    batches = batches_of(shards)
    reads, ahead = [], threading.Event()
    take, main = StreamedImages.take, threading.current_thread().name

    def recorded(self, indices):
        images = take(self, indices)
        reads.append((threading.current_thread().name, indices.tolist()))
        if len(reads) == 2:
            ahead.set()
        return images

    monkeypatch.setattr(StreamedImages, "take", recorded)
    with batches.reading_ahead(2):
        first = batches.draw(0)
        assert ahead.wait(10)  # before it is drawn
        second = batches.draw(1)
    assert [name for name, _ in reads] == [main, "look-ahead_0"]
    drawn = [batch.unlabeled_indices.tolist() for batch in (first, second)]
    assert [indices for _, indices in reads] == drawn
    batches.draw(2)
    assert reads[-1][0] == main


def test_an_unreadable_image_of_the_next_batch_does_not_end_the_current_step(shards, monkeypatch):
    batches = batches_of(shards)
    with batches.reading_ahead(3):
        take = StreamedImages.take
        calls = []

        def refuse(self, indices):
            calls.append(indices)
            if len(calls) == 2:
                raise DataError("can't read image")
            return take(self, indices)

        monkeypatch.setattr(StreamedImages, "take", refuse)
        batches.draw(0)
        with pytest.raises(DataError, match="can't read image"):
            batches.draw(1)


def test_the_filters_of_warnings_are_as_before(shards):
    before = list(warnings.filters)
    batches = batches_of(shards)
    with batches.reading_ahead(3):
        batches.draw(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches.draw(1)
            warnings.warn("of a plugin", stacklevel=1)
        assert [str(one.message) for one in caught] == ["of a plugin"]
    assert list(warnings.filters) == before
