"""Fuzz targets: functions that read bytes as files, and the check of the exceptions they raise."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from ssl_toolkit import ToolkitError
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.data.cache import DecodedImage, decode_images
from ssl_toolkit.data.load import read_data
from ssl_toolkit.engine.checkpoints import load_newest, save_checkpoint
from ssl_toolkit.inference.model import load_model
from ssl_toolkit.models.factory import build_classifier

Read = Callable[[Path, Any], str]
"""Reads an input, for which it may write to an empty folder, and returns the outcome."""


def outcome(read: Read, folder: Path, example: Any) -> str:
    """Return the outcome of `read`, or that the input was refused with an error message.

    Raises:
        Exception: an undocumented exception, which no input may raise.
    """
    try:
        return read(folder, example)
    except ToolkitError as error:
        refusal = error
    assert refusal.messages, "no message"
    assert all(message.strip() for message in refusal.messages), "an empty message"
    return f"refused ({type(refusal).__name__})"


# --- configuration files ------------------------------------------------------------------------

CONFIG = {
    "algo": "simple", "steps": 10, "lr": 0.01, "ema": {"decay": 0.9}, "optimizer": {"name": "sgd"},
    "simple": {"similarity_threshold": 0.9}, "augment": {"strong": "randaugment"},
    "classes": ["a", "b"], "labels_per_class": 4, "profile": "paper",
}  # fmt: skip
CONFIG_BYTES = yaml.safe_dump(CONFIG).encode()


def configure(folder: Path, content: bytes) -> str:
    path = folder / "config.yaml"
    path.write_bytes(content)
    load_config([path])
    return "accepted"


# --- images -----------------------------------------------------------------------------------


def _images() -> dict[str, bytes]:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 12, 3)).astype(np.uint8)
    encoded = {}
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        encoded[kind] = buffer.getvalue()
    return encoded


IMAGES = _images()


def read_image(folder: Path, content: bytes) -> str:
    path = folder / "image.png"
    path.write_bytes(content)
    (result,) = decode_images([path], 8)
    if isinstance(result, DecodedImage):
        assert result.pixels.shape == (8, 8, 3)
        return "read"
    assert "\n" not in result
    return "refused with a reason"


# --- lists of images --------------------------------------------------------------------------

LISTS = {
    ".csv": "path,label,split\np/0.png,a,\np/1.png,b,\np/2.png,,unlabeled\np/3.png,a,test\n",
    ".tsv": "path\tlabel\np/0.png\ta\np/1.png\tb\n",
    ".jsonl": '{"path": "p/0.png", "label": "a"}\n{"path": "p/1.png", "label": 3}\n',
    ".txt": "p/0.png a\np/1.png b\np/2.png -1\n",
}


def read_list(folder: Path, example: tuple[str, bytes]) -> str:
    suffix, content = example
    images = folder / "p"
    if not images.exists():
        images.mkdir()
        for number in range(4):
            (images / f"{number}.png").write_bytes(IMAGES["PNG"])
    path = folder / f"list{suffix}"
    path.write_bytes(content)
    _check_keys(read_data(path).keys)
    return "accepted"


def _check_keys(keys: Any) -> None:
    outside = [key for key in keys if ".." in Path(key).parts or key.startswith("/")]
    assert not outside, outside


# --- shards -------------------------------------------------------------------------------------

_BLOCK = tarfile.BLOCKSIZE


def _shard() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        members = [("a/0.png", IMAGES["PNG"]), ("a/0.cls", b"cat"), ("1.jpg", IMAGES["JPEG"]),
                   ("1.json", b'{"label": 3}'), ("2.png", IMAGES["PNG"]), ("2.txt", b"dog"),
                   ("ü.png", IMAGES["PNG"])]  # fmt: skip
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue().rstrip(b"\0") + bytes(2 * _BLOCK)


SHARD = _shard()


def with_checksums(content: bytes) -> bytes:
    """Correct the checksums of the headers of a tar file, so that the headers are parsed."""
    blocks = [bytearray(content[at : at + _BLOCK]) for at in range(0, len(content), _BLOCK)]
    for block in blocks:
        if b"ustar" in block[250:270]:
            block[148:156] = b"%06o\0 " % (sum(block[:148]) + 8 * 32 + sum(block[156:]))
    return b"".join(blocks)


def read_shard(folder: Path, example: tuple[bool, bytes]) -> str:
    correct, content = example
    path = folder / "shard.tar"
    path.write_bytes(with_checksums(content) if correct else content)
    # The index of shards takes files of equal size and modification time for the same file.
    time = int.from_bytes(hashlib.sha256(content).digest()[:6], "big")
    os.utime(path, ns=(time, time))
    table = read_data(path, size=8, on_bad_image="skip")
    _check_keys(table.keys)
    pixels = table.read(np.arange(len(table.keys)), 8)
    assert pixels.shape == (len(table.keys), 8, 8, 3)
    return "read"


# --- checkpoints --------------------------------------------------------------------------------

_CHECKPOINT: dict[str, Any] = {}
_FILE = bytearray()


def checkpoint() -> dict[str, Any]:
    """Return the content of a small checkpoint, which is built once."""
    if not _CHECKPOINT:
        classifier, _ = build_classifier(
            "wrn_10_1", 2, image_size=8, dataset_mean=(0.5,) * 3, dataset_std=(0.5,) * 3, seed=0
        )
        _CHECKPOINT.update(
            {"step": 3, "backbone": "wrn_10_1", "classes": ["a", "b"], "image_size": 8,
             "fit": "crop", "model": classifier.state_dict(), "ema": None}
        )  # fmt: skip
    return _CHECKPOINT


def checkpoint_bytes(folder: Path) -> bytes:
    """Return the bytes of that checkpoint without its checksum; they are written once."""
    if not _FILE:
        path = folder / "whole.pt"
        save_checkpoint(path, checkpoint())
        _FILE.extend(path.read_bytes()[:-71])
    return bytes(_FILE)


def checkpoint_pickle(folder: Path) -> bytes:
    """Return the pickle in the checkpoint; the tensors it refers to are separate records."""
    with zipfile.ZipFile(io.BytesIO(checkpoint_bytes(folder))) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        return archive.read(name)


def with_pickle(folder: Path, content: bytes) -> bytes:
    """Return the checkpoint with its pickle replaced and all other records unchanged."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(checkpoint_bytes(folder))) as old,
        zipfile.ZipFile(buffer, "w") as new,
    ):
        for name in old.namelist():
            new.writestr(name, content if name.endswith("data.pkl") else old.read(name))
    return buffer.getvalue()


def load_content(folder: Path, content: dict[str, Any]) -> str:
    save_checkpoint(folder / "checkpoints" / "last.pt", content)
    load_model(folder, "cpu")
    return "loaded"


def load_bytes(folder: Path, example: tuple[bool, bytes]) -> str:
    correct, content = example
    path = folder / "checkpoints" / "last.pt"
    path.parent.mkdir(exist_ok=True)
    checksum = hashlib.sha256(content).hexdigest().encode() if correct else b"0" * 64
    path.write_bytes(content + b"sha256=" + checksum)
    if "model" not in load_newest(path)[0]:
        return "loaded without weights"
    load_model(folder, "cpu")
    return "loaded"
