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
        keys: set[str] = set()
        faults: list[str] = []
        rows: list[tuple[str, int, Part]] = []
        rows += ((*row, "pool") for row in _rows(lists[0], names, keys, faults))
        rows += ((*row, "test") for row in _rows(lists[1], names, keys, faults))
        if faults:
            raise DataError(faults[:20])
        gaps = [str(number) for number in range(len(names)) if number not in names]
        if gaps or len(set(names.values())) < len(names):
            raise DataError(
                f"domainnet_real: the classes of {folder} are not numbered from 0, one "
                f"number per folder (missing: {', '.join(gaps) or 'none'})"
            )
        if not any(os.path.exists(folder / key) for key in keys):
            raise DataError(
                f"none of the {len(keys):,} images of {lists[0]} exists, the first "
                f"should be {folder / rows[0][0]}; unpack real.zip there"
            )
        notes = [f"domainnet_real is incomplete: {len(names)} of {CLASSES} classes"]
        return file_table(
            folder,
            [names[number] for number in range(len(names))],
            rows,
            notes if len(names) != CLASSES else [],
        )


def _rows(
    path: Path, names: dict[int, str], keys: set[str], faults: list[str]
) -> Iterator[tuple[str, int]]:
    """Yield the key and the label of each line of a list; collect names, keys and faults."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"can't read {path}: {error}") from None
    for number, line in enumerate(lines, 1):
        text, _, label = line.strip().rpartition(" ")
        key = os.path.normpath(text).replace(os.sep, "/")
        fault = ""
        if not label.isdecimal() or key.count("/") < 2 or key.startswith(("/", "../")):
            fault = f"{line!r} is no path real/<class>/<image> with a number"
        elif key in keys:
            fault = f"{key!r} is in a list already"
        elif names.setdefault(int(label), key.split("/")[-2]) != key.split("/")[-2]:
            fault = f"{key!r} has the number {label} of class {names[int(label)]!r}"
        if fault and line.strip():
            faults.append(f"{path}, line {number}: {fault}")
        elif line.strip():
            keys.add(key)
            yield key, int(label)
