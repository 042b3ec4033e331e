"""Create a data set of photographs and drawings from the stamps of Debian's Tux Paint.

    python benchmarks/stamps.py things|fine OUTPUT [--stamps DIR] [--cache DIR]

    OUTPUT/<class>/<name>.png     a copy of the file; its name has its folders

`things` has 7 classes, top folders of the stamps; `fine` has 11, most of them folders in these. The
PNG files of a folder and those below it are its class. Unless the package is installed, or
``--stamps`` given, it is downloaded to the cache (160 MB) and unpacked there, which needs
``apt-get``, ``dpkg-deb`` and a network; not root.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "tuxpaint-stamps-default"
STAMPS = Path("usr/share/tuxpaint/stamps")
"""Folder of the stamps in the package."""

SETS = {
    "things": ("animals", "food", "household", "plants", "seasonal", "town", "vehicles"),
    "fine": (
        *("animals/mammals", "animals/birds", "animals/insects", "animals/fish"),
        *("food/fruit", "food/vegetables", "plants/flowers", "town/houses", "town/roadsigns"),
        *("symbols/money", "household/tools"),
    ),
}
"""Folders by data set; the last part of each is the name of its class."""


def fetch(cache: Path) -> Path:
    """Download and unpack the package, unless the cache has it; return the folder of the stamps."""
    cache.mkdir(parents=True, exist_ok=True)
    if not list(cache.glob(f"{PACKAGE}_*.deb")):
        command = ["apt-get", "download", PACKAGE]
        download = subprocess.run(command, cwd=cache, capture_output=True, text=True)
        if download.returncode:
            last = (download.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise SystemExit(f"apt-get download: {last}; check the network, run `apt-get update`")
    archive = max(cache.glob(f"{PACKAGE}_*.deb"))
    folder = cache / "unpacked" / archive.stem
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
    return folder / STAMPS


def copy(stamps: Path, folders: Sequence[str], output: Path) -> dict[str, int]:
    """Copy the images of each folder; return their number by class."""
    counts = {}
    for folder in folders:
        target = output / Path(folder).name
        target.mkdir(parents=True)
        images = sorted((stamps / folder).rglob("*.png"))
        for image in images:
            name = "_".join(image.relative_to(stamps / folder).parts)
            shutil.copyfile(image, target / name)
        counts[target.name] = len(images)
    return counts


def main(arguments: Sequence[str] | None = None) -> None:
    """Create the data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=SETS, help="name of the data set")
    parser.add_argument("output", type=Path, help="new folder for the images")
    parser.add_argument("--stamps", type=Path, help="folder of the stamps")
    default = Path.home() / ".cache" / "ssl-toolkit" / "stamps"
    parser.add_argument("--cache", type=Path, default=default, help="folder for the package")
    options = parser.parse_args(arguments)
    if options.output.exists():
        raise SystemExit(f"{options.output} already exists; choose another folder")
    installed = Path("/") / STAMPS
    stamps = options.stamps or (installed if installed.is_dir() else fetch(options.cache))
    if absent := [folder for folder in SETS[options.set] if not (stamps / folder).is_dir()]:
        raise SystemExit(f"{stamps}: has no folder {absent[0]}; give that of {PACKAGE}")
    counts = copy(stamps, SETS[options.set], options.output)
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(f"{sum(counts.values())} images: {listed}")


if __name__ == "__main__":
    main()
