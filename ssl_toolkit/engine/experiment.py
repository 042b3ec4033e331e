"""Prepare everything that a run needs from its configuration, and check it before training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ssl_toolkit import registry
from ssl_toolkit.config.loading import ResolvedConfig, RunConfig
from ssl_toolkit.config.options import Options
from ssl_toolkit.config.sections import EMASettings
from ssl_toolkit.config.settings import ResolvedSettings
from ssl_toolkit.data.class_names import look_alike
from ssl_toolkit.data.load import load_table
from ssl_toolkit.data.readers.image_files import files_of
from ssl_toolkit.data.readers.priors import ordered_prior
from ssl_toolkit.data.splits.contents import Content, content_of
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.data.splits.duplicates import Leaks
from ssl_toolkit.data.splits.pseudo_labels import pseudo_labeled
from ssl_toolkit.data.splits.split_file import split_hash
from ssl_toolkit.engine.batches import BatchMaker, training_statistics
from ssl_toolkit.engine.checkpoints import seed_everything
from ssl_toolkit.engine.compatibility import (
    adapt_augmenters,
    check_needs,
    check_parts,
    check_views,
    other_sizes,
)
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.devices import (
    choose_precision,
    make_autocast,
    make_scaler,
    process_device,
)
from ssl_toolkit.engine.distributed import ProcessGroup, convert_sync_batchnorm
from ssl_toolkit.engine.ema import EMA
from ssl_toolkit.engine.multilabel import check_task
from ssl_toolkit.engine.networks import ModelFactory, build_network, share_statistics
from ssl_toolkit.engine.optimization import build_optimizer, unfinished_warm_up
from ssl_toolkit.engine.plugin_faults import construct, plugin_faults
from ssl_toolkit.engine.pool_filter import make_filter
from ssl_toolkit.engine.random_orders import derive_seed
from ssl_toolkit.engine.shares import labels_are_informative, shares_of
from ssl_toolkit.engine.splitting import split_of, without_leaks
from ssl_toolkit.engine.step_metrics import StepRecorder
from ssl_toolkit.engine.streaming import cache_all_but_unlabeled
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.engine.training_images import TrainingImages, load_training_images
from ssl_toolkit.engine.transfer import transfer_for
from ssl_toolkit.errors import PluginError
from ssl_toolkit.interfaces import (
    Algorithm,
    Augmenter,
    DatasetDefaults,
    FeatureAlgorithm,
    ImageTable,
    TaskInfo,
)
from ssl_toolkit.models.adapters import add_adapters
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.freezing import freeze
from ssl_toolkit.models.heads import FeatureHead
from ssl_toolkit.models.probe import unfitted_head


@dataclass(frozen=True)
class Experiment:
    """A run that is ready to start."""

    config: ResolvedConfig
    table: ImageTable
    split: Split
    leaks: Leaks
    """Duplicates across parts of the split; already dropped under ``drop_leaks``."""
    trainer: Trainer
    test: tuple[Tensor, Tensor]
    """(n,) image indices and (n,) labels; empty without a test split."""
    device: torch.device
    notes: tuple[str, ...]
    """Messages for the user before training."""
    warnings: tuple[str, ...]
    """Messages about likely problems."""

    @cached_property
    def content(self) -> Content:
        """Content of the images of the split."""
        return content_of(self.table, self.split)

    @cached_property
    def split_hash(self) -> str:
        """Hash of the keys and the content of every part."""
        return split_hash(self.table, self.split, self.content)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""
        return self.table.classes


def prepare(
    config: RunConfig,
    *,
    progress: Callable[[int, int], None] | None = None,
    processes: ProcessGroup | None = None,
    table: ImageTable | None = None,
    split: Split | None = None,
) -> Experiment:
    """Read the data, build model and algorithm, and check that they are compatible.

    Args:
        config: validated configuration, resolved or not.
        progress: called as ``progress(done, total)`` while images are read.
        processes: processes that train together, each of which prepares the same; None for one.
        table: data that has been read already; None to read it.
        split: split of `table`, in place of the one in the settings.

    Raises:
        UserError: any error that the user can fix; nothing has been trained or written.
    """
    resolved, defaults = resolve_config(config)
    check_task(resolved.settings)
    with plugin_faults(resolved.settings, PluginError):
        return _prepare(resolved, defaults, progress, processes or ProcessGroup(), table, split)


def _prepare(
    config: ResolvedConfig,
    defaults: DatasetDefaults,
    progress: Callable[[int, int], None] | None,
    processes: ProcessGroup,
    table: ImageTable | None,
    split: Split | None,
) -> Experiment:
    device = process_device(config.settings.device, processes.local_rank, processes.local_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    settings = config.settings
    precision, warning = choose_precision(settings.precision, device)
    warm_up = unfinished_warm_up(settings.schedule, settings.lr, settings.steps)
    warnings = [text for text in (warning, warm_up) if text]

    if table is None:
        table = load_table(settings, progress)
    files = files_of(table)
    if files is not None and files.warning:
        warnings.append(files.warning)
    stored = None
    if split is None:
        table, split, stored = split_of(table, settings)
    if settings.stream_buffer is not None:
        split = cache_all_but_unlabeled(
            table,
            split,
            settings.image_size,
            refuse=settings.on_bad_image == "error",
            progress=progress,
        )
    split, leaks = without_leaks(table, split, settings)
    if leaks:
        warnings.append(f"{leaks.warning()}; leaks.json lists them")
    notes = [*table.notes, *split.notes]
    warnings += [*split.warnings, *look_alike(table.classes)]
    algorithm_class: type[Algorithm] = registry.load("algorithms", settings.algo)
    classifier, model_notes = build_network(
        settings, table.classes, derive_seed(settings.seed, "model"), initial=True
    )
    notes += model_notes
    task = _task(classifier, table, split, settings, processes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(settings.seed, "algorithm"))
        algorithm = construct("algorithm", settings.algo, algorithm_class, config.algorithm, task)
    notes += [
        f"{key} = {value}, a run default of --algo {config.declaring}"
        for key, value in config.run_defaults().items()
    ]
    views, own_augmenters = algorithm.views(), algorithm.augmenters()
    check_views(views, own_augmenters, table, settings)
    notes += check_needs(algorithm, algorithm_class, classifier, table, split, settings)
    if processes.size > 1:
        check_parts(settings, classifier, processes.size)

    images = load_training_images(table, split, settings, device, progress)
    if stored is not None:  # unreadable files have been reported by now
        stored.check(table)
    if settings.labeled_in_pool is None:
        in_pool = bool(np.isin(split.labeled, split.unlabeled).any())
        config = config.with_settings(labeled_in_pool=in_pool)
        settings = config.settings
    if table.features is not None:  # no channels to normalize
        classifier.set_statistics((0.0,) * classifier.channels, (1.0,) * classifier.channels)
    elif classifier.mean.isnan().any():  # the weights came without normalization
        mean, std = defaults.mean, defaults.std
        if mean is None or std is None or len(mean) != classifier.channels:
            mean, std = training_statistics(images, settings.seed)
        classifier.set_statistics(mean, std)
    share_statistics(classifier, algorithm)
    head_init = settings.model.head_init
    if not isinstance(classifier.head, nn.Linear | FeatureHead):
        head_init = "random"  # the backbone defines its head, which no probe can initialize
    elif head_init != "random":
        frozen = settings.model.freeze == "backbone"
        classifier.head = unfitted_head(
            classifier.blocks, len(table.classes), head_init, frozen=frozen
        )
    elif not any(True for _ in classifier.head.parameters()):  # a head of nearest neighbors
        notes.append("the head in the weights has no trainable parameters; a new one replaces it")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(settings.seed, "head"))
            classifier.head = nn.Linear(classifier.backbone.feature_dim, len(table.classes))
    fitted = isinstance(algorithm, FeatureAlgorithm)
    if settings.model.sync_batchnorm:
        classifier = convert_sync_batchnorm(classifier, device)
    freeze(classifier, settings.model.freeze)
    if settings.model.freeze == "bn" and not classifier.frozen:
        notes.append(f"model.freeze=bn: backbone {settings.backbone} has no BatchNorm layer")
    add_adapters(classifier, settings.lora, settings.image_size, derive_seed(settings.seed, "lora"))
    classifier.to(device)
    algorithm.to(device)
    seed_everything(derive_seed(settings.seed, "global"))
    augment = settings.augment
    validation = _part(images, table, split.validation)
    test = _part(images, table, split.test)
    augmenters = {
        "weak": _augmenter(augment.weak, config.weak, augment.flip is True, device),
        "strong": _augmenter(augment.strong, config.strong, augment.flip is True, device),
        **{name: augmenter.to(device) for name, augmenter in own_augmenters.items()},
    }
    notes += adapt_augmenters(augmenters, views, settings)
    # Streamed images are seen once, and an augmenter that learns makes others at each step.
    needs_images = images.streamed is not None or any(
        augmenter.wants_feedback for augmenter in augmenters.values()
    )
    if settings.model.freeze == "backbone" and other_sizes(views, settings.image_size):
        needs_images = True
        notes.append(
            f"--algo {settings.algo} requests views of other sizes, so the frozen backbone runs at "
            "every step"
        )
    draws = (views.needs_unlabeled or fitted) and not algorithm_class.uses_hidden_labels
    trainer = Trainer(
        settings=settings,
        classifier=classifier,
        algorithm=algorithm,
        augmenters=tuple(augmenters.values()) if table.features is None else (),
        batches=BatchMaker(
            images,
            views,
            augmenters,
            batch_size=settings.batch_size,
            seed=settings.seed,
            balanced=settings.sampler == "balanced",
            uses_hidden_labels=algorithm_class.uses_hidden_labels,
            processes=processes,
        ),
        optimizer=build_optimizer(classifier, algorithm, settings.optimizer, settings.lr),
        ema=None if fitted else _average(classifier, settings.ema),
        validation=validation,
        precision=precision,
        autocast=make_autocast(precision, device),
        scaler=make_scaler(precision, device),
        recorder=StepRecorder(
            task.label_counts,
            processes,
            table.class_counts(split.validation).tolist(),
            type(algorithm).metrics,
        ),
        processes=processes,
        prior=_prior(settings, table, split),
        pool_filter=make_filter(
            settings, validation[0], algorithm, knows_classes=head_init == "probe"
        )
        if draws
        else None,
        test=test[0],
        transfer=transfer_for(
            algorithm,
            views,
            probe=settings.model.probe is True,
            features=table.features is not None,
            freeze=settings.model.freeze,
            head=head_init,
            count=0 if needs_images else settings.model.feature_views,
            batch_size=settings.eval_batch_size,
            seed=settings.seed,
            progress=progress,
        ),
    )
    trainer.predictor.check()
    return Experiment(
        config, table, split, leaks, trainer, test, device, tuple(notes), tuple(warnings)
    )


def _prior(settings: ResolvedSettings, table: ImageTable, split: Split) -> Tensor | None:
    if isinstance(settings.prior, dict):
        return torch.from_numpy(ordered_prior(settings.prior, table.classes)).float()
    if settings.pseudo_labels is None:
        return None
    # Pseudo labels are selected, often more of rare classes: they say little about the pool.
    pseudo = pseudo_labeled(table, Path(settings.pseudo_labels))[1]
    counts = table.class_counts(np.setdiff1d(split.labeled, pseudo)).tolist()
    return shares_of(counts) if labels_are_informative(counts) else None


def _task(
    classifier: Classifier,
    table: ImageTable,
    split: Split,
    settings: ResolvedSettings,
    processes: ProcessGroup,
) -> TaskInfo:
    counts = table.class_counts(split.labeled)
    return TaskInfo(
        num_classes=len(table.classes),
        feature_dim=classifier.backbone.feature_dim,
        label_counts=tuple(int(count) for count in counts),
        unlabeled_count=len(split.unlabeled),
        max_steps=settings.steps,
        image_size=settings.image_size,
        channels=classifier.channels,
        batch_size=settings.batch_size,
        processes=processes.size,
        kind=settings.task,
        labeled_images=None if table.label_sets is None else len(split.labeled),
        flip=settings.augment.flip is True,
        model_factory=ModelFactory(settings, table.classes),
    )


def _part(
    images: TrainingImages, table: ImageTable, rows: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Return the image indices and the labels of a part of the split."""
    labels = table.labels[rows] if table.label_sets is None else table.targets(rows)
    return images.indices_of(rows), torch.from_numpy(labels).to(images.labels.device)


def _augmenter(name: str, options: Options, flip: bool, device: torch.device) -> Augmenter:
    plugin: type[Augmenter] = registry.load("augmenters", name)
    return construct("augmenter", name, plugin, options, flip=flip).to(device)


def _average(classifier: Classifier, settings: EMASettings | Literal[False]) -> EMA | None:
    if settings is False:
        return None
    assert isinstance(settings.decay, float)
    return EMA(classifier, settings.decay, settings.average_buffers, warmup=settings.warmup)
