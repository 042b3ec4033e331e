"""Fuzz the readers of files with damaged input; only documented exceptions may be raised.

    python benchmarks/fuzz.py --count 10000

There are six targets: configuration files, lists of images, images, shards, checkpoints, and the
metadata of plugins. Hypothesis generates inputs that are valid, truncated, spliced, or made of
valid words in a wrong order, and shrinks each input that raises another exception.
`fuzz_atheris.py` is the coverage-guided counterpart.
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

Target = tuple[st.SearchStrategy[Any], targets.Read]
"""The strategy that generates inputs, and the function that reads one."""

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


def damage(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    """Apply the edits to the content, one after another."""
    for kind, fraction, inserted in edits:
        offset = int(fraction * len(content))
        before, after = content[:offset], content[offset:]
        content = {
            "cut": before,
            "flip": before + bytes(b ^ 1 for b in after[:1]) + after[1:],
            "insert": before + inserted + after,
            "drop": before + after[len(inserted) :],
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
        EDITS.map(lambda edits: damage(targets.CONFIG_BYTES, edits))
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
        st.tuples(suffixes, EDITS).map(lambda d: (d[0], damage(whole[d[0]].encode(), d[1])))
        | st.tuples(suffixes, lines).map(lambda d: (d[0], encode(whole[d[0]] + d[1])))
        | st.tuples(suffixes, lines | objects).map(lambda d: (d[0], encode(d[1])))
        | st.tuples(suffixes, st.binary(max_size=60))
    )


def _images() -> st.SearchStrategy[Any]:
    kinds = st.sampled_from([*targets.IMAGES])
    return st.tuples(kinds, EDITS).map(lambda d: damage(targets.IMAGES[d[0]], d[1])) | (
        st.binary(max_size=80)
    )


def _shards() -> st.SearchStrategy[Any]:
    contents = EDITS.map(lambda edits: damage(targets.SHARD, edits)) | st.binary(max_size=80)
    # Overwrite bytes in the first 300 of a header, where all its fields are.
    headers = st.sampled_from(range(0, len(targets.SHARD), 512))
    fields = st.lists(st.tuples(st.integers(0, 300), st.binary(min_size=1, max_size=9)), max_size=3)
    damaged = st.tuples(headers, fields).map(lambda d: _overwrite(targets.SHARD, *d))
    return st.tuples(st.booleans(), contents) | st.tuples(st.just(True), damaged)


def _overwrite(content: bytes, start: int, fields: list[tuple[int, bytes]]) -> bytes:
    for offset, data in fields:
        at = start + offset
        content = content[:at] + data + content[at + len(data) :]
    return content


def _checkpoints() -> st.SearchStrategy[Any]:
    keys = st.sampled_from([*targets.checkpoint(), "format", "weights"]) | st.text(max_size=3)
    changes = st.dictionaries(keys, VALUES, min_size=1, max_size=3)
    return st.tuples(EDITS, st.booleans()) | changes


def _load(folder: Path, example: Any) -> str:
    if isinstance(example, dict):
        return targets.load_content(folder, targets.checkpoint() | example)
    edits, correct = example
    return targets.load_bytes(folder, (correct, damage(targets.checkpoint_bytes(folder), edits)))


TARGETS: dict[str, Callable[[], Target]] = {
    "configuration files": lambda: (_configurations(), targets.configure),
    "lists of images": lambda: (_lists(), targets.read_list),
    "images": lambda: (_images(), targets.read_image),
    "shards": lambda: (_shards(), targets.read_shard),
    "checkpoints": lambda: (_checkpoints(), _load),
    "metadata of plugins": lambda: (fuzz_plugins.distributions(), fuzz_plugins.discover),
}


def fuzz(name: str, count: int, start: int | None = None) -> Counter[str]:
    """Run a target on generated inputs.

    Args:
        name: key of ``TARGETS``.
        count: number of inputs.
        start: seed of the inputs; None for the same ones each time.

    Returns:
        Number of inputs for each outcome.

    Raises:
        Exception: an undocumented exception, for the smallest input that raises it.
    """
    strategy, read = TARGETS[name]()
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:

        def check(example: Any) -> None:
            outcomes[targets.outcome(read, Path(scratch), example)] += 1

        test = given(strategy)(check)
        test = settings(
            max_examples=count,
            database=None,
            deadline=None,
            derandomize=start is None,
            suppress_health_check=[*HealthCheck],
            phases=[Phase.generate, Phase.shrink],
        )(test)
        (test if start is None else seed(start)(test))()
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="number of inputs per target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[*TARGETS])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SSL_TOOLKIT_CACHE"] = cache
        for name in [arguments.only] if arguments.only else TARGETS:
            start = time.monotonic()
            outcomes = fuzz(name, arguments.count, arguments.seed)
            counts = ", ".join(f"{end} {count:,}" for end, count in outcomes.most_common())
            seconds = time.monotonic() - start
            print(f"{name}: {outcomes.total():,} inputs in {seconds:.0f} s: {counts}", flush=True)


if __name__ == "__main__":
    main()
