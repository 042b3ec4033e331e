"""Images of letters and figures, A to Z and 0 to 9, in hundreds of typefaces of Debian's.

    python benchmarks/glyphs.py OUTPUT [--cache DIR] [--size 16] [--classes ABC…]

Needs ``apt-get``, ``dpkg-deb`` and a network the first time; no root. The packages named below are
fetched by name into the cache and unpacked there. OUTPUT becomes a folder for ``--data``:

    OUTPUT/{train,val,test}/<class>/<typeface>.png     gray, one glyph an image
    OUTPUT/typefaces.csv                               split, typeface, file, package, version

Typefaces, not images, are split: 70 % train, 10 % validation, 20 % test, by the hash of their
name, so that a typeface stays where it is when others are added. Of a family one file is taken, its
regular style where there is one. Families are told apart by the first word of their name, and one
that looks the same as an earlier one (some are cuts of one design) is left out. So are fonts
without all the glyphs, and symbols: those of which the mean images of the other typefaces name
fewer than a quarter. Images depend on the packages' versions and on Pillow's FreeType alone.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import re
import string
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import PIL
from PIL import Image, ImageDraw, ImageFont

CLASSES = string.ascii_uppercase + string.digits
SIZE = 16
PARTS = (("train", 0.7), ("val", 0.8), ("test", 1.0))
"""Each split with the share of the hashes below which a typeface belongs to it."""
SAME = 0.04
"""Mean difference of all pixels (0 to 1) below which two typefaces look the same."""
READABLE = 0.25
"""Share of a typeface's glyphs that the mean images of all must name."""
FACE = 96
"""Height in pixels at which a glyph is drawn before it is scaled down."""

PACKAGES = """
adf-accanthis adf-baskervald adf-berenis adf-gillius adf-ikarius adf-irianis adf-libris adf-mekanus
adf-oldania adf-romande adf-solothurn adf-switzera adf-tribun adf-universalis adf-verana aenigma
agave allerta anonymous-pro apropal arapey averia-serif-gwf b612 babelstone-modern bajaderka
bebas-neue beteckna blankenburg breip bwht cabin cabinsketch cantarell century-catalog cherrybomb
clear-sans comfortaa comic-neue compagnon courier-prime crosextra-caladea crosextra-carlito
dancingscript dejavu-core dkg-handwriting dosis dustin ecolier-court elstob engadget essays1743
eurofurence f500 fantasma fantasque-sans fanwood femkeklaver ferrite-core gamaliel georgewilliams
gfs-artemisia gnutypewriter go goudybookletter hack havana hermit humor-sans inconsolata isabella
jetbrains-mono joscelyn junction junicode jura karla kaushanscript klaudia-berenika kristi lato
le-murmure league-mono leckerli-one levien-museum levien-typoscript liberation lindenhill linex
linuxlibertine lmodern lobstertwo manrope millimeter monofur mononoki national-park ocr-a ocr-b
okolaks oldstandard open-sans opendin opendyslexic osifont oxygen paratype play prociono
quattrocento quicksand radisnoir roboto-slab routed-gothic rufscript sil-andika sil-charis
sil-gentium-basic sjfonts sora staypuft stix summersby tiresias tomsontalks tuffy ubuntu-title
urw-base35 vollkorn yanone-kaffeesatz yrsa-rasa
"""
"""Debian's, each ``fonts-<name>``."""

PLAIN_STYLES = ("regular", "normal", "roman", "book", "plain", "medium", "")


@dataclass(frozen=True)
class Typeface:
    """One family, by one of its files, with its images."""

    name: str
    """Of the family, as a file name."""
    file: Path
    package: str
    version: str
    glyphs: np.ndarray
    """(classes, size, size) uint8, ink white on black."""


def fetch(cache: Path, packages: Sequence[str]) -> list[tuple[str, str, Path]]:
    """Download and unpack what the cache lacks: name, version and folder of each package."""
    cache.mkdir(parents=True, exist_ok=True)
    names = [f"fonts-{package}" for package in packages]
    if missing := [name for name in names if not list(cache.glob(f"{name}_*.deb"))]:
        told = subprocess.run(
            ["apt-get", "download", *missing], cwd=cache, capture_output=True, text=True
        )
        if told.returncode:
            last = (told.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise SystemExit(f"apt-get download: {last}; is there a network, `apt-get update` run?")
    unpacked = []
    for name in names:
        archive = max(cache.glob(f"{name}_*.deb"))
        folder = cache / "unpacked" / archive.stem
        if not folder.exists():
            folder.parent.mkdir(exist_ok=True)
            subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
        unpacked.append((name, unquote(archive.stem.split("_")[1]), folder))
    return unpacked


def draw(font: ImageFont.FreeTypeFont, character: str, size: int = SIZE) -> np.ndarray | None:
    """A glyph scaled to fill the image but for a margin of one pixel; None if it has no ink.

    Args:
        font: at `FACE` pixels or so.
        character: to draw.
        size: side of the image.

    Returns:
        (size, size) uint8, ink white on black, its shape kept and centered.
    """
    left, top, right, bottom = (int(edge) for edge in font.getbbox(character))
    if not (0 < right - left < 20 * FACE and 0 < bottom - top < 20 * FACE):
        return None
    ink = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(ink).text((-left, -top), character, fill=255, font=font)
    box = ink.getbbox()
    if box is None:
        return None
    ink = ink.crop(box)
    scale = (size - 2) / max(ink.size)
    width, height = (max(1, round(scale * side)) for side in ink.size)
    ink = ink.resize((width, height), Image.Resampling.BOX)
    image = Image.new("L", (size, size))
    image.paste(ink, ((size - width) // 2, (size - height) // 2))
    return np.asarray(image)


def glyphs(
    font: ImageFont.FreeTypeFont, size: int = SIZE, classes: str = CLASSES
) -> np.ndarray | None:
    """A glyph of each class, (classes, size, size) uint8; None if one is missing.

    A missing glyph is drawn as the font's box for unknown characters, the same for all, so two
    equal images tell it. Letters and figures that are one shape by design (O and 0) may be equal.
    """
    drawn = [draw(font, character, size) for character in classes]
    images = [image for image in drawn if image is not None]
    if len(images) < len(classes):
        return None
    distinct = {image.tobytes() for image in images}
    unknown = draw(font, "\U0010fffd", size)
    if len(distinct) < len(classes) - 2:
        return None
    if unknown is not None and unknown.tobytes() in distinct:
        return None
    return np.stack(images)


def family(name: str) -> str:
    """What the members of a family have in common: the first word of their name, in lower case."""
    words = re.findall(r"[a-z0-9']+", name.lower())
    return words[0] if words else ""


def files_by_family(folders: Iterable[tuple[str, str, Path]]) -> dict[str, tuple[Path, str, str]]:
    """The plainest file of each family, with its package and version, by the family's name."""
    found: dict[str, tuple[tuple[int, int, str], Path, str, str]] = {}
    for package, version, folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() not in (".ttf", ".otf") or path.is_symlink():
                continue
            try:
                name, style = ImageFont.truetype(str(path), FACE).getname()
            except OSError:
                continue
            key, name, style = family(name or ""), name or "", (style or "").lower()
            plain = PLAIN_STYLES.index(style) if style in PLAIN_STYLES else len(PLAIN_STYLES)
            rank = (plain, len(name), path.name)
            if key and (key not in found or rank < found[key][0]):
                found[key] = (rank, path, package, version)
    kept: dict[str, tuple[Path, str, str]] = {}
    for key in sorted(found):
        # OCRA, OCRABold and OCRACondensed are a family whose names have no spaces.
        if not any(len(other) > 3 and key.startswith(other) for other in kept):
            kept[key] = found[key][1:]
    return kept


def typefaces(
    files: dict[str, tuple[Path, str, str]], size: int = SIZE, classes: str = CLASSES
) -> list[Typeface]:
    """Those with all glyphs that are readable and look like none before."""
    complete = []
    for name, (path, package, version) in files.items():
        images = glyphs(ImageFont.truetype(str(path), FACE), size, classes)
        if images is not None:
            complete.append(Typeface(name, path, package, version, images))
    stack = np.stack([typeface.glyphs for typeface in complete]).astype(np.float32) / 255
    right = readable_share(stack)
    kept: list[int] = []
    for i in np.flatnonzero(right >= READABLE):
        if all(np.abs(stack[i] - stack[j]).mean() >= SAME for j in kept):
            kept.append(int(i))
    return [complete[i] for i in kept]


def readable_share(stack: np.ndarray) -> np.ndarray:
    """(F, C, S, S) to (F,): share of each typeface's C glyphs most like their class's mean image.

    Likeness is correlation, so that thin strokes count as thick ones do; the mean is over the
    other typefaces.
    """
    flat = _centered(stack.reshape(*stack.shape[:2], -1))
    total = flat.sum(axis=0)
    shares = []
    for own in flat:
        likeness = own @ _centered(total - own).T
        shares.append((likeness.argmax(axis=1) == np.arange(len(own))).mean())
    return np.array(shares)


def _centered(rows: np.ndarray) -> np.ndarray:
    """Rows of mean 0 and length 1."""
    rows = rows - rows.mean(axis=-1, keepdims=True)
    return np.asarray(rows / (np.linalg.norm(rows, axis=-1, keepdims=True) + 1e-9))


def part(name: str) -> str:
    """The split of a typeface, by the hash of its name."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
    return next(part for part, end in PARTS if share < end)


def write(found: Sequence[Typeface], output: Path, classes: str = CLASSES) -> None:
    """The images in folders of classes, and the list of what they were made from."""
    for typeface in found:
        for character, image in zip(classes, typeface.glyphs, strict=True):
            folder = output / part(typeface.name) / character
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{typeface.name}.png")
    with (output / "typefaces.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["split", "typeface", "file", "package", "version"])
        for t in found:
            table.writerow([part(t.name), t.name, t.file.name, t.package, t.version])


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the set."""
    parser = argparse.ArgumentParser(description="images of letters in hundreds of typefaces")
    parser.add_argument("output", type=Path, help="new folder for the images")
    default = Path.home() / ".cache" / "ssl-toolkit" / "fonts"
    parser.add_argument("--cache", type=Path, default=default, help="folder for the packages")
    parser.add_argument("--size", type=int, default=SIZE, help="side of an image in pixels")
    parser.add_argument("--classes", default=CLASSES, help="letters or figures to draw")
    given = parser.parse_args(arguments)
    if not given.classes.isalnum() or len(set(given.classes)) < len(given.classes):
        raise SystemExit(f"--classes {given.classes}: each letter or figure once, nothing else")
    if given.output.exists():
        raise SystemExit(f"{given.output}: exists; name a new folder")
    files = files_by_family(fetch(given.cache, PACKAGES.split()))
    found = typefaces(files, given.size, given.classes)
    write(found, given.output, given.classes)
    counts = {name: sum(part(t.name) == name for t in found) for name, _ in PARTS}
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{len(found)} typefaces ({told}), {len(found) * len(given.classes):,} images")
    print(f"Pillow {PIL.__version__}, Python {sys.version.split()[0]}; see typefaces.csv")


if __name__ == "__main__":
    main()
