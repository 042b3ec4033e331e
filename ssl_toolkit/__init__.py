"""Semi-supervised image classification: many images, few labels, numbers you can trust.

The public names are loaded on first use, so that ``import ssl_toolkit`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssl_toolkit.api import API_VERSION as API_VERSION
    from ssl_toolkit.comparisons.types import ComparedRun as ComparedRun
    from ssl_toolkit.comparisons.types import Comparison as Comparison
    from ssl_toolkit.comparisons.types import Difference as Difference
    from ssl_toolkit.comparisons.types import ScoreStats as ScoreStats
    from ssl_toolkit.comparisons.types import Variant as Variant
    from ssl_toolkit.config.options import Options as Options
    from ssl_toolkit.config.options import option as option
    from ssl_toolkit.data.readers.arrays import ImageArray as ImageArray
    from ssl_toolkit.data.readers.arrays import array_table as array_table
    from ssl_toolkit.data.readers.file_table import file_table as file_table
    from ssl_toolkit.data.sets.local_files import default_root as default_root
    from ssl_toolkit.data.sets.local_files import require_files as require_files
    from ssl_toolkit.data.sets.local_files import wrap_dataset_errors as wrap_dataset_errors
    from ssl_toolkit.data.splits.draw import hashed_order as hashed_order
    from ssl_toolkit.engine.ema import EMA as EMA
    from ssl_toolkit.engine.metrics import convergence_step as convergence_step
    from ssl_toolkit.errors import ConfigError as ConfigError
    from ssl_toolkit.errors import DataError as DataError
    from ssl_toolkit.errors import ModelError as ModelError
    from ssl_toolkit.errors import PluginError as PluginError
    from ssl_toolkit.errors import ToolkitError as ToolkitError
    from ssl_toolkit.errors import TrainingError as TrainingError
    from ssl_toolkit.errors import UserError as UserError
    from ssl_toolkit.estimator import SemiSupervisedClassifier as SemiSupervisedClassifier
    from ssl_toolkit.inference.embed import Embeddings as Embeddings
    from ssl_toolkit.inference.embed import embed as embed
    from ssl_toolkit.inference.evaluate import Evaluation as Evaluation
    from ssl_toolkit.inference.evaluate import evaluate as evaluate
    from ssl_toolkit.inference.export import ExportedModel as ExportedModel
    from ssl_toolkit.inference.export import export as export
    from ssl_toolkit.inference.model import Model as Model
    from ssl_toolkit.inference.model import load_model as load_model
    from ssl_toolkit.inference.predict import ImagePrediction as ImagePrediction
    from ssl_toolkit.inference.predict import predict as predict
    from ssl_toolkit.inference.pseudo_label import PseudoLabeling as PseudoLabeling
    from ssl_toolkit.inference.pseudo_label import pseudo_label as pseudo_label
    from ssl_toolkit.interfaces import Algorithm as Algorithm
    from ssl_toolkit.interfaces import AugmentationParams as AugmentationParams
    from ssl_toolkit.interfaces import Augmenter as Augmenter
    from ssl_toolkit.interfaces import Backbone as Backbone
    from ssl_toolkit.interfaces import Batch as Batch
    from ssl_toolkit.interfaces import Context as Context
    from ssl_toolkit.interfaces import Dataset as Dataset
    from ssl_toolkit.interfaces import DatasetDefaults as DatasetDefaults
    from ssl_toolkit.interfaces import FeatureAlgorithm as FeatureAlgorithm
    from ssl_toolkit.interfaces import ForwardOutput as ForwardOutput
    from ssl_toolkit.interfaces import ImageTable as ImageTable
    from ssl_toolkit.interfaces import Job as Job
    from ssl_toolkit.interfaces import JobResult as JobResult
    from ssl_toolkit.interfaces import Launcher as Launcher
    from ssl_toolkit.interfaces import Logger as Logger
    from ssl_toolkit.interfaces import Loss as Loss
    from ssl_toolkit.interfaces import Metric as Metric
    from ssl_toolkit.interfaces import Part as Part
    from ssl_toolkit.interfaces import PseudoLabels as PseudoLabels
    from ssl_toolkit.interfaces import RunInfo as RunInfo
    from ssl_toolkit.interfaces import StepOutput as StepOutput
    from ssl_toolkit.interfaces import TaskInfo as TaskInfo
    from ssl_toolkit.interfaces import TrainingFeatures as TrainingFeatures
    from ssl_toolkit.interfaces import Views as Views
    from ssl_toolkit.launchers.job import JobProcess as JobProcess
    from ssl_toolkit.models.heads import FeatureHead as FeatureHead
    from ssl_toolkit.models.heads import FeatureTransform as FeatureTransform
    from ssl_toolkit.models.heads import Neighbors as Neighbors
    from ssl_toolkit.models.probe import Probe as Probe
    from ssl_toolkit.models.probe import fit_probe as fit_probe
    from ssl_toolkit.models.probe import fit_soft_labels as fit_soft_labels
    from ssl_toolkit.models.probe import pooled_transform as pooled_transform
    from ssl_toolkit.models.probe import unit_length as unit_length
    from ssl_toolkit.multirun.compare import ComparisonResult as ComparisonResult
    from ssl_toolkit.multirun.compare import compare as compare
    from ssl_toolkit.registry import register_algorithm as register_algorithm
    from ssl_toolkit.registry import register_augmenter as register_augmenter
    from ssl_toolkit.registry import register_backbone as register_backbone
    from ssl_toolkit.registry import register_dataset as register_dataset
    from ssl_toolkit.registry import register_launcher as register_launcher
    from ssl_toolkit.registry import register_logger as register_logger
    from ssl_toolkit.reports.dataset import DatasetFacts as DatasetFacts
    from ssl_toolkit.reports.dataset import inspect as inspect
    from ssl_toolkit.reports.report import Report as Report
    from ssl_toolkit.reports.report import report as report
    from ssl_toolkit.runs.check import RunCheck as RunCheck
    from ssl_toolkit.runs.check import check_run as check_run
    from ssl_toolkit.runs.record import Change as Change
    from ssl_toolkit.runs.record import RunRecord as RunRecord
    from ssl_toolkit.runs.resume import resume as resume
    from ssl_toolkit.runs.summary import ClassScore as ClassScore
    from ssl_toolkit.runs.summary import Counts as Counts
    from ssl_toolkit.runs.summary import Health as Health
    from ssl_toolkit.runs.summary import ProbeScores as ProbeScores
    from ssl_toolkit.runs.summary import ProbeSummary as ProbeSummary
    from ssl_toolkit.runs.summary import RunResult as RunResult
    from ssl_toolkit.runs.summary import RunSummary as RunSummary
    from ssl_toolkit.runs.summary import Scores as Scores
    from ssl_toolkit.runs.train import train as train

__version__ = "0.1.0"

_HOMES = {
    "api": ("API_VERSION",),
    "config.options": ("Options", "option"),
    "data.readers.arrays": (
        "ImageArray",
        "array_table",
    ),
    "data.readers.file_table": ("file_table",),
    "data.sets.local_files": (
        "default_root",
        "require_files",
        "wrap_dataset_errors",
    ),
    "data.splits.draw": ("hashed_order",),
    "engine.ema": ("EMA",),
    "engine.metrics": ("convergence_step",),
    "launchers.job": ("JobProcess",),
    "models.heads": ("FeatureHead", "FeatureTransform", "Neighbors"),
    "models.probe": ("Probe", "fit_probe", "fit_soft_labels", "pooled_transform", "unit_length"),
    "inference.embed": ("Embeddings", "embed"),
    "estimator": ("SemiSupervisedClassifier",),
    "inference.model": ("Model", "load_model"),
    "runs.train": ("train",),
    "runs.resume": ("resume",),
    "runs.check": (
        "RunCheck",
        "check_run",
    ),
    "runs.summary": (
        "ClassScore",
        "Counts",
        "Health",
        "ProbeScores",
        "ProbeSummary",
        "RunResult",
        "RunSummary",
        "Scores",
    ),
    "runs.record": (
        "Change",
        "RunRecord",
    ),
    "inference.evaluate": (
        "Evaluation",
        "evaluate",
    ),
    "inference.export": (
        "ExportedModel",
        "export",
    ),
    "inference.predict": (
        "ImagePrediction",
        "predict",
    ),
    "inference.pseudo_label": (
        "PseudoLabeling",
        "pseudo_label",
    ),
    "multirun.compare": (
        "ComparisonResult",
        "compare",
    ),
    "comparisons.types": (
        "ComparedRun",
        "Comparison",
        "Difference",
        "ScoreStats",
        "Variant",
    ),
    "reports.report": (
        "Report",
        "report",
    ),
    "reports.dataset": (
        "DatasetFacts",
        "inspect",
    ),
    "errors": (
        "ConfigError",
        "DataError",
        "ModelError",
        "PluginError",
        "ToolkitError",
        "TrainingError",
        "UserError",
    ),
    "interfaces": (
        "Algorithm",
        "Augmenter",
        "Backbone",
        "Batch",
        "Context",
        "Dataset",
        "DatasetDefaults",
        "AugmentationParams",
        "JobResult",
        "FeatureAlgorithm",
        "Part",
        "PseudoLabels",
        "ImageTable",
        "Launcher",
        "RunInfo",
        "Logger",
        "Loss",
        "Metric",
        "ForwardOutput",
        "StepOutput",
        "TaskInfo",
        "TrainingFeatures",
        "Job",
        "Views",
    ),
    "registry": (
        "register_algorithm",
        "register_augmenter",
        "register_backbone",
        "register_dataset",
        "register_launcher",
        "register_logger",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
