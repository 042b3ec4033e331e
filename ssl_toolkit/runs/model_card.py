"""The model card: results, use, data, training and limits of a trained model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ssl_toolkit.config import yaml
from ssl_toolkit.config.images import parse_size, size_text
from ssl_toolkit.data.load import named_dataset
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.markdown import bullets, escaped, table
from ssl_toolkit.models.export import preparation
from ssl_toolkit.models.factory import find_backbone
from ssl_toolkit.models.feature_input import feature_length
from ssl_toolkit.recipes import recipe_name
from ssl_toolkit.runs.multilabel import MultiLabelResults, MultiLabelScores
from ssl_toolkit.runs.record import RunRecord
from ssl_toolkit.runs.scoring import uneven_text
from ssl_toolkit.runs.summary import RunSummary, Scores

FEW = 30
"""Test images below which the accuracy of a class is imprecise: 30 at 50 % give ±17 points."""

_MOST_NAMED = 10


def model_card(
    experiment: Experiment, summary: RunSummary, record: RunRecord, config: dict[str, Any]
) -> str:
    """Return the model card of a finished run, Markdown after a YAML header.

    Names of classes, data and plugins are escaped. No absolute path is written.

    Args:
        experiment: with the reported weights.
        summary: of the finished run.
        record: of the run.
        config: ``config.json`` of the exported model.
    """
    parts = [
        _front(summary, config),
        f"# {escaped(summary.algorithm)}: {len(summary.classes)} classes, "
        f"{escaped(summary.backbone)}",
        "An image classifier trained with ssl-toolkit "
        f"{escaped(record.versions.get('ssl-toolkit', ''))} on "
        f"{escaped(_data_name(experiment))}: {_counts(summary)}.",
        "## Results\n\n" + _results(summary),
        "## Use\n\n" + _use(config),
        "## Data\n\n" + _classes(experiment, summary),
        "## Training\n\n" + _training(experiment, summary, record),
        "## Limits\n\n" + bullets(_limits(experiment, summary)),
        "## Licenses\n\n" + bullets(_licenses(experiment)),
    ]
    return "\n\n".join(parts) + "\n"


def _front(summary: RunSummary, config: dict[str, Any]) -> str:
    tags = ["image-classification", "semi-supervised-learning", "ssl-toolkit"]
    front: dict[str, Any] = {
        "pipeline_tag": "image-classification",
        "tags": [*tags, summary.algorithm],
        "metrics": ["accuracy", "f1"] if summary.multilabel is None else ["mAP", "f1"],
    }
    # The hub loads models that timm knows without another import.
    if "architecture" in config and find_backbone(config["backbone"])[0].timm_module is None:
        front = {"library_name": "timm", **front}
    return f"---\n# license: yours to choose; see Licenses below\n{yaml.dump(front)}---"


def _results(summary: RunSummary) -> str:
    if summary.multilabel is not None:
        return _multilabel_results(summary.multilabel, summary.seed)
    columns = ("accuracy", "balanced_accuracy", "macro_f1", "ece", "nll")
    rows = []
    for part, measured in (("test", summary.test), ("validation", summary.validation)):
        if measured is None:
            continue
        low, high = measured.interval
        scores = [f"{getattr(measured, column):.4f}" for column in columns]
        rows.append([part, str(measured.count), *scores[:1], f"{low:.4f} to {high:.4f}"])
        rows[-1] += scores[1:]
    if not rows:
        return "Not measured: there are no test or validation images."
    head = ("part", "images", "accuracy", "95 % interval", "balanced accuracy", "macro F1")
    seed = (
        f"One run, seed {summary.seed}. The interval is that of a bootstrap over the images "
        "(10,000 resamples), as in `summary.json` of the run: it covers the choice of images only."
    )
    scored = table((*head, "calibration error", "negative log-likelihood (nats)"), rows)
    return "\n\n".join([scored, *_balanced(summary), seed])


def _balanced(summary: RunSummary) -> Iterator[str]:
    """Yield a sentence on the balanced accuracy where the classes of the test are uneven."""
    test = summary.test
    if test is None or not test.uneven:
        return
    counts = uneven_text(score.count for score in test.per_class.values())
    interval = ""
    if test.balanced_interval is not None:
        low, high = test.balanced_interval
        interval = f"; its 95 % interval is {low:.4f} to {high:.4f}"
    yield (
        f"Compare models by the balanced accuracy, the mean of the accuracies of the classes: in "
        f"the test {counts}{interval}."
    )


def _multilabel_results(results: MultiLabelResults, seed: int) -> str:
    rows = []
    for part in ("test", "validation"):
        scores: MultiLabelScores | None = getattr(results, part)
        if scores is not None:
            low, high = scores.interval
            values = (scores.micro_f1, scores.macro_f1, scores.exact)
            rows.append(
                [part, str(scores.count), f"{scores.map:.4f}", f"{low:.4f} to {high:.4f}"]
                + [f"{value:.4f}" for value in values]
            )
    if not rows:
        return "Not measured: there are no test or validation images."
    head = ("part", "images", "mAP", "95 % interval", "micro F1", "macro F1", "all classes right")
    return (
        f"{table(head, rows)}\n\nAn image has any number of classes. mAP is the mean over the "
        "classes of the average precision; F1 counts a class as predicted from its threshold on. "
        f"One run, seed {seed}. The interval is that of a bootstrap over the images: it covers the "
        "choice of images only."
    )


def _use(config: dict[str, Any]) -> str:
    size, length = parse_size(config["image_size"]), feature_length(config["backbone"])
    arguments = '["image.jpg"])  # any size; (1, classes)'
    prepared = preparation(size, config["fit"], config["bits"])
    several = "thresholds" in config
    last = "sigmoid" if several else "softmax"
    inside = f"{prepared}; then the normalization, the network, {last}"
    if length is not None:
        arguments, inside = f"features)  # (N, {length}); (N, classes)", f"the head, {last}"
    lines = [
        "```python",
        "from ssl_toolkit import load_model",
        "",
        'model = load_model("FOLDER")  # where this card is, or the run around it',
        f"probabilities = model.predict({arguments}",
        *(["has = model.has_classes(probabilities)  # by the thresholds"] if several else []),
        "```",
        "",
        f"Inside `model`: {inside}.",
    ]
    if "architecture" in config:
        module = find_backbone(config["backbone"])[0].timm_module
        lines += [
            "",
            "```python",
            "import timm",
            *([f"import {module}"] if module else []),
            "",
            'network = timm.create_model("local-dir:FOLDER", pretrained=True).eval()',
            "data = timm.data.resolve_model_data_config(network)",
            "transform = timm.data.create_transform(**data)",
            *(
                ["transform.transforms[1].fill = 255  # timm would pad with the mean, not white"]
                if config["fit"] == "pad"
                else []
            ),
            "```",
            "",
            f"Inside `network`: neither normalization nor {last}. `transform` scales, "
            f"{'pads' if config['fit'] == 'pad' else 'crops'} and "
            "normalizes; `network.pretrained_cfg` has the normalization and the names of the "
            "classes (`label_names`).",
        ]
    return "\n".join(lines)


def _classes(experiment: Experiment, summary: RunSummary) -> str:
    data, split = experiment.table, experiment.split
    counts = [
        data.class_counts(part).tolist() for part in (split.labeled, split.validation, split.test)
    ]
    test = summary.test
    if (several := summary.multilabel) is not None:
        rows = [
            [escaped(name), *(str(count[i]) for count in counts), *_precision(several, name)]
            for i, name in enumerate(summary.classes)
        ]
        heads = ("class", "labeled", "validation", "test", "test AP", "test F1", "threshold")
        listed = table(heads, rows)
        return f"{_counts(summary)}. The classes, in the order of the output:\n\n{listed}"
    rows = [
        [escaped(name), *(str(count[i]) for count in counts), _accuracy(test, name)]
        for i, name in enumerate(summary.classes)
    ]
    head = ["class", "labeled", "validation", "test", "test accuracy"]
    if summary.imbalance is not None and (pool := summary.imbalance.pool) is not None:
        head.insert(2, "unlabeled")
        for name, row in zip(summary.classes, rows, strict=True):
            row.insert(2, str(pool[name]))
    listed = table(head, rows)
    tails = summary.imbalance
    drawn = f" Drawn with an imbalance of {' and '.join(tails.ratios)}." if tails else ""
    counts_text = f"{_counts(summary)}.{drawn}"
    return f"{counts_text} The classes, in the order of the output:\n\n{listed}"


def _training(experiment: Experiment, summary: RunSummary, record: RunRecord) -> str:
    config = experiment.config
    settings = config.settings
    start = "published weights" if settings.pretrained else "random weights"
    if settings.weights is not None:
        start = f"the file {Path(settings.weights).name}"
    overrides = {
        name: value
        for name, value in config.algorithm
        if value != getattr(type(config.algorithm)(), name)
    }
    options = ", ".join(f"{name} {value}" for name, value in overrides.items())
    step = summary.best_step
    kind = "averaged (EMA)" if settings.ema else "live"
    recipe = summary.recipe and recipe_name(summary.recipe, summary.scale)
    rows = {
        "algorithm": f"{summary.algorithm}, profile {summary.profile}",
        "recipe": recipe or "none",
        "options other than the defaults": options or "none",
        "backbone": f"{summary.backbone}, from {start}",
        "image size": f"{size_text(settings.image_size)} px, fit {settings.fit}",
        "channels": str(settings.pixels),
        "steps": f"{summary.steps}, labeled images per step: {settings.batch_size}",
        "weights": f"{kind}, of the last step"
        if step is None
        else f"{kind}, of step {step}, the best on validation",
        "optimizer": f"{settings.optimizer.name}, learning rate {settings.lr}, "
        f"weight decay {settings.optimizer.weight_decay}",
        "seed": summary.seed,
        "configuration": "config.yaml in the folder of the run, which "
        "ssl-toolkit run --config config.yaml repeats",
        "fingerprint of what comparisons hold equal": summary.fingerprint,
        "time": f"{summary.seconds:.1f} s",
        "hardware": f"{record.device}, {record.platform}, {record.precision}",
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
    }
    return table(("property", "value"), [[name, escaped(value)] for name, value in rows.items()])


def _limits(experiment: Experiment, summary: RunSummary) -> list[str]:
    test, seed, several = summary.test, summary.seed, summary.multilabel
    lines = [
        f"The scores are those of one run with seed {seed}. Another seed draws other labels and "
        "gives other scores; a single run does not show how much they vary."
    ]
    if several is not None and several.test is not None:
        few = [
            f"{escaped(name)} ({score.count})"
            for name, score in several.test.per_class.items()
            if score.count < FEW
        ]
        if few:
            lines.append(f"Classes with fewer than {FEW} test images: {_some(few)}.")
    elif test is None:
        lines.append("No test images: the accuracy on unseen images is unknown.")
    else:
        low, high = test.interval
        lines.append(
            f"The test has {test.count} images: an accuracy of {test.accuracy:.4f} means "
            f"{low:.4f} to {high:.4f} (95 %) for more images of the same kind, not for images of "
            "other kinds."
        )
        per_class = test.per_class.items()
        few = [f"{escaped(n)} ({score.count})" for n, score in per_class if score.count < FEW]
        if few:
            lines.append(
                f"Classes with fewer than {FEW} test images, whose accuracy is imprecise: "
                f"{_some(few)}."
            )
    lines.append(
        "There are no validation images: the last weights are reported."
        if not summary.counts.validation
        else "The weights and thresholds were chosen by the validation images, whose scores are "
        "therefore too high."
        if several is not None
        else "The weights were chosen by the validation accuracy, which is therefore too high."
    )
    counts = experiment.table.class_counts(experiment.split.labeled).tolist()
    single = [escaped(n) for n, c in zip(summary.classes, counts, strict=True) if c <= 1]
    if single:
        lines.append(f"Classes with one labeled image or none: {_some(single)}.")
    if several is None:
        lines.append("Every image gets one of these classes, even if it shows none of them.")
    lines[-1] += " The probabilities are not calibrated."
    return lines + [
        f"The run warned: {escaped(_private(w, experiment))}" for w in experiment.warnings
    ]


def _licenses(experiment: Experiment) -> list[str]:
    settings = experiment.config.settings
    lines = ["The author of these weights chooses their license."]
    if settings.data is not None:
        lines.append("The rights to the images remain with their owners.")
    else:
        lines += _terms(settings.dataset or "")
    if settings.pretrained or settings.weights is not None:
        lines.append("The initial weights have their own terms.")
    return [*lines, "ssl-toolkit, which trained them, is under Apache-2.0."]


def _terms(name: str) -> list[str]:
    dataset = named_dataset(name)
    terms = f"The terms of the data set {escaped(name)} apply."
    if not dataset.citation:
        return [terms]
    link = f"<{dataset.homepage}>" if dataset.homepage else ""
    source = ", ".join(filter(None, (dataset.citation, link, dataset.license)))
    return [f"The images: {source}.", *([] if dataset.license or dataset.is_example else [terms])]


def _precision(results: MultiLabelResults, name: str) -> tuple[str, str, str]:
    scores = results.test or results.validation
    if scores is None:
        return "", "", ""
    score = scores.per_class[name]
    precision = "" if score.average_precision is None else f"{score.average_precision:.4f}"
    threshold = f"{score.threshold:.4f}"
    return (precision, f"{score.f1:.4f}", threshold) if results.test else ("", "", threshold)


def _accuracy(test: Scores | None, name: str) -> str:
    accuracy = None if test is None else test.per_class[name].accuracy
    return "" if accuracy is None else f"{accuracy:.4f}"


def _counts(summary: RunSummary) -> str:
    listed = ", ".join(f"{count} {part}" for part, count in summary.counts)
    return listed + (
        f"; {summary.strangers} of the unlabeled are strangers" * bool(summary.strangers)
    )


def _data_name(experiment: Experiment) -> str:
    settings = experiment.config.settings
    if settings.data is None:
        return settings.dataset or ""
    return Path(settings.data).resolve().name


def _private(text: str, experiment: Experiment) -> str:
    """Return a line without the absolute path of the data."""
    data = experiment.config.settings.data
    if data is None or not Path(data).is_absolute():
        return text
    return text.replace(data, _data_name(experiment))


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
