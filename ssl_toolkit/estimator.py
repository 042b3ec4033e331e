"""The toolkit as a scikit-learn estimator."""

from __future__ import annotations

import os
from contextlib import nullcontext
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from ssl_toolkit.console import Console
from ssl_toolkit.data.label_values import label_name
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.inference.model import Model, load_model
from ssl_toolkit.runs.train import train

_OWN = ("algo", "backbone", "pretrained", "image_size", "steps", "seed", "device", "output")
"""Parameters that are keys of a configuration too."""


class SemiSupervisedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that is trained on labeled and unlabeled images or features.

    Each `fit` is a run of the toolkit (`ssl_toolkit.train`). ``X`` is features (N, D), an array or
    a table; or images: an array (N, H, W, C) or (N, H, W), a tensor (N, C, H, W), a list of paths,
    Pillow images or arrays. ``y`` is -1 or None for a row without label, or a text that means no
    label in a manifest, such as ``unlabeled``.

    Attributes:
        classes_: (C,) the labels, in the order of the columns of `predict_proba`.
        transduction_: (N,) the label of every row of `fit`: from ``y``, or predicted.
        algorithm_: Name of the algorithm, also if ``auto`` chose it.
        model_: The `ssl_toolkit.Model`.
        n_features_in_: D; only after fitting to features.

    Args:
        algo: Name of an algorithm; ``auto`` chooses one by cross-validation on the labels.
        backbone: Name of the network for images; None for a small one, and for features.
        pretrained: Start a named backbone from its published weights.
        image_size: Side in pixels, or a text such as ``48x64``; None for the backbone's default.
        steps: Optimizer steps, if the algorithm takes steps.
        seed: Seed of all random numbers.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        options: Other keys of a configuration, as for `ssl_toolkit.train`; the classes are those
            of ``y``.
        output: Folder of the run, which each fit replaces; None for a temporary one.
        verbose: Print the progress of the run.
    """

    def __init__(
        self,
        algo: str = "auto",
        *,
        backbone: str | None = None,
        pretrained: bool = True,
        image_size: int | str | None = None,
        steps: int | None = None,
        seed: int = 0,
        device: str = "auto",
        options: dict[str, Any] | None = None,
        output: str | os.PathLike[str] | None = None,
        verbose: bool = False,
    ) -> None:
        self.algo = algo
        self.backbone = backbone
        self.pretrained = pretrained
        self.image_size = image_size
        self.steps = steps
        self.seed = seed
        self.device = device
        self.options = options
        self.output = output
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows with and without a label.

        Args:
            X: (N, ...) features or images.
            y: (N,) labels: integers, strings or booleans; -1 or None for none.

        Raises:
            ValueError: X or y has a form that scikit-learn estimators refuse.
            ToolkitError: As `ssl_toolkit.train`.
        """
        others = dict(self.options or {})
        for key in sorted(others.keys() & {*_OWN, "classes"}):
            setter = "y" if key == "classes" else f"the parameter {key}"
            raise ConfigError(f"options: {key} is set by {setter}; leave it out of the options")
        X, given, known = self._checked(X, y)
        self.classes_: NDArray[Any]
        self.classes_, places = np.unique(given, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y has labels of 1 class; two are the least")
        names = _distinct_names(self.classes_.tolist())
        labels = np.full(len(known), "", dtype=object)
        labels[known] = np.array(names, dtype=object)[places]
        options = {key: getattr(self, key) for key in _OWN} | {"classes": names}
        options |= {"pretrained": self.pretrained and self.backbone is not None}
        temporary = TemporaryDirectory(prefix="ssl-toolkit-") if self.output is None else None
        with temporary or nullcontext("") as folder:
            output = {"output": os.fspath(self.output or os.path.join(folder, "run"))}
            outcome = train(
                options | output | others,
                images=X,
                labels=labels,
                overwrite=self.output is not None,
                console=Console(silent=not self.verbose),
            )
            self.model_: Model = load_model(outcome.folder, self.device)
        self.algorithm_: str = outcome.summary.algorithm
        self.transduction_: NDArray[Any] = np.empty(len(known), dtype=self.classes_.dtype)
        self.transduction_[known] = given
        if not known.all():
            rows = [X[row] for row in np.flatnonzero(~known)] if isinstance(X, list) else X[~known]
            best = self._probabilities(rows).argmax(axis=1)
            self.transduction_[~known] = self.classes_[best]
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the (N,) most probable labels."""
        best = self.predict_proba(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return (N, C) probabilities in the order of `classes_`."""
        check_is_fitted(self)
        images = _images(X)
        if images is None:
            images = validate_data(self, X, reset=False, dtype=np.float32)
        return self._probabilities(images)

    def _checked(self, X: Any, y: Any) -> tuple[Any, NDArray[Any], NDArray[np.bool_]]:
        """Return features or images, the labels, and an (N,) mask of the labeled rows."""
        if y is not None and (y := np.asarray(y)).dtype == object:
            y = np.array([None if label != label else label for label in y], dtype=object)
        self.__dict__.pop("n_features_in_", None)
        images = _images(X)
        if images is None:
            images, y = validate_data(self, X, y, dtype=np.float32)
        elif y is None:
            raise ValueError("fit requires y to be passed, but the target y is None")
        y = column_or_1d(y)
        check_consistent_length(images, y)
        if y.dtype.kind == "f":
            check_classification_targets(y)
        known = np.array([_name(label) != "" for label in y.tolist()])
        if not known.any():
            raise ValueError("y has no label, only -1 or None")
        given = y[known]
        if given.dtype == object and not isinstance(given[0], str):
            given = np.array(given.tolist())  # integers among None
        check_classification_targets(given)
        return images, given, known

    def _probabilities(self, images: Any) -> NDArray[np.float64]:
        rows = self.model_.predict(images if getattr(images, "ndim", 0) == 2 else [*images])
        exact: NDArray[np.float64] = rows.astype(np.float64)
        exact /= exact.sum(axis=1, keepdims=True)
        return exact


def _name(label: Any) -> str:
    return str(label) if isinstance(label, bool) else label_name(label, "y")


def _distinct_names(labels: list[Any]) -> list[str]:
    """Return the class name of each label.

    Raises:
        ValueError: Two labels are equal without the spaces around them.
    """
    of_name: dict[str, Any] = {}
    for label in labels:
        other = of_name.setdefault(_name(label), label)
        if other is not label:
            raise ValueError(f"the labels {other!r} and {label!r} of y are equal after stripping")
    return [*of_name]


def _images(X: Any) -> Any:
    """Return X if it is an array or list of images; None for features."""
    dimensions = getattr(X, "ndim", None)
    if dimensions in (3, 4):
        return X
    if dimensions == 1 or isinstance(X, list | tuple):
        first = next(iter(X), None)
        if isinstance(first, str | os.PathLike | Image.Image) or getattr(first, "ndim", 0) >= 2:
            return list(X)
    return None
