"""What a plugin implements and what the engine promises it.

Symbols used in all docstrings: B labeled images a step, U = B · unlabeled_ratio unlabeled
images a step, C classes, (H, W) height and width in pixels. Images are float tensors in [0, 1],
in RGB order, *not* normalized: the classifier normalizes.

A plugin's class says which version of this contract it was made for, ``api_version = (1, 0)``
(`ssl_toolkit.API_VERSION`); one that was made for another is refused in one line.
"""

from ssl_toolkit.interfaces.algorithms import (
    Algorithm,
    Batch,
    Context,
    FeatureAlgorithm,
    Guess,
    Loss,
    Prediction,
    StepOutput,
    Task,
    TrainingFeatures,
    Views,
)
from ssl_toolkit.interfaces.augmenters import Augmenter, Draws
from ssl_toolkit.interfaces.backbones import Backbone, ChannelStatistics
from ssl_toolkit.interfaces.datasets import Dataset, DatasetDefaults, ImageTable, Part
from ssl_toolkit.interfaces.launchers import Ended, Launcher, Unit
from ssl_toolkit.interfaces.loggers import LoggedRun, Logger

__all__ = [
    "Algorithm",
    "Augmenter",
    "Backbone",
    "Batch",
    "ChannelStatistics",
    "Context",
    "Dataset",
    "DatasetDefaults",
    "Draws",
    "Ended",
    "FeatureAlgorithm",
    "Guess",
    "ImageTable",
    "Launcher",
    "LoggedRun",
    "Logger",
    "Loss",
    "Part",
    "Prediction",
    "StepOutput",
    "Task",
    "TrainingFeatures",
    "Unit",
    "Views",
]
