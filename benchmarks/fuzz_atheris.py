"""As `fuzz.py`, led by coverage: an input that reaches new lines of ours is kept and changed on.

    python benchmarks/fuzz_atheris.py --runs 10000

Needs atheris (Linux): ``pip install "ssl-toolkit[fuzz]"``. Each kind runs in a process of its own,
in which ssl_toolkit and the Python that parses for it (yaml, tarfile, Pillow's and torch's) tell
the fuzzer which branches they took. A finding is an exception that is not documented; it is
counted once for each place that raises it, and the first input that did is kept.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

KINDS = ("configuration files", "lists of images", "images", "shards", "checkpoints",
         "pickles in checkpoints")  # fmt: skip
INSTRUMENTED = ["ssl_toolkit", "yaml", "tarfile", "PIL"]
TOKENS = (
    "path", "label", "split", "test", "labeled", "unlabeled", "nan", "null", "-1", "1e999", "../",
    "!!python/object/apply:os.abort []", "<<: *x", "&x", "ustar", "PaxHeader", "path=", "size=",
    "GNU.sparse.map=", "csystem\n", "cbuiltins\neval\n", "lr", "steps", "algo", "ema", "augment",
)  # fmt: skip

Fed = tuple[Callable[[Path, bytes], str], list[bytes]]
"""What is done with bytes, and what to begin with."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000, help="inputs of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--findings", type=Path, help="folder for inputs that broke something")
    given = parser.parse_args()
    found = 0
    for kind in [given.only] if given.only else KINDS:
        with tempfile.TemporaryDirectory() as scratch:
            found += _report(kind, Path(scratch), given)
    sys.exit(bool(found))


def _report(kind: str, scratch: Path, given: argparse.Namespace) -> int:
    """Run a kind in a process of its own, tell what became of it, and count the findings."""
    began = time.monotonic()
    job = {"kind": kind, "runs": given.runs, "scratch": str(scratch), "seed": given.seed}
    process = subprocess.run(
        [sys.executable, __file__], input=json.dumps(job), text=True, capture_output=True,
        env=os.environ | {"SSL_TOOLKIT_CACHE": str(scratch / "cache"), "FUZZ_ATHERIS": "child"},
        check=False,
    )  # fmt: skip
    result = scratch / "result.json"
    if not result.exists():  # the process itself was broken: a crash, a hang, too much memory
        print(f"{kind}: ended with {process.returncode}\n{process.stderr[-4000:]}", flush=True)
        _keep(given.findings, kind, sorted(scratch.glob("[a-z]*-*")))
        return 1
    told = json.loads(result.read_text())
    ends = ", ".join(f"{end} {count:,}" for end, count in told["ends"])
    print(
        f"{kind}: {sum(count for _, count in told['ends']):,} inputs in "
        f"{time.monotonic() - began:.0f} s, {told['kept']} kept for new coverage, "
        f"{len(told['findings'])} findings: {ends}",
        flush=True,
    )
    for finding in told["findings"]:
        print(f"  {finding}", flush=True)
    _keep(given.findings, kind, sorted(scratch.glob("finding-*")))
    return len(told["findings"])


def _keep(folder: Path | None, kind: str, inputs: list[Path]) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for path in inputs:
            (folder / f"{kind}-{path.name}").write_bytes(path.read_bytes())


# --- in the process of a kind -------------------------------------------------------------------


def fed(kind: str, targets: Any, folder: Path) -> Fed:
    """A first byte chooses where there is a choice; the rest is the content."""
    suffixes = [*targets.LISTS]
    if kind == "configuration files":
        return targets.configure, [targets.CONFIG_BYTES, json.dumps(targets.CONFIG).encode()]
    if kind == "lists of images":
        return (
            lambda folder, b: targets.read_list(folder, (suffixes[b[0] % 4], b[1:])),
            [bytes([place]) + targets.LISTS[s].encode() for place, s in enumerate(suffixes)],
        )
    if kind == "images":
        return targets.look, [*targets.IMAGES.values()]
    if kind == "shards":  # with the right sums three times in four
        return (
            lambda folder, b: targets.read_shard(folder, (b[0] % 4 > 0, b[1:])),
            [bytes([place]) + targets.SHARD for place in range(4)],
        )
    if kind == "checkpoints":
        return (
            lambda folder, b: targets.load_bytes(folder, (b[0] % 8 > 0, b[1:])),
            [b"\1" + targets.checkpoint_bytes(folder)],
        )
    return (
        lambda folder, b: targets.load_bytes(folder, (True, targets.with_pickle(folder, b))),
        [targets.pickled(folder)],
    )


def fuzz_here(kind: str, runs: int, scratch: str, seed: int) -> None:
    """Feed a kind until so many inputs were tried; does not return."""
    import atheris

    sys.modules.pop("tarfile", None)  # imported already, without its coverage
    with atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
        import fuzz_targets as targets
    if "checkpoints" in kind:
        with atheris.instrument_imports(include=["torch"]):
            importlib.reload(sys.modules["torch._weights_only_unpickler"])

    folder, corpus, work = (Path(scratch, name) for name in ("seeds", "corpus", "work"))
    for path in (folder, corpus, work):
        path.mkdir()
    use, seeds = fed(kind, targets, work)
    for place, content in enumerate(seeds):
        (folder / str(place)).write_bytes(content)
    words = Path(scratch, "words")
    words.write_text(
        "".join('"' + "".join(f"\\x{b:02x}" for b in t.encode()) + '"\n' for t in TOKENS)
    )
    ends: Counter[str] = Counter()
    findings: dict[str, bytes] = {}

    def one(content: bytes) -> None:
        try:
            ends[targets.ended(use, work, content or b"\0")] += 1
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            ends["finding"] += 1
            findings.setdefault(
                f"{type(error).__name__} at {place.filename}:{place.lineno}: {str(error)[:200]!r}",
                content,
            )
        if ends.total() == runs:
            _finish(Path(scratch), ends, findings, len([*corpus.iterdir()]))

    atheris.Setup(
        [sys.argv[0], str(corpus), str(folder), f"-seed={seed}", f"-dict={words}",
         f"-artifact_prefix={scratch}/", f"-max_len={2 * max(map(len, seeds))}",
         "-timeout=120", "-rss_limit_mb=4096"],
        one,
    )  # fmt: skip
    atheris.Fuzz()


def _finish(scratch: Path, ends: Counter[str], findings: dict[str, bytes], kept: int) -> None:
    for place, content in enumerate(findings.values()):
        (scratch / f"finding-{place}").write_bytes(content)
    told = {"ends": ends.most_common(), "findings": [*findings], "kept": kept}
    (scratch / "result.json").write_text(json.dumps(told))
    os._exit(0)  # the fuzzer would go on, and does not return


if __name__ == "__main__":
    if os.environ.get("FUZZ_ATHERIS") == "child":
        fuzz_here(**json.load(sys.stdin))
    else:
        main()
