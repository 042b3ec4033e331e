"""Predictions of a classifier, by its head or by the algorithm of its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ssl_toolkit import registry
from ssl_toolkit.errors import ModelError, PluginError, ToolkitError
from ssl_toolkit.interfaces import Algorithm, ForwardOutput, TaskInfo
from ssl_toolkit.interfaces.results import check_tensor
from ssl_toolkit.models.classifier import Classifier, in_eval_mode
from ssl_toolkit.models.factory import DESCRIBED, rebuild

METHODS = ("predict", "stranger_scores")
"""Methods of `Algorithm` that a model uses."""


class Predictor(nn.Module):
    """A classifier whose logits and stranger scores are those of `Algorithm.predict` and the like.

    Args:
        classifier: Classifier to evaluate; shared, not copied.
        algorithm: Algorithm of the run; ignored if it overrides none of `METHODS`.
        name: Name of the algorithm.
        averages: Module whose submodules replace those of the algorithm in `predict`; `by_path`
            returns their names.
    """

    def __init__(
        self,
        classifier: Classifier,
        algorithm: Algorithm,
        name: str,
        averages: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.classifier = classifier
        kind = type(algorithm)
        self.methods: tuple[str, ...] = tuple(
            name for name in METHODS if getattr(kind, name) is not getattr(Algorithm, name)
        )
        """Those of `METHODS` that the algorithm overrides."""
        self.algorithm: Algorithm | None = algorithm if self.methods else None
        self.name = name
        self.averages: nn.Module = nn.Module() if averages is None else averages

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.classifier.num_classes

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return probabilities (N, C) of logits (N, C), as `Classifier.probabilities`."""
        return self.classifier.probabilities(logits)

    def forward(self, images: Tensor) -> ForwardOutput:
        """Return the features of images and the logits of `predict`, as `Classifier.forward`."""
        output = self.classifier.forward(images)  # not compiled, as in evaluation
        return ForwardOutput(output.features, self.logits(output))

    def logits(
        self, output: ForwardOutput, predict: Callable[[ForwardOutput], Tensor] | None = None
    ) -> Tensor:
        """Return the logits (N, C) for an output of the classifier.

        Args:
            output: Output of the classifier.
            predict: `Algorithm.predict` of a part of the algorithm; None for that of the whole.

        Raises:
            PluginError: `predict` returned something else.
        """
        if self.algorithm is None or "predict" not in self.methods:
            return output.logits
        with self._averaged(self.algorithm), in_eval_mode(self.algorithm):
            logits = (predict or self.algorithm.predict)(output)
        of = f"predict of algorithm {self.name!r}"
        return check_tensor(logits, output.logits.shape, of, what="logits")

    def stranger_scores(self, output: ForwardOutput) -> Tensor:
        """Return scores (N,), large for images of no class.

        Args:
            output: What `forward` returned.

        Raises:
            PluginError: `Algorithm.stranger_scores` returned something else.
        """
        if self.algorithm is None or "stranger_scores" not in self.methods:
            return self.classifier.stranger_scores(output)
        with self._averaged(self.algorithm), in_eval_mode(self.algorithm):
            scores = self.algorithm.stranger_scores(output)
        of = f"stranger_scores of algorithm {self.name!r}"
        return check_tensor(scores, output.logits.shape[:1], of, what="scores")

    @torch.no_grad()
    def check(self) -> None:
        """Call the methods once, for features and logits of zeros.

        Raises:
            PluginError: As `logits` and `stranger_scores`.
        """
        mean, sizes = self.classifier.mean, (self.classifier.backbone.feature_dim, self.num_classes)
        output = ForwardOutput(*(mean.new_zeros(2, size) for size in sizes))
        self.stranger_scores(ForwardOutput(output.features, self.logits(output)))

    def algorithm_state(self) -> dict[str, Tensor]:
        """Return the tensors that the methods may use, by name; empty without an algorithm."""
        if self.algorithm is None:
            return {}
        with self._averaged(self.algorithm):
            state = self.algorithm.state_dict()
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}

    def load(self, weights: Mapping[str, Tensor], algorithm_state: Mapping[str, Tensor]) -> None:
        """Load the weights of the classifier and a result of `algorithm_state`."""
        self.classifier.load_state_dict(weights)
        if self.algorithm is not None:
            with self._averaged(self.algorithm):
                _load(self.algorithm, algorithm_state)

    def description(self) -> dict[str, Any] | None:
        """Return the description for `restore_predictor`; None without an algorithm."""
        if self.algorithm is None:
            return None
        entry = registry.find("algorithms", self.name)
        task = {field.name: getattr(self.algorithm.task, field.name) for field in fields(TaskInfo)}
        return {
            "algorithm": self.name,
            "methods": list(self.methods),
            "distribution": entry.distribution,
            "options": self.algorithm.config.model_dump(mode="json"),
            "task": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in task.items()
                if isinstance(value, int | float | str | tuple)
            },
        }

    @contextmanager
    def _averaged(self, algorithm: Algorithm) -> Iterator[None]:
        """Replace submodules of the algorithm by their averages."""
        live = []
        for path, average in by_path(self.averages).items():
            parent, _, name = path.rpartition(".")
            modules = algorithm.get_submodule(parent)._modules
            live.append((modules, name, modules[name]))
            modules[name] = average
        try:
            yield
        finally:
            for modules, name, module in live:
                modules[name] = module


def by_path(averages: nn.Module) -> dict[str, nn.Module]:
    """Return averages of an algorithm's modules, by the names of `Algorithm.averaged_modules`.

    A name of a module can't contain the dots of such a path, so slashes replace them.
    """
    return {name.replace("/", "."): module for name, module in averages.named_children()}


def restore_predictor(
    classifier: Classifier, config: Mapping[str, Any], state: Mapping[str, Tensor], where: str
) -> Predictor:
    """Return the predictor of a saved model, on the CPU in eval mode.

    Args:
        classifier: Classifier with its weights.
        config: Description of the network, and the result of `Predictor.description` under the
            key ``predict``.
        state: Result of `Predictor.algorithm_state`.
        where: File of the configuration, for messages.

    Raises:
        PluginError: The algorithm is not installed.
        ModelError: The description or the state does not fit the algorithm.
    """
    description = config["predict"]
    try:
        name, source, _ = (description[key] for key in ("algorithm", "distribution", "methods"))
        if not registry.has("algorithms", name):
            hint = (
                "register its class before loading"
                if source == registry.NOTEBOOK
                else f"`pip install` {source}"
            )
            raise PluginError(
                f"{where}: the model predicts by algorithm {name!r}, which is not found; {hint}, "
                "or use a model written by `ssl-toolkit export --format torch-export` or onnx"
            )
        plugin: type[Algorithm] = registry.load("algorithms", name)
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in description["task"].items()
        }
        # Can be pickled, and does not keep the weights of a checkpoint.
        network = {key: config[key] for key in DESCRIBED if key in config}
        task = TaskInfo(**values, model_factory=partial(_new_model, network))
        with torch.random.fork_rng(devices=[]):
            algorithm = plugin(plugin.Config(**description["options"]), task)
        _load(algorithm, state)
    except ToolkitError:
        raise
    except Exception as error:  # another version of the plugin can raise almost anything
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{where}: the algorithm that predicts can't be restored: "
            f"{type(error).__name__}: {reason}"
        ) from error
    return Predictor(classifier, algorithm, name).eval()


def _new_model(description: Mapping[str, Any], pretrained: bool) -> Classifier:
    return rebuild(description)[0]


def _load(algorithm: Algorithm, state: Mapping[str, Tensor]) -> None:
    missing, unexpected = algorithm.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.endswith("_extra_state")]
    if missing or unexpected:
        raise ModelError(
            f"the state of the algorithm does not fit: missing {missing}, unexpected {unexpected}"
        )
