"""Kinds of files that are not supported as images, and how to convert them."""

from __future__ import annotations

from pathlib import Path

from PIL import features

HEIC, AVIF, RAW = "a HEIC image", "an AVIF image", "a camera's RAW image"
JPEG_XL, JPEG_2000 = "a JPEG XL image", "a JPEG 2000 image"
LFS = "a Git LFS pointer, a line of text in place of the file"
ANNEX = "a git-annex pointer, a line of text in place of the file"
PAGE = "a web page, possibly the error page of a failed download"
JPEG = "a JPEG that is damaged or of a kind that isn't read"
TIFF = "a TIFF that is damaged or of a kind that isn't read"

AVIF_IS_READ = "avif" in features.modules and bool(features.check("avif"))
"""True if this Pillow decodes AVIF."""

_SUFFIXES = {
    HEIC: (".heic", ".heif", ".hif"),
    JPEG_XL: (".jxl",),
    JPEG_2000: (".jp2", ".j2k", ".jpx"),
    RAW: (".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".rw2", ".srw"),
    "a Photoshop image": (".psd",),
    "a DICOM image": (".dcm",),
} | ({} if AVIF_IS_READ else {AVIF: (".avif", ".avifs")})
_BY_SUFFIX = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes}

# By the first bytes; files of the ISO base media format by their brand, at offset 8.
_STARTS = (
    (b"version https://git-lfs", LFS),
    (b"/annex/objects/", ANNEX),
    (b"\xff\x0a", JPEG_XL),
    (b"\0\0\0\x0cJXL ", JPEG_XL),
    (b"\0\0\0\x0cjP  ", JPEG_2000),
    (b"\xff\x4f\xff\x51", JPEG_2000),
    (b"FUJIFILMCCD-RAW", RAW),
    (b"8BPS", "a Photoshop image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\xff\xd8\xff", JPEG),
    (b"II*\0", TIFF),
    (b"MM\0*", TIFF),
    (b"II+\0", TIFF),
    (b"MM\0+", TIFF),
    (b"IIRO", RAW),
    (b"IIU\0", RAW),
)
_BRANDS = {
    b"avif": AVIF,
    b"avis": AVIF,
    b"crx ": RAW,
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1"), HEIC),
}
_PAGES = (b"<!doctype html", b"<html")

HEAD = 128
"""Number of first bytes that identify the kind of a file."""


def kind_of_name(name: str) -> str:
    """Return the kind of a file by its extension; empty if unknown."""
    base, dot, suffix = name.rpartition(".")
    return _BY_SUFFIX.get(f".{suffix.lower()}", "") if base and dot else ""


def kind_of_head(head: bytes) -> str:
    """Return the kind of a file by its first bytes; empty if unknown."""
    if head[:2] in (b"II", b"MM") and head[8:10] == b"CR":
        return RAW
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "")
    if head.lstrip().lower().startswith(_PAGES):
        return PAGE
    return next((kind for start, kind in _STARTS if head.startswith(start)), "")


def way_out(kind: str) -> str:
    """Return how to convert a file of this kind."""
    if kind == LFS:
        return "fetch it with `git lfs pull`"
    if kind == ANNEX:
        return "fetch it with `git annex get`"
    if kind == PAGE:
        return "download it again"
    if kind in (JPEG, TIFF):
        return f"save it as usual, with 8 {'or 16 ' if kind == TIFF else ''}bits for each channel"
    return "convert it to JPEG or PNG"


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file; empty if it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD)
    except OSError:
        return b""


def named_kind(head: bytes) -> str:
    """Return the kind of a file by its first bytes and how to convert it; empty if unknown."""
    kind = kind_of_head(head)
    return f"{kind}; {way_out(kind)}" if kind else ""
