"""Create a data set of the letters A to Z and digits 0 to 9 in hundreds of Debian's typefaces.

    python benchmarks/glyphs.py OUTPUT [--cache DIR] [--size 16] [--classes ABC…]

Needs ``apt-get``, ``dpkg-deb`` and, the first time, a network; not root. The packages listed below
are downloaded to the cache and unpacked there. OUTPUT is a folder for ``--data``:

    OUTPUT/{train,val,test}/<class>/<typeface>.png     grayscale, one glyph per image
    OUTPUT/typefaces.csv                               split, typeface, file, package, version

The split is by typeface: 70 % train, 10 % validation, 20 % test, by the hash of the name, so that
adding typefaces does not move others to another split. Each family contributes one file, the
regular style if it has one; the first word of a name identifies the family. Excluded are families
that look like an earlier one, fonts that lack a glyph, and symbol fonts: those of whose glyphs less
than a quarter are most similar to the mean image of the right class, computed from the other
typefaces. The images depend only on the versions of the packages and of Pillow's FreeType.
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
"""Splits, each with the upper bound of its hashes, scaled to [0, 1]."""
DUPLICATE_BELOW = 0.04
"""Mean absolute difference of pixels (0 to 1) below which two typefaces count as duplicates."""
MIN_READABLE = 0.25
"""Minimum share of glyphs classified correctly by the mean images of the other typefaces."""
FACE = 96
"""Font size in pixels at which a glyph is drawn before it is scaled down."""

PACKAGES = """
adf-accanthis adf-baskervald adf-berenis adf-gillius adf-ikarius adf-irianis adf-libris adf-mekanus
adf-oldania adf-romande adf-solothurn adf-switzera adf-tribun adf-universalis adf-verana aenigma
agave allerta anonymous-pro apropal arapey averia-serif-gwf b612 babelstone-modern bajaderka
bebas-neue beteckna blankenburg breip bwht cabin cabinsketch cantarell cherrybomb
clear-sans comfortaa comic-neue compagnon courier-prime crosextra-caladea crosextra-carlito
dancingscript dejavu-core dkg-handwriting dosis dustin ecolier-court elstob engadget essays1743
eurofurence f500 fantasma fantasque-sans fanwood femkeklaver ferrite-core gamaliel georgewilliams
gfs-artemisia gnutypewriter go goudybookletter hack havana hermit humor-sans inconsolata isabella
jetbrains-mono joscelyn junction junicode jura karla kaushanscript klaudia-berenika kristi lato
le-murmure league-mono leckerli-one levien-museum levien-typoscript liberation lindenhill linex
linuxlibertine lmodern lobstertwo manrope monofur mononoki national-park ocr-a ocr-b
okolaks oldstandard open-sans opendin opendyslexic osifont oxygen paratype play prociono
quattrocento quicksand radisnoir roboto-slab routed-gothic rufscript sil-andika sil-charis
sil-gentium-basic sjfonts sora staypuft stix summersby tiresias tomsontalks tuffy ubuntu-title
urw-base35 vollkorn yanone-kaffeesatz yrsa-rasa
"""
"""Debian packages, without the prefix ``fonts-``."""

PLAIN_STYLES = ("regular", "normal", "roman", "book", "plain", "medium", "")


@dataclass(frozen=True)
class Typeface:
    """A family, represented by one font file, with its images."""

    name: str
    """Name of the family, usable as a file name."""
    file: Path
    package: str
    version: str
    glyphs: np.ndarray
    """(classes, size, size) uint8, white on black."""


def fetch(cache: Path, packages: Sequence[str]) -> list[tuple[str, str, Path]]:
    """Download and unpack missing packages; return the name, version and folder of each."""
    cache.mkdir(parents=True, exist_ok=True)
    names = [f"fonts-{package}" for package in packages]
    if missing := [name for name in names if not list(cache.glob(f"{name}_*.deb"))]:
        download = subprocess.run(
            ["apt-get", "download", *missing], cwd=cache, capture_output=True, text=True
        )
        if download.returncode:
            last = (download.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise SystemExit(f"apt-get download: {last}; check the network, run `apt-get update`")
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
    """Draw a glyph, scaled to the image minus a margin of one pixel; None if it is blank.

    Args:
        font: font at a size of about `FACE` pixels.
        character: character to draw.
        size: side of the image in pixels.

    Returns:
        (size, size) uint8, white on black, centered, with the aspect ratio preserved.
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
    """Draw the glyphs of all classes, (classes, size, size) uint8; None if one is missing.

    A font draws the same box for all missing glyphs, so equal images reveal them. Up to two pairs
    may be equal, such as O and 0, which have the same shape in some fonts.
    """
    candidates = [draw(font, character, size) for character in classes]
    images = [image for image in candidates if image is not None]
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
    """Return the family of a font: the first word of its name, in lower case."""
    words = re.findall(r"[a-z0-9']+", name.lower())
    return words[0] if words else ""


def files_by_family(folders: Iterable[tuple[str, str, Path]]) -> dict[str, tuple[Path, str, str]]:
    """Return for each family its plainest file, with package and version."""
    best: dict[str, tuple[tuple[int, int, str], Path, str, str]] = {}
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
            if key and (key not in best or rank < best[key][0]):
                best[key] = (rank, path, package, version)
    files: dict[str, tuple[Path, str, str]] = {}
    for key in sorted(best):
        # OCRA, OCRABold and OCRACondensed are one family, though their names have no spaces.
        if not any(len(other) > 3 and key.startswith(other) for other in files):
            files[key] = best[key][1:]
    return files


def typefaces(
    files: dict[str, tuple[Path, str, str]], size: int = SIZE, classes: str = CLASSES
) -> list[Typeface]:
    """Load the typefaces that have all glyphs, are readable, and are no duplicates."""
    complete = []
    for name, (path, package, version) in files.items():
        images = glyphs(ImageFont.truetype(str(path), FACE), size, classes)
        if images is not None:
            complete.append(Typeface(name, path, package, version, images))
    stack = np.stack([typeface.glyphs for typeface in complete]).astype(np.float32) / 255
    shares = readable_share(stack)
    indices: list[int] = []
    for i in np.flatnonzero(shares >= MIN_READABLE):
        if all(np.abs(stack[i] - stack[j]).mean() >= DUPLICATE_BELOW for j in indices):
            indices.append(int(i))
    return [complete[i] for i in indices]


def readable_share(stack: np.ndarray) -> np.ndarray:
    """Return for each typeface the share of glyphs most similar to the mean image of their class.

    The mean is over the other typefaces. Similarity is the correlation, so that the thickness of
    strokes does not matter. Shapes: (typefaces, classes, size, size) to (typefaces,).
    """
    flat = _centered(stack.reshape(*stack.shape[:2], -1))
    total = flat.sum(axis=0)
    shares = []
    for images in flat:
        similarity = images @ _centered(total - images).T
        shares.append((similarity.argmax(axis=1) == np.arange(len(images))).mean())
    return np.array(shares)


def _centered(rows: np.ndarray) -> np.ndarray:
    """Return the rows scaled to mean 0 and norm 1."""
    rows = rows - rows.mean(axis=-1, keepdims=True)
    return np.asarray(rows / (np.linalg.norm(rows, axis=-1, keepdims=True) + 1e-9))


def part(name: str) -> str:
    """Return the split of a typeface, by the hash of its name."""
    fraction = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
    return next(part for part, end in PARTS if fraction < end)


def write(faces: Sequence[Typeface], output: Path, classes: str = CLASSES) -> None:
    """Write the images to folders of splits and classes, and the table of typefaces."""
    for typeface in faces:
        for character, image in zip(classes, typeface.glyphs, strict=True):
            folder = output / part(typeface.name) / character
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{typeface.name}.png")
    with (output / "typefaces.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["split", "typeface", "file", "package", "version"])
        for t in faces:
            table.writerow([part(t.name), t.name, t.file.name, t.package, t.version])


def main(arguments: Sequence[str] | None = None) -> None:
    """Create the data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="new folder for the images")
    default = Path.home() / ".cache" / "ssl-toolkit" / "fonts"
    parser.add_argument("--cache", type=Path, default=default, help="folder for the packages")
    parser.add_argument("--size", type=int, default=SIZE, help="side of an image in pixels")
    parser.add_argument("--classes", default=CLASSES, help="letters and digits to draw")
    options = parser.parse_args(arguments)
    if not options.classes.isalnum() or len(set(options.classes)) < len(options.classes):
        raise SystemExit(
            f"--classes {options.classes}: expected letters and digits, each at most once"
        )
    if options.output.exists():
        raise SystemExit(f"{options.output} already exists; choose another folder")
    files = files_by_family(fetch(options.cache, PACKAGES.split()))
    faces = typefaces(files, options.size, options.classes)
    write(faces, options.output, options.classes)
    counts = {name: sum(part(t.name) == name for t in faces) for name, _ in PARTS}
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{len(faces)} typefaces ({listed}), {len(faces) * len(options.classes):,} images")
    print(f"Pillow {PIL.__version__}, Python {sys.version.split()[0]}; see typefaces.csv")


if __name__ == "__main__":
    main()
