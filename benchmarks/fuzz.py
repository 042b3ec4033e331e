"""Feed damaged and foreign input to what reads files; only the documented exceptions may come out.

    python benchmarks/fuzz.py --count 10000

Five kinds: configuration files, lists of pictures, pictures, checkpoints, metadata of plugins. An
input is whole, cut, spliced, or made of the right words in a wrong order; hypothesis draws it, and
shrinks one that breaks something.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from ssl_toolkit import ToolkitError, registry
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.data.examined import Examined, examine_pictures
from ssl_toolkit.data.sources import read_data
from ssl_toolkit.engine.checkpoints import load_newest, save_checkpoint
from ssl_toolkit.results.model import load_model

Target = tuple[st.SearchStrategy[Any], Callable[[Path, Any], str]]
"""What is drawn; and what is done with it in an empty folder, giving how it ended."""

WORDS = st.sampled_from(
    ["", "a", "b", "nan", "null", "-1", "1e999", "..", "../x.png", "/etc/passwd", "0.png", "1.png",
     "p/0.png", "\u202e", "\x00", "\r", '"', "'", "path", "label", "split", "test", "labelled",
     "lr", "steps", "algo", "optimizer", "name", "ema", "decay", "augment", "simple", "*x", "&x",
     "!!python/object/apply:os.abort []", "{", "}", "[", "]", ":", "- ", ",", "\t", "\n", " ",
     "<<", "9" * 5000, "[" * 3000, "é", "\ud800"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["cut", "flip", "insert", "drop", "repeat"]),
        st.floats(0, 1),
        st.binary(max_size=12),
    ),
    max_size=4,
)


def edited(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    """Content with damage of these kinds at these places."""
    for kind, share, own in edits:
        place = int(share * len(content))
        before, after = content[:place], content[place:]
        content = {
            "cut": before,
            "flip": before + bytes(b ^ 1 for b in after[:1]) + after[1:],
            "insert": before + own + after,
            "drop": before + after[len(own) :],
            "repeat": before + after[:64] + after,
        }[kind]
    return content


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# --- configuration files ------------------------------------------------------------------------

CONFIG = {
    "algo": "simple", "steps": 10, "lr": 0.01, "ema": {"decay": 0.9}, "optimizer": {"name": "sgd"},
    "simple": {"similarity_threshold": 0.9}, "augment": {"strong": "randaugment"},
    "classes": ["a", "b"], "labels_per_class": 4, "profile": "paper",
}  # fmt: skip


def _configurations() -> st.SearchStrategy[Any]:
    keys = st.sampled_from([*CONFIG, "fixmatch", "algorithm", "model", "schedule", "workers"])
    trees = st.dictionaries(keys | WORDS, VALUES | st.just("simple"), max_size=6)
    return (
        EDITS.map(lambda edits: edited(yaml.safe_dump(CONFIG).encode(), edits))
        | trees.map(lambda tree: encode(json.dumps(CONFIG | tree)))
        | st.lists(WORDS, max_size=12).map(lambda words: encode("".join(words)))
        | st.binary(max_size=60)
    )


def _configure(folder: Path, content: bytes) -> str:
    path = folder / "config.yaml"
    path.write_bytes(content)
    load_config([path])
    return "accepted"


# --- lists of pictures --------------------------------------------------------------------------

LISTS = {
    ".csv": "path,label,split\np/0.png,a,\np/1.png,b,\np/2.png,,unlabelled\np/3.png,a,test\n",
    ".tsv": "path\tlabel\np/0.png\ta\np/1.png\tb\n",
    ".jsonl": '{"path": "p/0.png", "label": "a"}\n{"path": "p/1.png", "label": 3}\n',
    ".txt": "p/0.png a\np/1.png b\np/2.png -1\n",
}


def _lists() -> st.SearchStrategy[Any]:
    suffixes = st.sampled_from([*LISTS])
    lines = st.lists(st.lists(WORDS, max_size=6).map("".join), max_size=6).map("\n".join)
    objects = st.lists(VALUES.map(json.dumps), max_size=4).map("\n".join)
    return (
        st.tuples(suffixes, EDITS).map(lambda d: (d[0], edited(LISTS[d[0]].encode(), d[1])))
        | st.tuples(suffixes, lines).map(lambda d: (d[0], encode(LISTS[d[0]] + d[1])))
        | st.tuples(suffixes, lines | objects).map(lambda d: (d[0], encode(d[1])))
        | st.tuples(suffixes, st.binary(max_size=60))
    )


def _list(folder: Path, drawn: tuple[str, bytes]) -> str:
    suffix, content = drawn
    pictures = folder / "p"
    if not pictures.exists():
        pictures.mkdir()
        for place in range(4):
            (pictures / f"{place}.png").write_bytes(PICTURES["PNG"])
    path = folder / f"list{suffix}"
    path.write_bytes(content)
    table = read_data(path)
    outside = [key for key in table.keys if ".." in Path(key).parts or key.startswith("/")]
    assert not outside, outside
    return "accepted"


# --- pictures -----------------------------------------------------------------------------------


def _pictures() -> dict[str, bytes]:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 12, 3)).astype(np.uint8)
    made = {}
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        made[kind] = buffer.getvalue()
    return made


PICTURES = _pictures()


def _damaged_pictures() -> st.SearchStrategy[Any]:
    kinds = st.sampled_from([*PICTURES])
    return st.tuples(kinds, EDITS).map(lambda drawn: edited(PICTURES[drawn[0]], drawn[1])) | (
        st.binary(max_size=80)
    )


def _picture(folder: Path, content: bytes) -> str:
    path = folder / "picture.png"
    path.write_bytes(content)
    (answer,) = examine_pictures([path], 8)
    if isinstance(answer, Examined):
        assert answer.pixels.shape == (8, 8, 3)
        return "read"
    assert "\n" not in answer
    return "refused with a reason"


# --- checkpoints --------------------------------------------------------------------------------


def _checkpoint_content() -> dict[str, Any]:
    from ssl_toolkit.models.factory import build_classifier

    classifier, _ = build_classifier(
        "wrn_10_1", 2, image_size=8, dataset_mean=(0.5,) * 3, dataset_std=(0.5,) * 3, seed=0
    )
    return {"step": 3, "backbone": "wrn_10_1", "classes": ["a", "b"], "image_size": 8,
            "model": classifier.state_dict(), "ema": None}  # fmt: skip


CHECKPOINT: dict[str, Any] = {}


def _checkpoints() -> st.SearchStrategy[Any]:
    if not CHECKPOINT:
        CHECKPOINT.update(_checkpoint_content())
    keys = st.sampled_from([*CHECKPOINT, "format", "weights"]) | st.text(max_size=3)
    changes = st.dictionaries(keys, VALUES, min_size=1, max_size=3)
    return st.tuples(EDITS, st.booleans()) | changes


def _checkpoint(folder: Path, drawn: Any) -> str:
    path = folder / "checkpoints" / "last.pt"
    if isinstance(drawn, dict):
        save_checkpoint(path, CHECKPOINT | drawn)
    else:
        edits, sealed = drawn
        whole = folder / "whole.pt"
        if not whole.exists():
            save_checkpoint(whole, CHECKPOINT)
        content = edited(whole.read_bytes()[:-71], edits)
        seal = hashlib.sha256(content).hexdigest().encode() if sealed else b"0" * 64
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content + b"sha256=" + seal)
        if "model" not in load_newest(path)[0]:
            return "loaded without weights"
    load_model(folder, "cpu")
    return "loaded"


# --- metadata of plugins ------------------------------------------------------------------------

ENTRY_POINTS = (
    "[console_scripts]\nx = y:z\n\n[ssl_toolkit.algorithms]\nfirst = json:loads\n"
    "second = no_such_module:Thing\n\n[ssl_toolkit.backbones]\nthird = math:nan\n"
)
METADATA = "Metadata-Version: 2.1\nName: foreign-plugin\nVersion: 1.0\n"


def _metadata() -> st.SearchStrategy[Any]:
    lines = st.lists(
        st.sampled_from(["[ssl_toolkit.algorithms]", "[", "]", "=", "x", "x = ", "= y", "a = b:c:d",
                         "a = b", "a = :", "a = x [extra]", "simple = json:loads", "a = .:.",
                         "[ssl_toolkit.]", "\x00", "é = ü:ö", "a b = c", "a = 'x'"]),
        max_size=6,
    ).map("\n".join)  # fmt: skip
    points = (
        EDITS.map(lambda e: edited(ENTRY_POINTS.encode(), e))
        | lines.map(encode)
        | (st.binary(max_size=40).map(lambda b: b"[ssl_toolkit.algorithms]\n" + b))
    )
    named = (
        st.just(METADATA.encode())  # a distribution without a name is passed over as a whole
        | EDITS.map(lambda e: edited(METADATA.encode(), e))
        | st.binary(max_size=40)
    )
    return st.tuples(points, named)


@contextmanager
def _only(folder: Path) -> Any:
    """Distributions of one folder alone: to read all that are installed takes long."""
    before = sys.path[:]
    sys.path[:] = [str(folder)]
    try:
        yield
    finally:
        sys.path[:] = before


def _plugin(folder: Path, drawn: tuple[bytes, bytes]) -> str:
    points, named = drawn
    info = folder / "foreign_plugin-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "entry_points.txt").write_bytes(points)
    (info / "METADATA").write_bytes(named)
    with _only(folder):
        known = [entry for group in registry.GROUPS for entry in registry.entries(group)]
        found = [entry for entry in known if entry.distribution != registry.NOTEBOOK]
        for group in registry.GROUPS:
            registry.clashes(group)
    for entry in found:
        with _only(folder), suppress(ToolkitError):
            registry.find(entry.group, f"{entry.distribution}:{entry.name}")
        plugin, reason = registry.attempt(entry)
        assert (plugin is None) == bool(reason)
    return f"{min(len(found), 3)} entries"


TARGETS: dict[str, Callable[[], Target]] = {
    "configuration files": lambda: (_configurations(), _configure),
    "lists of pictures": lambda: (_lists(), _list),
    "pictures": lambda: (_damaged_pictures(), _picture),
    "checkpoints": lambda: (_checkpoints(), _checkpoint),
    "metadata of plugins": lambda: (_metadata(), _plugin),
}


def fuzz(name: str, count: int, start: int | None = None) -> Counter[str]:
    """Feed a target.

    Args:
        name: of the target.
        count: inputs.
        start: seed of what is drawn; None for the same ones each time.

    Returns:
        How often each end came.

    Raises:
        Exception: what no input may bring about, for the smallest input that does.
    """
    strategy, use = TARGETS[name]()
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:

        def one(drawn: Any) -> None:
            try:
                ends[use(Path(scratch), drawn)] += 1
            except ToolkitError as error:
                named = type(error).__name__ if all(error.messages) else "no message"
                ends[f"refused ({named})"] += 1

        tested = given(strategy)(one)
        tested = settings(
            max_examples=count,
            database=None,
            deadline=None,
            derandomize=start is None,
            suppress_health_check=[*HealthCheck],
            phases=[Phase.generate, Phase.shrink],
        )(tested)
        (tested if start is None else seed(start)(tested))()
    assert "refused (no message)" not in ends
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[*TARGETS])
    given_ = parser.parse_args()
    for name in [given_.only] if given_.only else TARGETS:
        began = time.monotonic()
        ends = fuzz(name, given_.count, given_.seed)
        told = ", ".join(f"{end} {count:,}" for end, count in ends.most_common())
        seconds = time.monotonic() - began
        print(f"{name}: {ends.total():,} inputs in {seconds:.0f} s: {told}", flush=True)


if __name__ == "__main__":
    main()
