"""Rounds of labeling: train on the labels so far, choose the next images, take their labels.

The folder of the rounds holds ``labels.csv``, the answers so far, ``rounds.csv``, a table of the
rounds, and a folder ``rounds/N`` for each round:

    labels.csv   the labels that the round trains on: those of the data, and the answers
    run/         the run on them; absent if there are labels of too few classes
    queue.csv    the images to label next
    round.json   the result; its presence means that the round is complete
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ssl_toolkit.config.loading import RunConfig
from ssl_toolkit.console import Console
from ssl_toolkit.data.load import chosen_labels, load_table, read_data
from ssl_toolkit.data.readers.folders import folders_are_classes
from ssl_toolkit.documents import Document
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.files import drop_partial
from ssl_toolkit.labeling.exchange.transfer import import_labels
from ssl_toolkit.labeling.labels_table import LabelsTable
from ssl_toolkit.labeling.next import BACKBONE, NoImageLeft, choose_next
from ssl_toolkit.labeling.pool import has_unlabeled, labels_of_data
from ssl_toolkit.labeling.queue import Queued, read_queue, write_queue
from ssl_toolkit.labeling.selection import NEED_LABELS, Method
from ssl_toolkit.locking import hold
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.summary import Scores
from ssl_toolkit.runs.train import train
from ssl_toolkit.tabular import write_rows
from ssl_toolkit.text import display_path, summarize

FIXED = (
    *("labels_per_class", "num_labels", "val_fraction", "test_fraction", "split"),
    *("pseudo_labels", "dataset", "stream_buffer"),
)
"""Settings that contradict a labels file: images outside it have no label."""
TABLE = ("round", "labels", "skipped", "classes", "test_accuracy", "lower", "upper", "queued")


class RoundRecord(Document):
    """The schema of ``round.json``."""

    labels: int
    """Number of images with a label."""
    skipped: int
    classes: tuple[str, ...]
    """Classes with a label."""
    not_trained: str
    """Reason why there is no run; empty if there is one."""
    test: Scores | None
    """Scores on the test images; None without any, or without a run."""
    method: str
    """Method by which the queue was chosen."""
    queued: int
    """Number of images in the queue."""


class RoundFolder:
    """The files of one round.

    Args:
        path: Path to the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.labels: Path = path / "labels.csv"
        self.run: Path = path / "run"
        self.queue: Path = path / "queue.csv"
        self.record: Path = path / "round.json"


@dataclass(frozen=True)
class RoundPlan:
    """Data, folder and settings of rounds."""

    data: Path
    folder: Path
    budget: int
    method: Method
    config: Callable[[Path, Path], RunConfig]
    """Returns the configuration of a run, from its labels file and its folder."""

    @property
    def labels(self) -> Path:
        """Path to the answers so far."""
        return self.folder / "labels.csv"

    def round(self, number: int) -> RoundFolder:
        """Return the folder of a round, from 1."""
        return RoundFolder(self.folder / "rounds" / str(number))


class RoundState(NamedTuple):
    """The rounds after a call of `run_round`."""

    records: list[RoundRecord]
    """Of the complete rounds."""
    queue: Path
    """Images to label next."""
    waiting: int
    """Number of images in the queue without an answer."""
    signal: str
    """Name of the signal that stopped a run; empty for none."""


def run_round(
    plan: RoundPlan,
    console: Console,
    *,
    answers: Path | None = None,
    ask: Callable[[Path, Path], None] | None = None,
    partial: bool = False,
) -> RoundState:
    """Complete the last round, take the answers for its queue, and run the next round.

    The first round of a folder chooses the first images. A call that was interrupted at any moment
    is repeated to the same result.

    Args:
        plan: Data, folder and settings.
        console: Shows the progress.
        answers: Path to a file with labels, as for `import_labels`; None for none.
        ask: Takes the queue and the labels file, and returns when answers are in the latter; None
            to ask nobody.
        partial: Start the next round with new answers even if some of the queue have none.

    Raises:
        UserError: Data, settings, labels or answers are invalid.
    """
    _check(plan)
    if plan.folder.exists() and not plan.folder.is_dir():
        name = display_path(plan.folder)
        raise ConfigError(f"--output {name}: a file has this name; choose another folder")
    own = _labels_of_data(plan)
    plan.folder.mkdir(parents=True, exist_ok=True)
    with hold(plan.folder):
        drop_partial(plan.folder)
        number = max(1, _last(plan))
        if signal := _complete(plan, number, own, console):
            return _state(plan, number - 1, signal)
        if answers is not None:
            import_labels(plan.data, answers, plan.labels, root=_root(plan))
        if ask is not None and _unanswered(plan, number):
            ask(plan.round(number).queue, plan.labels)
        rows = _labels_so_far(plan, own)
        is_new = rows != LabelsTable(plan.round(number).labels).rows
        if is_new and (partial or not _unanswered(plan, number)):
            number += 1
            if signal := _complete(plan, number, own, console):
                return _state(plan, number - 1, signal)
        return _state(plan, number, "")


def _check(plan: RoundPlan) -> None:
    """Raise for settings that contradict a labels file that grows."""
    settings = plan.config(plan.labels, plan.round(1).run).settings
    if settings.task == "multilabel":
        raise ConfigError(
            "label round: --task multilabel: images are chosen for one class per image only; label "
            "several with `label serve --task multilabel`"
        )
    given = [name for name in FIXED if getattr(settings, name)]
    places = {"data": plan.data, "labels": plan.labels, "output": plan.round(1).run}
    given += [name for name, path in places.items() if getattr(settings, name) != str(path)]
    if given:
        flags = summarize([f"--{name.replace('_', '-')}" for name in given])
        raise ConfigError(
            f"label round: {flags}: DATA and the labels determine the images of a round; leave it "
            "out (test images are those in test/ of the data)"
        )


def _labels_of_data(plan: RoundPlan) -> dict[str, str]:
    """Return the class by key of the images that have a label in the data.

    Raises:
        DataError: There is no other image.
    """
    table = read_data(plan.data, root=_root(plan), unlabeled=True)
    if not has_unlabeled(table):
        hint = folders_are_classes(plan.data, table)
        raise DataError(f"{display_path(plan.data)}: no image is without a label{hint}")
    return {table.keys[row]: name for row, name in labels_of_data(table).items()}


def _labels_so_far(plan: RoundPlan, own: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of the data, then the answers; one that was skipped has none."""
    answers = LabelsTable(plan.labels).rows
    return {**own, **{key: label for key, label in answers.items() if label or key not in own}}


def _check_answers(plan: RoundPlan, own: Mapping[str, str]) -> None:
    """Raise for answers that training refuses: once a round has them, corrections are too late."""
    answers = LabelsTable(plan.labels).labels
    if answers and len({*own.values(), *answers.values()}) > 1:
        settings = plan.config(plan.labels, plan.round(1).run).settings
        chosen_labels(load_table(settings, lazily=True), settings)


def _complete(plan: RoundPlan, number: int, own: Mapping[str, str], console: Console) -> str:
    """Train, choose and record a round unless it is complete; return the signal that stopped it."""
    folder = plan.round(number)
    if folder.record.exists():
        return ""
    if not (folder.queue.exists() or RunFolder(folder.run).summary.exists()):
        # Nothing was computed from its labels: answers may have been corrected since.
        _check_answers(plan, own)
        folder.path.mkdir(parents=True, exist_ok=True)
        table = LabelsTable(folder.labels)
        table.rows = _labels_so_far(plan, own)
        table.write()
    rows = LabelsTable(folder.labels).rows
    classes = tuple(sorted({label for label in rows.values() if label}))
    labels = sum(map(bool, rows.values()))
    count = f"{labels:,} labels of {len(classes)} classes" if labels else "no labels yet"
    console.say(f"round {number}: {count}", important=True)
    config = plan.config(folder.labels, folder.run)
    config = config.with_settings(val_fraction=0.0, test_fraction=0.0)
    reason = _untrained(plan, classes)
    test = None
    if reason:
        console.say(f"not trained: {reason}", important=labels > 0)
    else:
        result = train(config, resume=True, console=console)
        if result.status != "completed":
            return result.signal or result.status
        test = result.test
    method = _choose(plan, config, folder, trained=not reason)
    RoundRecord(
        labels=labels,
        skipped=len(rows) - labels,
        classes=classes,
        not_trained=reason,
        test=test,
        method=method,
        queued=len(read_queue(folder.queue)),
    ).write(folder.record)
    return ""


def _untrained(plan: RoundPlan, classes: Sequence[str]) -> str:
    """Return why a run can't be trained on the labels so far; empty if it can."""
    if len(classes) < 2:
        return f"at least two classes need labels, and {len(classes)} have some"
    table = read_data(plan.data, root=_root(plan), unlabeled=True)
    if missing := [name for name in table.classes if name not in classes]:
        return f"no label yet of the classes {summarize(missing)}"
    return ""


def _choose(plan: RoundPlan, config: RunConfig, folder: RoundFolder, *, trained: bool) -> Method:
    """Write the queue of a round; return the method that chose it."""
    settings = config.settings
    method = plan.method
    if method in NEED_LABELS and not trained:
        method = "kmeans"
    by_run = method in NEED_LABELS
    has_weights = settings.pretrained or settings.weights is not None
    pretrained = has_weights and settings.backbone is not None
    images: list[Queued] = []
    with suppress(NoImageLeft):
        images = choose_next(
            folder.run if by_run else plan.data,
            budget=plan.budget,
            method=method,
            labels=folder.labels,
            root=_root(plan),
            backbone=settings.backbone if pretrained and settings.backbone else BACKBONE,
            weights=settings.weights if pretrained else None,
            image_size=settings.image_size if pretrained else None,
            fit=settings.fit,
            on_bad_image=settings.on_bad_image,
            seed=settings.seed,
            device=settings.device,
            workers=settings.workers,
        ).images
    write_queue(folder.queue, images)
    return method


def _unanswered(plan: RoundPlan, number: int) -> int:
    rows = LabelsTable(plan.labels).rows
    return sum(image.path not in rows for image in read_queue(plan.round(number).queue))


def _state(plan: RoundPlan, number: int, signal: str) -> RoundState:
    """Write the table of the rounds; return their state."""
    records = [RoundRecord.read(plan.round(n + 1).record) for n in range(number)]
    rows = []
    for place, one in enumerate(records, 1):
        scores: list[float | None] = [None, None, None]
        if one.test is not None:
            scores = [one.test.accuracy, *one.test.interval]
        rows.append([place, one.labels, one.skipped, len(one.classes), *scores, one.queued])
    write_rows(plan.folder / "rounds.csv", TABLE, rows)
    queue = plan.round(max(1, number)).queue
    return RoundState(records, queue, 0 if signal else _unanswered(plan, number), signal)


def _last(plan: RoundPlan) -> int:
    """Return the number of the last round, 0 without any.

    Raises:
        DataError: A round before the last one is incomplete.
    """
    top = plan.folder / "rounds"
    names = [path.name for path in top.iterdir()] if top.is_dir() else []
    last = max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)
    for number in range(1, last):
        if not plan.round(number).record.exists():
            raise DataError(
                f"{display_path(plan.round(number).record)}: not found; restore the folder of "
                f"round {number}, or choose another folder by --output"
            )
    return last


def _root(plan: RoundPlan) -> Path | None:
    root = plan.config(plan.labels, plan.round(1).run).settings.root
    return None if root is None else Path(root)
