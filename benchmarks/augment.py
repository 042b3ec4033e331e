"""Compare the speed of the augmenters with that of what they replace, on the same images.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/augment.py [--rounds 20] [--threads 2]

The input is 112 images of 32 px, that is 7 strong views of 16 images.

- `weak` is compared with only gathering the images: stored uint8 images to normalized floats.
- `randaugment` is compared with PIL's operations on PIL images and the same random parameters: two
  operations with probability 0.5, then the gray square. Neither side crops or flips, and PIL's
  images are not converted to tensors.
- `fixed` is compared with kornia's pipeline and the same random parameters.

Each round runs every variant five times, in a rotating order. A ratio is the median over the rounds
of the other variant's time divided by ours, once by CPU time and once by wall time.
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
    parameters = (draws["operation"].tolist(), draws["value"].tolist(), draws["box"].tolist())
    augmented = []
    for image, indices, values, (top, left, bottom, right) in zip(images, *parameters, strict=True):
        for index, value in zip(indices, values, strict=True):
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
        augmented.append(image)
    return augmented


def measure(run: Callable[[], object]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(REPEATS):
        run()
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

    def draw(augmenter: Weak | Fixed | RandAugment) -> AugmentationParams:
        return augmenter.draw(COUNT, SIZE, SIZE, generator)

    def kornia_views() -> object:
        draws, views = draw(fixed), images
        for name, step in steps(SIZE, SIZE):
            keys = [key for key in draws if key.startswith(f"{name}.")]
            parameters = {key.removeprefix(f"{name}."): draws[key] for key in keys}
            parameters["forward_input_shape"] = torch.tensor(images.shape)
            views = step(views, params=parameters)
        return views.clamp(0, 1)

    def weak_views() -> object:
        return (weak.transform(store.gather(rows), draw(weak)) - mean) / std

    def pil_views() -> object:
        return pil_randaugment(pil, draw(strong))

    variants: dict[str, Callable[[], object]] = {
        "gather only": lambda: (store.gather(rows) - mean) / std,
        "weak": weak_views,
        "PIL operations": pil_views,
        "randaugment": lambda: strong.transform(images, draw(strong)),
        "kornia pipeline": kornia_views,
        "fixed": lambda: fixed.transform(images, draw(fixed)),
    }
    baselines = {"weak": "gather only", "randaugment": "PIL operations", "fixed": "kornia pipeline"}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for round_ in range(arguments.rounds + 2):
        names = list(variants)
        shift = round_ % len(names)
        for name in names[shift:] + names[:shift]:
            measurement = measure(variants[name])
            if round_ > 1:  # the first two rounds warm up
                times[name].append(measurement)
    print(f"torch {torch.__version__}, {platform.machine()}, {arguments.threads} threads, ", end="")
    print(f"{arguments.rounds} rounds, {COUNT} images of {SIZE} px")
    for name, measurements in times.items():
        cpu, wall = (1e3 * statistics.median(part) for part in zip(*measurements, strict=True))
        line = f"{name:16} {cpu:6.2f} ms CPU {wall:6.2f} ms wall"
        if name in baselines:
            pairs = list(zip(times[baselines[name]], measurements, strict=True))
            ratios = [
                statistics.median(other[i] / ours[i] for other, ours in pairs) for i in (0, 1)
            ]
            line += f"   {ratios[0]:.2f} / {ratios[1]:.2f} times as fast as `{baselines[name]}`"
        print(line)


if __name__ == "__main__":
    main()
