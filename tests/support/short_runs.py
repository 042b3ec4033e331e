"""Short runs on the digits data: configuration, metrics and a function that stops them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ssl_toolkit.config.loading import Layer, validate

SHORT = {"steps": 6, "eval_every": 3, "batch_size": 8, "device": "cpu"}


def configure(**keys: Any) -> Any:
    return validate([Layer("test", SHORT | {"algo": "supervised"} | keys)])


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return rows of metrics without timings."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("seconds", "images_per_second")}
        for line in lines
    ]


def stop_after(steps: int) -> Any:
    calls = iter(range(1, 1000))
    return lambda *_: "SIGTERM" if next(calls) == steps else ""
