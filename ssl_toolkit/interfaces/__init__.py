"""The interfaces that plugins implement, and what the engine guarantees them.

Symbols in all docstrings: B labeled images per step, U = B · unlabeled_ratio unlabeled images per
step, C classes, (H, W) height and width in pixels. Images are float tensors in [0, 1], by
default three channels in RGB order, *not* normalized: the classifier normalizes.

The class of a plugin states the version of this contract that it implements,
``api_version = (1, 0)`` (`ssl_toolkit.API_VERSION`); another version is refused in one line.
"""

from ssl_toolkit.config.images import PixelFormat
from ssl_toolkit.interfaces.addons import AddOn
from ssl_toolkit.interfaces.algorithms import (
    Algorithm,
    FeatureAlgorithm,
    Loss,
    PseudoLabels,
    StepOutput,
    TrainingFeatures,
)
from ssl_toolkit.interfaces.augmenters import AugmentationParams, Augmenter
from ssl_toolkit.interfaces.backbones import Backbone, ChannelStatistics
from ssl_toolkit.interfaces.context import Context, ForwardOutput
from ssl_toolkit.interfaces.datasets import Dataset, DatasetDefaults, ImageTable, SplitName
from ssl_toolkit.interfaces.launchers import Job, JobResult, Launcher
from ssl_toolkit.interfaces.loggers import Logger, RunInfo
from ssl_toolkit.interfaces.metrics import Metric
from ssl_toolkit.interfaces.tasks import Task, TaskInfo
from ssl_toolkit.interfaces.views import Batch, View, Views

__all__ = [
    "AddOn",
    "Algorithm",
    "AugmentationParams",
    "Augmenter",
    "Backbone",
    "Batch",
    "ChannelStatistics",
    "Context",
    "Dataset",
    "DatasetDefaults",
    "FeatureAlgorithm",
    "ForwardOutput",
    "ImageTable",
    "Job",
    "JobResult",
    "Launcher",
    "Logger",
    "Loss",
    "Metric",
    "PixelFormat",
    "PseudoLabels",
    "RunInfo",
    "SplitName",
    "StepOutput",
    "Task",
    "TaskInfo",
    "TrainingFeatures",
    "View",
    "Views",
]
