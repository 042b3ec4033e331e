#!/usr/bin/env python3
# ruff: noqa
"""Make the small input files for the cases in README.md (numpy + Pillow only).

  make_cases.py OUT [--labeled NAME] [--unlabeled NAME] [--test NAME] [--ep-group GROUP]

Each case gets OUT/cNN_name/ with an EXPECT.json that holds the facts a check can read.
All images are drawn here from seeded noise; nothing is downloaded. Total size is under 5 MB.
"""

import argparse, json, os, pickle, shutil, struct, zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

ap = argparse.ArgumentParser()
ap.add_argument("out")
ap.add_argument("--labeled", default="labeled")
ap.add_argument("--unlabeled", default="unlabeled")
ap.add_argument("--test", default="test")
ap.add_argument("--ep-group", default="ssl_toolkit.algorithms")
A = ap.parse_args()
OUT = Path(A.out)
L, U, T = A.labeled, A.unlabeled, A.test
COLORS = [
    (200, 40, 40),
    (40, 180, 60),
    (50, 70, 210),
    (210, 200, 50),
    (180, 60, 190),
    (60, 190, 190),
]
_serial = 0


def pic(cls, size=(32, 32)):
    """A unique, easily told class image: class color plus coarse noise (compresses well)."""
    global _serial
    _serial += 1
    rng = np.random.default_rng(1000 + _serial)
    base = np.array(COLORS[cls % len(COLORS)])
    a = np.clip(base + rng.integers(-35, 36, (8, 8, 3)), 0, 255).astype(np.uint8)
    return Image.fromarray(a).resize(size, Image.NEAREST)


def texture(w=48, h=32, seed=0):
    """Not symmetric under any flip or turn, so a missed rotation shows."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 90, (h // 4, w // 4, 3))
    a[: h // 8, : w // 8] += 160
    a[-1, :, 0] += 120
    return Image.fromarray(np.clip(a, 0, 255).astype(np.uint8)).resize((w, h), Image.NEAREST)


def put(im, path, **kw):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    im.save(path, **kw)
    return path


def raw(path, data):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def base(root, classes="abcd", lab=4, unl=12, test=3, size=(32, 32)):
    """labeled/<class>/img_i.png, unlabeled/u_i.png (flat), test/<class>/t_i.png"""

    def n(x, k):
        return x[k] if isinstance(x, (list, tuple)) else x

    for k, c in enumerate(classes):
        (root / L / c).mkdir(parents=True, exist_ok=True)
        for i in range(n(lab, k)):
            put(pic(k, size), root / L / c / f"img_{i}.png")
        for i in range(n(test, k)):
            put(pic(k, size), root / T / c / f"t_{i}.png")
    for i in range(unl):
        put(pic(i % len(classes), size), root / U / f"u_{i:03d}.png")
    return root


def expect(root, **facts):
    root.mkdir(parents=True, exist_ok=True)
    (root / "EXPECT.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False), "utf-8")


def jpeg_bytes(im):
    import io

    b = io.BytesIO()
    im.save(b, "JPEG", quality=90)
    return b.getvalue()


def case(name):
    return OUT / name


if OUT.exists():
    if any(OUT.iterdir()) and not (OUT / "c00_base" / "EXPECT.json").exists():
        raise SystemExit(f"{OUT} is not empty and was not made by this script")
    shutil.rmtree(OUT)
OUT.mkdir(parents=True)

# c00: the clean data set that most cases start from
r = base(case("c00_base"))
expect(r, classes=list("abcd"), labeled=16, unlabeled=12, test=12)

# c02: side files that no user thinks of as data
r = base(case("c02_side_files"))
adouble = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + b"\0" * 60
for d in (r, r / L, r / L / "a", r / U, r / T / "b"):
    raw(d / ".DS_Store", b"\0\0\0\1Bud1" + b"\0" * 64)
    raw(d / "Thumbs.db", b"\xd0\xcf\x11\xe0" + b"\0" * 64)
    raw(d / "._img_0.png", adouble)
raw(r / L / "a" / "notes.txt", b"labels by hand\n")
raw(r / U / "list.csv", b"file\nu_000.png\n")
expect(r, classes=list("abcd"), labeled=16, unlabeled=12, test=12)

# c04: all eight EXIF orientations with an upright twin that holds the very same pixels
r = base(case("c04_exif"))
pairs = []
for o in range(1, 9):
    ex = Image.Exif()
    ex[0x0112] = o
    j = put(texture(), r / "predict" / f"o{o}.jpg", quality=95, exif=ex)
    put(ImageOps.exif_transpose(Image.open(j)).convert("RGB"), r / "predict" / f"o{o}_twin.png")
    pairs.append([f"o{o}.jpg", f"o{o}_twin.png"])
expect(r, same_prediction=pairs)

# c05: color modes, each with the RGB twin
r = base(case("c05_modes"))
t = texture(32, 32, 5)
g = t.convert("L")
d = r / "predict"
put(t.convert("CMYK"), d / "cmyk.jpg", quality=95)
put(g, d / "gray.png")
put(g.convert("LA"), d / "la.png")
put(g.point(lambda v: 255 * (v > 60)).convert("1"), d / "onebit.png")
put(t.quantize(16), d / "palette.png")
put(t.convert("RGBA"), d / "rgba_opaque.png")
pal = t.quantize(16)
put(pal, d / "palette_clear.png", transparency=0)
half = t.convert("RGBA")
half.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, 32).astype(np.uint8), (32, 1))))
put(half, d / "rgba_half.png")
twins = []
for n in ("cmyk.jpg", "gray.png", "la.png", "onebit.png", "palette.png", "rgba_opaque.png"):
    tw = n.split(".")[0] + "_twin.png"
    put(Image.open(d / n).convert("RGB"), d / tw)
    twins.append([n, tw])
put(t.convert("CMYK"), r / L / "a" / "cmyk.jpg")
put(g.convert("LA"), r / L / "b" / "la.png")
put(pal, r / U / "pal.png", transparency=0)
expect(
    r,
    same_prediction=twins,
    must_not_crash=["palette_clear.png", "rgba_half.png"],
    labeled=18,
    unlabeled=13,
    test=12,
)

# c06: extensions and odd sizes
r = base(case("c06_ext_sizes"))
a = r / L / "a"
put(pic(0), a / "CAM1.JPG", format="JPEG")
put(pic(0), a / "CAM2.JPEG", format="JPEG")
put(pic(0), a / "SCAN.PNG", format="PNG")
put(pic(0), a / "x.bmp")
put(pic(0), a / "x.tif")
put(pic(0), a / "x.webp", lossless=True)
put(pic(0), a / "two.dots.v2.png")
put(pic(0).convert("P"), a / "x.gif", save_all=True, append_images=[pic(1).convert("P")])
put(pic(0, (1, 1)), r / U / "one_px.png")
put(pic(1, (2000, 3)), r / U / "wide.png")
put(pic(2, (3, 2000)), r / U / "tall.png")
put(pic(3, (33, 31)), r / U / "odd.png")
p = put(pic(0), a / "noext.png")
p.rename(a / "noext")
expect(
    r,
    labeled_a=[
        "img_0..3",
        "CAM1.JPG",
        "CAM2.JPEG",
        "SCAN.PNG",
        "x.bmp",
        "x.tif",
        "x.webp",
        "two.dots.v2.png",
    ],
    labeled_without_gif=23,
    labeled_with_gif=24,
    unlabeled=16,
    if_skipped_must_be_named=["x.gif", "noext"],
)

# c07: PNG whose header claims 60000 x 60000 pixels
r = base(case("c07_bomb"))


def chunk(tag, data):
    return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))


raw(
    r / U / "huge.png",
    b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 0, 0, 0, 0))
    + chunk(b"IDAT", zlib.compress(b"\0" * 5000))
    + chunk(b"IEND", b""),
)
expect(r, bad=[f"{U}/huge.png"], unlabeled_good=12)

# c09: tool folders are not classes
r = base(case("c09_tool_folders"))
put(pic(0), r / L / ".ipynb_checkpoints" / "img_0-checkpoint.png")
put(pic(0), r / L / "a" / ".ipynb_checkpoints" / "img_0-checkpoint.png")
raw(r / L / ".git" / "HEAD", b"ref: x\n")
raw(r / L / "__MACOSX" / "._img_0.png", adouble)
expect(r, classes=list("abcd"), labeled=16)

# c11: numeric class names, name order and number order differ
r = base(case("c11_numeric_names"), classes=["1", "2", "10", "20"], lab=8)
expect(
    r,
    classes_sorted_as_text=["1", "10", "2", "20"],
    color_of={"1": "red", "2": "green", "10": "blue", "20": "yellow"},
)

# c12: the same unlabeled images flat, and nested under misleading class names
r = base(case("c12_unlabeled_flat"), unl=12)
r2 = case("c12b_unlabeled_nested")
shutil.copytree(r, r2)
for i, f in enumerate(sorted((r2 / U).iterdir())):
    dst = r2 / U / ("d" if i % 2 else "zz/deep")
    dst.mkdir(parents=True, exist_ok=True)
    f.rename(dst / f.name)
expect(r, unlabeled=12)
expect(
    r2,
    unlabeled=12,
    classes=list("abcd"),
    note="folder names under the unlabeled split must not be read as labels or classes",
)

# c13: names
names = ["caf\u00e9", "\u540d\u524d", "\U0001f600 cat", "two words", "-dash", "[red]bracket"]
r = base(case("c13_names"), classes=names, lab=2, unl=6, test=1)
put(pic(0), r / U / "\u00fcber \u00e9t\u00e9 (1).png")
expect(r, classes=names, unlabeled=7)

# c14: links
r = base(case("c14_links"))
os.symlink("..", r / U / "loop")
os.symlink("nowhere.png", r / U / "gone.png")
os.symlink(os.path.join("..", "..", U, "u_000.png"), r / L / "a" / "linked.png")
expect(r, labeled=17, unlabeled=12, must_name="gone.png", max_seconds_to_scan=10)

# c16: labeled images also in the unlabeled pool (a normal set-up in the FixMatch paper)
r = base(case("c16_labeled_in_unlabeled"))
for f in sorted((r / L).rglob("*.png")):
    shutil.copy(f, r / U / f"L_{f.parent.name}_{f.name}")
expect(r, labeled=16, unlabeled_with=28, unlabeled_without=12)

# c17: single pool for --labels-per-class; long tail
r = case("c17_pool")
for k, (c, n) in enumerate({"a": 10, "b": 10, "c": 1, "d": 2}.items()):
    for i in range(n):
        put(pic(k), r / c / f"{i}.png")
expect(r, counts={"a": 10, "b": 10, "c": 1, "d": 2}, ask_labels_per_class=4, must_name=["c", "d"])
r = base(case("c17b_long_tail"), lab=[24, 6, 2, 1], unl=20, test=[18, 1, 1, 0])
expect(
    r,
    counts=[24, 6, 2, 1],
    constant_predictor_index=0,
    accuracy=0.9,
    balanced_accuracy_over_present=round(1 / 3, 4),
)

# c19: the last batch holds one image
r = base(case("c19_last_batch_one"), classes="ab", lab=[3, 2], unl=9, test=[3, 2])
expect(r, labeled=5, unlabeled=9, batch=4)

# c22: exact metric values over two processes, with a constant predictor
r = base(case("c22_metric_two_procs"), classes="ab", test=[7, 4])
expect(
    r,
    test=11,
    processes=2,
    constant_predictor_index=0,
    accuracy=round(7 / 11, 6),
    wrong_if_padded=[round(8 / 12, 6), round(7 / 12, 6)],
)

# c37/c38: YAML
r = case("c37_yaml")
r.mkdir()
Y = {
    "typo.yaml": "algo: fixmatch\nlerning_rate: 0.1\n",
    "typo_nested.yaml": "algo: fixmatch\nfixmatch:\n  treshold: 0.95\n",
    "dup.yaml": "algo: fixmatch\nlr: 0.1\nsteps: 1\nlr: 0.0001\n",
    "norway.yaml": "algo: fixmatch\nclasses: [no, yes, on, 001, 1e3]\n",
    "off.yaml": "algo: fixmatch\nema: off\n",
    "boolword.yaml": 'algo: fixmatch\nema: "no"\n',
}
for n, s in Y.items():
    (r / n).write_text(s, "utf-8")
expect(
    r,
    must_fail_naming={
        "typo.yaml": "lerning_rate",
        "typo_nested.yaml": "treshold",
        "dup.yaml": "lr",
    },
)


# c40: fake installed plug-ins; put the folder on PYTHONPATH, no pip needed
def dist(folder, name, eps, module, source):
    raw(folder / f"{module}.py", source.encode())
    di = folder / f"{module}-1.0.dist-info"
    raw(di / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode())
    raw(di / "entry_points.txt", f"[{A.ep_group}]\n{eps}\n".encode())
    raw(di / "RECORD", b"")


r = case("c40_same_name")
dist(r, "one-pkg", "fixmatch = one_pkg:Algo", "one_pkg", "class Algo: pass\n")
dist(r, "two-pkg", "twice = two_pkg:Algo", "two_pkg", "class Algo: pass\n")
dist(r, "three-pkg", "twice = three_pkg:Algo", "three_pkg", "class Algo: pass\n")
expect(
    r,
    group=A.ep_group,
    clashes={"fixmatch": ["the built-in", "one-pkg"], "twice": ["two-pkg", "three-pkg"]},
)

total = sum(f.lstat().st_size for f in OUT.rglob("*") if f.is_file() and not f.is_symlink())
count = sum(1 for f in OUT.rglob("*") if f.is_file())
print(f"{len(list(OUT.iterdir()))} case folders, {count} files, {total / 1e6:.2f} MB under {OUT}")
