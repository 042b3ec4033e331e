"""Write the pseudo labels that earlier stages predict, as a file for ``--pseudo-labels``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.loading import RunConfig
from ssl_toolkit.console import Console
from ssl_toolkit.data.load import load_table
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.inference.evaluate import predict_rows
from ssl_toolkit.inference.model import load_model
from ssl_toolkit.inference.pseudo_label import MANIFEST
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.stages.config import StageSettings
from ssl_toolkit.tabular import Row, plain, write_rows

COLUMNS = (*MANIFEST, "data_label")
"""Columns of the file; ``data_label`` is the label in the data, empty without one."""

Probabilities = NDArray[np.float64]
Integers = NDArray[np.int64]


def write_labels(
    path: Path, config: RunConfig, sources: Sequence[Path], options: StageSettings, console: Console
) -> None:
    """Label the pool of a run with the models of other runs, and write one row per image.

    Args:
        path: Path to the file, which is written atomically.
        config: Configuration of the run, without pseudo labels and weights.
        sources: Folders of the completed runs whose models label the pool.
        options: Threshold, fraction and rebalance.
        console: Shows the progress.

    Raises:
        ConfigError: No image is left without a label, and the algorithm learns from such images.
    """
    experiment = prepare(config, progress=console.reading)
    table, split, settings = experiment.table, experiment.split, experiment.config.settings
    # With `labeled_in_pool`, the pool has the labeled images too, which keep their labels.
    pool = split.unlabeled[~np.isin(split.unlabeled, split.labeled)]
    votes = [
        probabilities(source, table, pool, settings.eval_batch_size, settings.device)
        for source in sources
    ]
    mean: Probabilities = np.mean(np.stack(votes), axis=0)
    labels = np.asarray(mean.argmax(axis=1), np.int64)
    confidences = np.asarray(mean.max(axis=1), np.float32)
    counts = np.bincount(table.labels[split.labeled], minlength=len(table.classes))
    keep = selected(labels, confidences, counts, options)
    needs = experiment.trainer.batches.views.needs_unlabeled
    if keep.all() and needs and not settings.labeled_in_pool:
        raise ConfigError(
            f"stage {path.stem}: all {len(keep):,} images of the pool get a pseudo label, and "
            f"{settings.algo} learns from unlabeled images; raise its threshold or lower its "
            "fraction, and repeat with --continue"
        )
    rows: list[Row] = []
    for index, row in enumerate(pool.tolist()):
        label = table.classes[labels[index]] if keep[index] else ""
        data_label = table.classes[table.labels[row]] if table.labels[row] >= 0 else ""
        part = "labeled" if keep[index] else "unlabeled"
        rows.append([table.keys[row], label, part, plain(confidences[index]), data_label])
    write_rows(path, COLUMNS, rows)


def probabilities(
    run: Path, table: ImageTable, rows: Integers, batch_size: int, device: str
) -> Probabilities:
    """Return the probabilities (n, C) of a completed run for images, in the order of the classes.

    Args:
        run: Folder of the run, which uses the same data.
        table: The images, possibly at another size.
        rows: (n,) rows of the table.
        batch_size: Images per forward pass.
        device: See `load_model`.
    """
    model = load_model(run, device)
    run_table = load_table(RunFolder(run).reopen().settings)
    row_of = {key: row for row, key in enumerate(run_table.keys)}
    run_rows = np.array([row_of[table.keys[row]] for row in rows.tolist()], np.int64)
    order = [model.classes.index(name) for name in table.classes]
    predictions = predict_rows(model, run_table, run_rows, batch_size)
    return np.asarray(predictions[:, order], np.float64)


def selected(
    labels: Integers, confidences: NDArray[np.float32], counts: Integers, options: StageSettings
) -> NDArray[np.bool_]:
    """Return a mask of the pseudo labels to keep; ties of confidences favor earlier images.

    With ``rebalance`` alpha, keep the most confident share (N_(C+1-r) / N_1)^alpha of the images
    that are predicted as the class of rank r, where N are the counts of labels in descending order
    (Wei et al., CReST, CVPR 2021, section 3.2).

    Args:
        labels: (n,) most probable classes.
        confidences: (n,) their probabilities.
        counts: (C,) counts of labeled images per class.
        options: Threshold, fraction and rebalance.
    """
    keep: NDArray[np.bool_] = confidences >= np.float32(options.threshold)
    order = np.argsort(-confidences, kind="stable")
    first = np.zeros(len(labels), bool)
    first[order[: round(options.fraction * len(labels))]] = True
    keep &= first
    if options.rebalance is not None:
        descending = np.argsort(-counts, kind="stable")
        for rank, label in enumerate(descending.tolist()):
            share = (counts[descending[-1 - rank]] / counts.max()) ** options.rebalance
            of_class = [index for index in order.tolist() if keep[index] and labels[index] == label]
            keep[of_class[round(share * len(of_class)) :]] = False
    return keep
