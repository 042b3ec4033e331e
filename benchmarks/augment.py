"""Rates of the augmenters beside what they replace, on the same images.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/augment.py [--rounds 20] [--threads 2]

112 images of 32 px, 7 strong views of 16. `weak` is held against a bare gather: uint8 images of the
store to normalized float images. `randaugment` is held against PIL's operations on PIL images,
under the same draws (two operations with probability 0.5, then the gray square; neither side crops
or mirrors, and PIL's images aren't made into tensors). `fixed` is held against the pipeline of
kornia, given the same draws. Each round runs every way five times, in a rotating order; ratios are
medians over the rounds of the other's time divided by ours, by CPU time and by wall time.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads must not spin

import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from ssl_toolkit import image_ops as operations
from ssl_toolkit.augment.fixed import Fixed, steps
from ssl_toolkit.augment.randaugment import FIXMATCH, RandAugment
from ssl_toolkit.augment.weak import Weak
from ssl_toolkit.engine.training_images import ImageSource
from ssl_toolkit.interfaces import AugmentationParams

COUNT, SIZE, REPEATS = 112, 32, 5

PILOperation = Callable[[Image.Image, float], Image.Image]
COLORS: dict[str, PILOperation] = {
    "identity": lambda image, value: image,
    "autocontrast": lambda image, value: ImageOps.autocontrast(image),
    "equalize": lambda image, value: ImageOps.equalize(image),
    "brightness": lambda image, value: ImageEnhance.Brightness(image).enhance(value),
    "color": lambda image, value: ImageEnhance.Color(image).enhance(value),
    "contrast": lambda image, value: ImageEnhance.Contrast(image).enhance(value),
    "sharpness": lambda image, value: ImageEnhance.Sharpness(image).enhance(value),
    "posterize": lambda image, value: ImageOps.posterize(image, int(value)),
    "solarize": lambda image, value: ImageOps.solarize(image, int(256 * value)),
}
MATRICES: dict[str, operations.Geometry] = {
    "shear_x": operations.shear_x,
    "shear_y": operations.shear_y,
    "translate_x": operations.translation_x,
    "translate_y": operations.translation_y,
}


def pil_randaugment(images: list[Image.Image], draws: AugmentationParams) -> list[Image.Image]:
    drawn = (draws["operation"].tolist(), draws["value"].tolist(), draws["box"].tolist())
    changed = []
    for image, chosen, values, (top, left, bottom, right) in zip(images, *drawn, strict=True):
        for index, value in zip(chosen, values, strict=True):
            name = FIXMATCH[index].name
            if index < 0:
                continue
            if name in COLORS:
                image = COLORS[name](image, value)
            elif name == "rotate":
                image = image.rotate(value)
            else:
                matrix = MATRICES[name](value, SIZE, SIZE)
                image = image.transform(image.size, Image.Transform.AFFINE, matrix)
        image = image.copy()
        ImageDraw.Draw(image).rectangle((left, top, right - 1, bottom - 1), (127, 127, 127))
        changed.append(image)
    return changed


def timed(way: Callable[[], object]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(REPEATS):
        way()
    return (time.process_time() - cpu) / REPEATS, (time.perf_counter() - wall) / REPEATS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    generator = torch.Generator().manual_seed(0)
    shape = (5000, 3, SIZE, SIZE)
    store = ImageSource(torch.randint(256, shape, generator=generator, dtype=torch.uint8))
    rows = torch.randint(len(store), (COUNT,), generator=generator)
    mean, std = torch.rand(2, 1, 3, 1, 1, generator=generator).add(0.1).unbind()
    images = store.gather(rows)
    pil = [Image.fromarray(p.permute(1, 2, 0).numpy()) for p in store.pixels(rows)]
    weak, fixed = Weak(), Fixed()
    strong = RandAugment(RandAugment.Config(include_weak=False))

    def drawn(augmenter: Weak | Fixed | RandAugment) -> AugmentationParams:
        return augmenter.draw(COUNT, SIZE, SIZE, generator)

    def kornia_views() -> object:
        draws, views = drawn(fixed), images
        for name, step in steps(SIZE, SIZE):
            keys = [key for key in draws if key.startswith(f"{name}.")]
            parameters = {key.removeprefix(f"{name}."): draws[key] for key in keys}
            parameters["forward_input_shape"] = torch.tensor(images.shape)
            views = step(views, params=parameters)
        return views.clamp(0, 1)

    def weak_views() -> object:
        return (weak.transform(store.gather(rows), drawn(weak)) - mean) / std

    def pil_views() -> object:
        return pil_randaugment(pil, drawn(strong))

    ways: dict[str, Callable[[], object]] = {
        "bare gather": lambda: (store.gather(rows) - mean) / std,
        "weak": weak_views,
        "PIL operations": pil_views,
        "randaugment": lambda: strong.transform(images, drawn(strong)),
        "kornia pipeline": kornia_views,
        "fixed": lambda: fixed.transform(images, drawn(fixed)),
    }
    against = {"weak": "bare gather", "randaugment": "PIL operations", "fixed": "kornia pipeline"}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(arguments.rounds + 2):
        names = list(ways)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            measured = timed(ways[name])
            if number > 1:
                times[name].append(measured)
    print(f"torch {torch.__version__}, {platform.machine()}, {arguments.threads} threads, ", end="")
    print(f"{arguments.rounds} rounds, {COUNT} images of {SIZE} px")
    for name, measurements in times.items():
        cpu, wall = (1e3 * statistics.median(part) for part in zip(*measurements, strict=True))
        line = f"{name:16} {cpu:6.2f} ms CPU {wall:6.2f} ms wall"
        if name in against:
            pairs = list(zip(times[against[name]], measurements, strict=True))
            ratios = [
                statistics.median(other[i] / ours[i] for other, ours in pairs) for i in (0, 1)
            ]
            line += f"   {ratios[0]:.2f} / {ratios[1]:.2f} times the rate of `{against[name]}`"
        print(line)


if __name__ == "__main__":
    main()
