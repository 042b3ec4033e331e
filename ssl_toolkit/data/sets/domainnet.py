"""DomainNet-Real: the photographs of DomainNet, with its own lists."""

from __future__ import annotations

import os
from pathlib import Path

from ssl_toolkit.data.readers.manifests import Links, inside
from ssl_toolkit.data.readers.rows import RowErrors, records
from ssl_toolkit.data.readers.table_builder import TableBuilder
from ssl_toolkit.data.sets.benchmarks import default_root
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import Dataset, DatasetDefaults, ImageTable, Part
from ssl_toolkit.text import display_path

CLASSES, SIZE = 345, 84


class DomainNetReal(Dataset):
    """DomainNet's domain "real" (Peng et al. 2019): 345 long-tailed classes, read at 84 pixels.

    The lists ``real_train.txt`` and ``real_test.txt`` say the split. 11 labels a class by default,
    3,795 in all, as in SimPLE's transfer experiments (Hu et al. 2021), and a tenth of the training
    images for validation, of which the paper says nothing.
    """

    defaults = DatasetDefaults(
        image_size=SIZE,
        batch_size=16,
        labels_per_class=11,
        val_fraction=0.1,
        mean=(0.60511086, 0.5840634, 0.54873651),
        std=(0.32637834, 0.31887854, 0.33955591),
    )

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read ``real_train.txt``, ``real_test.txt`` and ``real/``; see `Dataset.load`.

        A line of a list is a path such as ``real/zebra/real_345_000001.jpg``, a space and a number
        from 0; the folder is the class. It can't be fetched.

        Raises:
            DataError: also when lists and folders don't agree.
        """
        folder = default_root() / "domainnet" if root is None else root
        lists = [folder / "real_train.txt", folder / "real_test.txt"]
        missing = [path.name for path in (*lists, folder / "real") if not path.exists()]
        if missing:
            never = "; it can't be fetched with --download" if download else ""
            raise DataError(
                f"domainnet_real is not in {display_path(folder)} ({', '.join(missing)} "
                "missing); give "
                "the folder that holds real/, real_train.txt and real_test.txt with --root DIR"
                f"{never}"
            )
        rows = TableBuilder(lazily=True)
        names: dict[int, str] = {}
        base = os.path.abspath(folder)
        links = Links(base, ["real"])
        parts: tuple[Part, ...] = ("pool", "test")
        for path, part in zip(lists, parts, strict=True):
            _read_list(path, part, base, links, names, rows)
        gaps = [str(number) for number in range(len(names)) if number not in names]
        if gaps or len(set(names.values())) < len(names):
            raise DataError(
                f"domainnet_real: the classes of {display_path(folder)} are not numbered from 0, "
                "one "
                f"number a folder (missing: {', '.join(gaps) or 'none'})"
            )
        if len(names) != CLASSES:
            rows.notes.append(f"domainnet_real is not whole: {len(names)} of {CLASSES} classes")
        if not any(os.path.exists(file) for file in rows.paths):
            raise DataError(
                f"none of the {len(rows.paths):,} images of {display_path(lists[0])} exists, the "
                "first "
                f"should be {rows.paths[0]}; unpack real.zip there"
            )
        return rows.table(tuple(names[number] for number in range(len(names))))


def _read_list(
    path: Path, part: Part, base: str, links: Links, names: dict[int, str], rows: TableBuilder
) -> None:
    bad = RowErrors(display_path(path))
    seen = set(rows.keys)
    for line, text, label, _ in records(path, bad, "path", rows.notes):
        key = inside(text, base)
        if key is None or not label.isdecimal() or key.count("/") < 2:
            bad.add(
                line, f"{text!r} {label!r} is no path real/<class>/<image> inside with a number"
            )
        elif outside := links.outside(key):
            bad.add(line, f"{key!r} leads by a link out of {display_path(Path(base))} to {outside}")
        elif key in seen:
            bad.add(line, f"{key!r} stands in a list already")
        elif names.setdefault(int(label), key.split("/")[-2]) != key.split("/")[-2]:
            bad.add(line, f"{key!r} has the number {label} of class {names[int(label)]!r}")
        else:
            seen.add(key)
            rows.keys.append(key)
            rows.paths.append(os.path.join(base, key))
            rows.labels.append(int(label))
            rows.parts.append(part)
    bad.refuse()
