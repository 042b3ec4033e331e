"""Feed damaged and foreign input to what reads files; only the documented exceptions may come out.

    python benchmarks/fuzz.py --count 10000

Six kinds: configuration files, lists of images, images, shards, checkpoints, metadata of
plugins. An input is whole, cut, spliced, or made of the right words in a wrong order; hypothesis
draws it, and shrinks one that breaks something. `fuzz_atheris.py` looks for more by coverage.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import fuzz_plugins
import fuzz_targets as targets
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

Target = tuple[st.SearchStrategy[Any], targets.Use]
"""What is drawn; and what is done with it."""

WORDS = st.sampled_from(
    ["", "a", "b", "nan", "null", "-1", "1e999", "..", "../x.png", "/etc/passwd", "0.png", "1.png",
     "p/0.png", "\u202e", "\x00", "\r", '"', "'", "path", "label", "split", "test", "labeled",
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


def _configurations() -> st.SearchStrategy[Any]:
    keys = st.sampled_from(
        [*targets.CONFIG, "fixmatch", "algorithm", "model", "schedule", "workers"]
    )
    trees = st.dictionaries(keys | WORDS, VALUES | st.just("simple"), max_size=6)
    return (
        EDITS.map(lambda edits: edited(targets.CONFIG_BYTES, edits))
        | trees.map(lambda tree: encode(json.dumps(targets.CONFIG | tree)))
        | st.lists(WORDS, max_size=12).map(lambda words: encode("".join(words)))
        | st.binary(max_size=60)
    )


def _lists() -> st.SearchStrategy[Any]:
    whole = targets.LISTS
    suffixes = st.sampled_from([*whole])
    lines = st.lists(st.lists(WORDS, max_size=6).map("".join), max_size=6).map("\n".join)
    objects = st.lists(VALUES.map(json.dumps), max_size=4).map("\n".join)
    return (
        st.tuples(suffixes, EDITS).map(lambda d: (d[0], edited(whole[d[0]].encode(), d[1])))
        | st.tuples(suffixes, lines).map(lambda d: (d[0], encode(whole[d[0]] + d[1])))
        | st.tuples(suffixes, lines | objects).map(lambda d: (d[0], encode(d[1])))
        | st.tuples(suffixes, st.binary(max_size=60))
    )


def _images() -> st.SearchStrategy[Any]:
    kinds = st.sampled_from([*targets.IMAGES])
    return st.tuples(kinds, EDITS).map(lambda d: edited(targets.IMAGES[d[0]], d[1])) | (
        st.binary(max_size=80)
    )


def _shards() -> st.SearchStrategy[Any]:
    contents = EDITS.map(lambda edits: edited(targets.SHARD, edits)) | st.binary(max_size=80)
    # The fields of a header lie close together: damage that hits one of them.
    headers = st.sampled_from(range(0, len(targets.SHARD), 512))
    fields = st.lists(st.tuples(st.integers(0, 300), st.binary(min_size=1, max_size=9)), max_size=3)
    written = st.tuples(headers, fields).map(lambda d: _overwritten(targets.SHARD, *d))
    return st.tuples(st.booleans(), contents) | st.tuples(st.just(True), written)


def _overwritten(content: bytes, start: int, fields: list[tuple[int, bytes]]) -> bytes:
    for at, own in fields:
        content = content[: start + at] + own + content[start + at + len(own) :]
    return content


def _checkpoints() -> st.SearchStrategy[Any]:
    keys = st.sampled_from([*targets.checkpoint(), "format", "weights"]) | st.text(max_size=3)
    changes = st.dictionaries(keys, VALUES, min_size=1, max_size=3)
    return st.tuples(EDITS, st.booleans()) | changes


def _load(folder: Path, drawn: Any) -> str:
    if isinstance(drawn, dict):
        return targets.load_content(folder, targets.checkpoint() | drawn)
    edits, sealed = drawn
    return targets.load_bytes(folder, (sealed, edited(targets.checkpoint_bytes(folder), edits)))


TARGETS: dict[str, Callable[[], Target]] = {
    "configuration files": lambda: (_configurations(), targets.configure),
    "lists of images": lambda: (_lists(), targets.read_list),
    "images": lambda: (_images(), targets.look),
    "shards": lambda: (_shards(), targets.read_shard),
    "checkpoints": lambda: (_checkpoints(), _load),
    "metadata of plugins": lambda: (fuzz_plugins.distributions(), fuzz_plugins.discover),
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
            ends[targets.ended(use, Path(scratch), drawn)] += 1

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
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[*TARGETS])
    given_ = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SSL_TOOLKIT_CACHE"] = cache
        for name in [given_.only] if given_.only else TARGETS:
            began = time.monotonic()
            ends = fuzz(name, given_.count, given_.seed)
            told = ", ".join(f"{end} {count:,}" for end, count in ends.most_common())
            seconds = time.monotonic() - began
            print(f"{name}: {ends.total():,} inputs in {seconds:.0f} s: {told}", flush=True)


if __name__ == "__main__":
    main()
