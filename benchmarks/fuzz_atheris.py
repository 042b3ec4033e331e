"""Fuzz the targets of `fuzz.py` guided by coverage: inputs that reach new code are mutated further.

    python benchmarks/fuzz_atheris.py --runs 10000

Needs atheris (Linux): ``pip install "ssl-toolkit[fuzz]"``. Each target runs in a separate process,
in which ssl_toolkit and the Python code that parses for it (yaml, tarfile, Pillow, torch's
unpickler) are instrumented for branch coverage. A finding is an undocumented exception; it is
counted once for each line that raises it, and saved with the first input that does.
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

TARGETS = ("configuration files", "lists of images", "images", "shards", "checkpoints",
         "pickles in checkpoints")  # fmt: skip
INSTRUMENTED = ["ssl_toolkit", "yaml", "tarfile", "PIL"]
TOKENS = (
    "path", "label", "split", "test", "labeled", "unlabeled", "nan", "null", "-1", "1e999", "../",
    "!!python/object/apply:os.abort []", "<<: *x", "&x", "ustar", "PaxHeader", "path=", "size=",
    "GNU.sparse.map=", "csystem\n", "cbuiltins\neval\n", "lr", "steps", "algo", "ema", "augment",
)  # fmt: skip

Target = tuple[Callable[[Path, bytes], str], list[bytes]]
"""The function that reads bytes, and the seed inputs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000, help="number of inputs per target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--findings", type=Path, help="folder for the inputs of findings")
    arguments = parser.parse_args()
    findings = 0
    for name in [arguments.only] if arguments.only else TARGETS:
        with tempfile.TemporaryDirectory() as scratch:
            findings += _run(name, Path(scratch), arguments)
    sys.exit(bool(findings))


def _run(name: str, scratch: Path, arguments: argparse.Namespace) -> int:
    """Fuzz a target in a separate process, print the result, and return the number of findings."""
    start = time.monotonic()
    job = {
        "name": name, "runs": arguments.runs, "scratch": str(scratch), "seed": arguments.seed
    }  # fmt: skip
    process = subprocess.run(
        [sys.executable, __file__], input=json.dumps(job), text=True, capture_output=True,
        env=os.environ | {"SSL_TOOLKIT_CACHE": str(scratch / "cache"), "FUZZ_ATHERIS": "child"},
        check=False,
    )  # fmt: skip
    file = scratch / "result.json"
    if not file.exists():  # a crash, a timeout, or out of memory
        print(f"{name}: exit status {process.returncode}\n{process.stderr[-4000:]}", flush=True)
        _save(arguments.findings, name, sorted(scratch.glob("[a-z]*-*")))
        return 1
    result = json.loads(file.read_text())
    outcomes = ", ".join(f"{outcome} {count:,}" for outcome, count in result["outcomes"])
    print(
        f"{name}: {sum(count for _, count in result['outcomes']):,} inputs in "
        f"{time.monotonic() - start:.0f} s, {result['corpus']} with new coverage, "
        f"{len(result['findings'])} findings: {outcomes}",
        flush=True,
    )
    for finding in result["findings"]:
        print(f"  {finding}", flush=True)
    _save(arguments.findings, name, sorted(scratch.glob("finding-*")))
    return len(result["findings"])


def _save(folder: Path | None, name: str, inputs: list[Path]) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for path in inputs:
            (folder / f"{name}-{path.name}").write_bytes(path.read_bytes())


# --- in the process of a target -----------------------------------------------------------------


def target_of(name: str, targets: Any, folder: Path) -> Target:
    """Return a target; the first byte selects the suffix or whether the checksum is correct."""
    suffixes = [*targets.LISTS]
    if name == "configuration files":
        return targets.configure, [targets.CONFIG_BYTES, json.dumps(targets.CONFIG).encode()]
    if name == "lists of images":
        return (
            lambda folder, b: targets.read_list(folder, (suffixes[b[0] % 4], b[1:])),
            [bytes([i]) + targets.LISTS[s].encode() for i, s in enumerate(suffixes)],
        )
    if name == "images":
        return targets.read_image, [*targets.IMAGES.values()]
    if name == "shards":  # three in four with correct checksums
        return (
            lambda folder, b: targets.read_shard(folder, (b[0] % 4 > 0, b[1:])),
            [bytes([i]) + targets.SHARD for i in range(4)],
        )
    if name == "checkpoints":
        return (
            lambda folder, b: targets.load_bytes(folder, (b[0] % 8 > 0, b[1:])),
            [b"\1" + targets.checkpoint_bytes(folder)],
        )
    return (
        lambda folder, b: targets.load_bytes(folder, (True, targets.with_pickle(folder, b))),
        [targets.checkpoint_pickle(folder)],
    )


def fuzz_here(name: str, runs: int, scratch: str, seed: int) -> None:
    """Run a target on a number of inputs, and exit."""
    import atheris

    sys.modules.pop("tarfile", None)  # it was imported without instrumentation
    with atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
        import fuzz_targets as targets
    if "checkpoints" in name:
        with atheris.instrument_imports(include=["torch"]):
            importlib.reload(sys.modules["torch._weights_only_unpickler"])

    folder, corpus, work = (Path(scratch, name) for name in ("seeds", "corpus", "work"))
    for path in (folder, corpus, work):
        path.mkdir()
    read, seeds = target_of(name, targets, work)
    for number, content in enumerate(seeds):
        (folder / str(number)).write_bytes(content)
    words = Path(scratch, "words")
    words.write_text(
        "".join('"' + "".join(f"\\x{b:02x}" for b in t.encode()) + '"\n' for t in TOKENS)
    )
    outcomes: Counter[str] = Counter()
    findings: dict[str, bytes] = {}

    def check(content: bytes) -> None:
        try:
            outcomes[targets.outcome(read, work, content or b"\0")] += 1
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            outcomes["finding"] += 1
            findings.setdefault(
                f"{type(error).__name__} at {frame.filename}:{frame.lineno}: {str(error)[:200]!r}",
                content,
            )
        if outcomes.total() == runs:
            _finish(Path(scratch), outcomes, findings, len([*corpus.iterdir()]))

    atheris.Setup(
        [sys.argv[0], str(corpus), str(folder), f"-seed={seed}", f"-dict={words}",
         f"-artifact_prefix={scratch}/", f"-max_len={2 * max(map(len, seeds))}",
         "-timeout=120", "-rss_limit_mb=4096"],
        check,
    )  # fmt: skip
    atheris.Fuzz()


def _finish(scratch: Path, outcomes: Counter[str], findings: dict[str, bytes], corpus: int) -> None:
    for number, content in enumerate(findings.values()):
        (scratch / f"finding-{number}").write_bytes(content)
    result = {"outcomes": outcomes.most_common(), "findings": [*findings], "corpus": corpus}
    (scratch / "result.json").write_text(json.dumps(result))
    os._exit(0)  # atheris.Fuzz does not return


if __name__ == "__main__":
    if os.environ.get("FUZZ_ATHERIS") == "child":
        fuzz_here(**json.load(sys.stdin))
    else:
        main()
