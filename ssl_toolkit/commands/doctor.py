"""``ssl-toolkit doctor``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ssl_toolkit.commands.options import toolkit_command
from ssl_toolkit.commands.screen import echo_wrapped
from ssl_toolkit.errors import one_line

EXTRAS = {
    "hf": "reads Parquet files, such as those of Hugging Face",
    "onnx": "writes ONNX files (`export --format onnx`)",
    "demo": "adds an example data set and small pre-trained weights, without a download",
    "test": "runs the tests",
    "fuzz": "runs the fuzz tests",
    "peft": "trains LoRA adapters (`lora.rank`)",
    "docs": "builds the documentation site",
    "release": "builds and checks the package",
    "dev": "runs the tests, the formatter and the type checker",
}
"""Purpose of each optional extra; one with the name of a plugin adds that plugin."""


@toolkit_command
def command() -> None:
    """Show versions, devices, caches, optional extras and broken plugins."""
    for topic, text in _findings():
        echo_wrapped(f"{topic + ':':15}{text}", 15)


def _findings() -> Iterator[tuple[str, str]]:
    import torch
    from huggingface_hub.constants import HF_HUB_CACHE

    from ssl_toolkit import registry
    from ssl_toolkit.config.yaml import configs_dir
    from ssl_toolkit.data.sets.local_files import default_root
    from ssl_toolkit.engine.devices import choose_device, describe, native_bfloat16
    from ssl_toolkit.runs.record import versions

    yield "versions", ", ".join(f"{name} {version}" for name, version in versions().items())
    yield "device", f"auto means {describe(choose_device('auto'))}"
    yield "CUDA", f"{torch.cuda.device_count()} device(s)"
    yield "bfloat16", "native on this CPU" if native_bfloat16() else "not native on this CPU"
    yield "OpenMP", f"OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'unset')}"
    yield "configs", _place(configs_dir())
    yield "datasets", _place(default_root())
    yield "weights", _place(Path(HF_HUB_CACHE))
    yield "images", _caches()
    entries = [entry for group in registry.GROUPS for entry in registry.entries(group)]
    attempts = [(entry, *registry.attempt(entry)) for entry in entries]
    broken = [(entry, reason) for entry, _, reason in attempts if reason]
    purposes = EXTRAS | {
        entry.name: f"adds the {entry.group.removesuffix('s')}: {_first_line(plugin)}"
        for entry, plugin, _ in attempts
        if entry.built_in
    }
    for extra, packages in _packages_of_extras().items():
        missing = [name for name in packages if not _installed(name)]
        status = f'not installed: pip install "ssl-toolkit[{extra}]" for {", ".join(missing)}'
        yield f"[{extra}]", f"{purposes.get(extra, '')} ({status if missing else 'installed'})"
    yield "plugins", f"{len(entries)} found, {len(broken)} broken"
    for entry, reason in broken:
        yield "broken", f"{entry.group} {entry.name!r} of {entry.distribution}: {reason}"
    for line in registry.unknown_groups():
        yield "unread", one_line(line)


def _first_line(plugin: type | None) -> str:
    return next(iter(((plugin and plugin.__doc__) or "broken").strip().splitlines())).rstrip(".")


def _packages_of_extras() -> dict[str, list[str]]:
    """Return the packages of each extra, from the metadata of the installed ssl-toolkit."""
    import importlib_metadata

    packages: dict[str, list[str]] = {}
    for line in importlib_metadata.requires("ssl-toolkit") or ():
        match = re.fullmatch(r"([\w.-]+).*\bextra == [\"']([\w-]+)[\"']", line)
        if match and not match[1].startswith("ssl-toolkit"):
            packages.setdefault(match[2], []).append(match[1])
    return packages


def _installed(package: str) -> bool:
    import importlib_metadata

    # One by one, as the metadata of some other package may be damaged.
    try:
        importlib_metadata.version(package)
    except importlib_metadata.PackageNotFoundError:
        return False
    return True


def _place(path: Path) -> str:
    return f"{path} ({'exists' if path.exists() else 'does not exist yet'})"


def _caches() -> str:
    from ssl_toolkit.data.cache import UNUSED_DAYS, VARIABLE, cache_folder

    try:
        root = cache_folder("images")
        sizes = [
            file.stat().st_size
            for folder, _, names in os.walk(root)
            for file in map(Path(folder).joinpath, names)
        ]
    except OSError as error:
        return f"no cache: {error.strerror}"
    return (
        f"{_place(root)}, {sum(sizes) / 2**20:,.0f} MiB of decoded images; an entry not used for "
        f"{UNUSED_DAYS} days is removed when others are written ({VARIABLE}=DIR moves the cache)"
    )
