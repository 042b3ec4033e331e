"""DomainNet-Real: the photographs of DomainNet, with its own lists."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ssl_toolkit import (
    DataError,
    Dataset,
    DatasetDefaults,
    ImageTable,
    Part,
    default_root,
    file_table,
)

CLASSES, SIZE = 345, 84


class DomainNetReal(Dataset):
    """DomainNet's domain "real" (Peng et al. 2019): 345 long-tailed classes, read at 84 pixels.

    The lists ``real_train.txt`` and ``real_test.txt`` define the split. By default 11 labels per
    class, 3,795 in all, as in SimPLE's transfer experiments (Hu et al. 2021), and a tenth of the
    training images for validation, which the paper doesn't specify.
    """

    defaults = DatasetDefaults(
        image_size=SIZE,
        batch_size=16,
        labels_per_class=11,
        val_fraction=0.1,
        mean=(0.60511086, 0.5840634, 0.54873651),
        std=(0.32637834, 0.31887854, 0.33955591),
    )
    citation = "X. Peng et al. (2019), Moment Matching for Multi-Source Domain Adaptation"
    homepage = "https://ai.bu.edu/M3SDA/"

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read ``real_train.txt``, ``real_test.txt`` and ``real/``; see `Dataset.load`.

        A line of a list is a path such as ``real/zebra/real_345_000001.jpg``, a space and a number
        from 0; the folder is the class. It can't be downloaded.

        Raises:
            DataError: Also when lists and folders contradict each other.
        """
        folder = default_root() / "domainnet" if root is None else root
        lists = [folder / "real_train.txt", folder / "real_test.txt"]
        missing = [path.name for path in (*lists, folder / "real") if not path.exists()]
        if missing:
            never = "; it can't be fetched with --download" if download else ""
            raise DataError(
                f"domainnet_real is not in {folder} ({', '.join(missing)} missing); give "
                "the folder that holds real/, real_train.txt and real_test.txt with --root DIR"
                f"{never}"
            )
        names: dict[int, str] = {}
        files: dict[str, tuple[int, Part]] = {}
        sources: list[str] = []
        errors: list[str] = []
        parts: tuple[Part, ...] = ("pool", "test")
        for path, part in zip(lists, parts, strict=True):
            for source, key, label in _lines(path, errors):
                if key in files:
                    errors.append(f"{source}: {key!r} is in a list already")
                elif names.setdefault(label, key.split("/")[-2]) != key.split("/")[-2]:
                    errors.append(
                        f"{source}: {key!r} has the number {label} of class {names[label]!r}"
                    )
                else:
                    files[key] = label, part
                    sources.append(source)
        if errors:
            raise DataError(errors[:20])
        gaps = [str(number) for number in range(len(names)) if number not in names]
        if gaps or len(set(names.values())) < len(names):
            raise DataError(
                f"domainnet_real: the classes of {folder} are not numbered from 0, one "
                f"number per folder (missing: {', '.join(gaps) or 'none'})"
            )
        if not any((folder / key).exists() for key in files):
            raise DataError(
                f"none of the {len(files):,} images of {lists[0]} exists, the first "
                f"should be {folder / next(iter(files))}; unpack real.zip there"
            )
        notes = [f"domainnet_real is incomplete: {len(names)} of {CLASSES} classes"]
        return file_table(
            folder,
            [names[number] for number in range(len(names))],
            [(key, label, part) for key, (label, part) in files.items()],
            notes if len(names) != CLASSES else [],
            sources,
        )


def _lines(path: Path, errors: list[str]) -> Iterator[tuple[str, str, int]]:
    """Yield the place, the key and the label of each line of a list; collect invalid lines."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"can't read {path}: {error}") from None
    for number, line in enumerate(lines, 1):
        text, _, label = line.strip().rpartition(" ")
        key = os.path.normpath(text).replace(os.sep, "/")
        source = f"{path}, line {number}"
        if label.isdecimal() and key.count("/") > 1 and not key.startswith(("/", "../")):
            yield source, key, int(label)
        elif line.strip():
            errors.append(
                f"{source}: {line!r} is invalid; expected real/<class>/<image> and a number"
            )
