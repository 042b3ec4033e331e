"""Mistakes in the code of a plugin: each is told in one line, with plugin, file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import call
from torch import Tensor, nn
from torch.nn import functional as F

import ssl_toolkit
from ssl_toolkit import (
    Algorithm,
    Augmenter,
    Backbone,
    Batch,
    Context,
    Loss,
    PluginError,
    PseudoLabels,
    StepOutput,
    TaskInfo,
    TrainingError,
    View,
    Views,
    registry,
)
from ssl_toolkit.augment.weak import Weak

HERE = re.escape(Path(__file__).name)
KEYS = {"batch_size": 8, "steps": 6, "eval_every": 6, "log_every": 6}


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins that a test registers are gone after it; places are told from this folder."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.chdir(Path(__file__).parent)


def labels(batch: Batch, ctx: Context) -> Tensor:
    return F.cross_entropy(ctx.model(batch.labeled_weak[0]).float(), batch.labels)


class Method(Algorithm):
    """The parent of all methods here."""

    def views(self) -> Views:
        return Views(unlabeled_weak=1)


def register(step: Any, **members: Any) -> type[Algorithm]:
    """A method with this step, registered as ``mistaken``."""
    body = {"step": step, "__doc__": "A method.", "__module__": __name__, **members}
    made: type[Algorithm] = type("Mistaken", (Method,), body)
    return ssl_toolkit.register_algorithm("mistaken")(made)


def train(output: Path, **keys: Any) -> list[dict[str, Any]]:
    """The rows of a run of it."""
    tree = {"algo": "mistaken", "output": str(output), **KEYS, **keys}
    folder = ssl_toolkit.train(tree).folder
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# --- what a step returns ------------------------------------------------------------------------


def unlabeled(batch: Batch, ctx: Context) -> Tensor:
    return ctx.teacher(batch.unlabeled_weak[0]).softmax(dim=-1)


WRONG: dict[str, tuple[Callable[[Any, Batch, Context], Any], str]] = {
    "no return": (lambda self, b, c: None, r"returned nothing (a missing `return`?) instead of"),
    "a dict": (lambda self, b, c: {"supervised": Loss(labels(b, c))}, "returned a dict instead of"),
    "no Loss": (
        lambda self, b, c: StepOutput({"supervised": labels(b, c)}),  # type: ignore[dict-item]
        "returned loss 'supervised' as a Tensor instead of a Loss(value, weight)",
    ),
    "a list of losses": (
        lambda self, b, c: StepOutput([Loss(labels(b, c))]),  # type: ignore[arg-type]
        "returned losses as a list instead of a dict by name",
    ),
    "no losses": (lambda self, b, c: StepOutput({}), "returned no losses"),
    "no mean": (
        lambda self, b, c: StepOutput({"supervised": Loss(labels(b, c).expand(8))}),
        "returned loss 'supervised' with the shape (8,) instead of a 0-dim tensor (a missing mean",
    ),
    "whole numbers": (
        lambda self, b, c: StepOutput({"supervised": Loss(labels(b, c).long())}),
        "returned loss 'supervised' as torch.int64 instead of floating point",
    ),
    "a float": (
        lambda self, b, c: StepOutput({"supervised": Loss(1.0)}),  # type: ignore[arg-type]
        "returned loss 'supervised' as a float instead of a 0-dim tensor",
    ),
    "detached": (
        lambda self, b, c: StepOutput({"supervised": Loss(labels(b, c).detach())}),
        "returned losses without a gradient (all detached?)",
    ),
    "a name with a dot": (
        lambda self, b, c: StepOutput({"Sup.loss": Loss(labels(b, c))}),
        "returned 'Sup.loss' as a name in losses; names are lower-case letters, digits and",
    ),
    "a weight below 0": (
        lambda self, b, c: StepOutput({"supervised": Loss(labels(b, c), -1.0)}),
        "returned loss 'supervised' with -1.0 as its weight; a weight is a finite number >= 0",
    ),
    "a late weight below 0": (
        lambda self, b, c: StepOutput({"supervised": Loss(labels(b, c), 3 - c.step)}),
        "returned loss 'supervised' with -1 as its weight",
    ),
    "a weight of nan": (
        lambda self, b, c: StepOutput({"supervised": Loss(labels(b, c), float("nan"))}),
        "returned loss 'supervised' with nan as its weight",
    ),
    "a tensor for a weight": (
        lambda self, b, c: StepOutput(
            {"supervised": Loss(labels(b, c), torch.ones(1))}  # type: ignore[arg-type]
        ),
        "returned loss 'supervised' with a Tensor as its weight",
    ),
    "a float for a metric": (
        lambda self, b, c: StepOutput(
            {"supervised": Loss(labels(b, c))},
            metrics={"a": 1.5},  # type: ignore[dict-item]
        ),
        "returned metric 'a' as a float instead of a 0-dim tensor",
    ),
    "a vector for a metric": (
        lambda self, b, c: StepOutput(
            {"supervised": Loss(labels(b, c))}, metrics={"a": torch.zeros(3)}
        ),
        "returned metric 'a' with the shape (3,) instead of a 0-dim tensor (a missing mean()?)",
    ),
    "a metric of the engine": (
        lambda self, b, c: StepOutput(
            {"supervised": Loss(labels(b, c))}, metrics={"coverage": torch.ones(())}
        ),
        "returned metric 'coverage', a name reserved by the engine; choose another",
    ),
    "a metric of the engine's pairs": (
        lambda self, b, c: StepOutput(
            {"supervised": Loss(labels(b, c))},
            pairs={"near": torch.ones(8, 8, dtype=torch.bool)},
            metrics={"pair_near_false": torch.ones(())},
        ),
        "returned metric 'pair_near_false', a name reserved by the engine",
    ),
    "pseudo labels of two views": (
        lambda self, b, c: StepOutput(
            {"supervised": Loss(labels(b, c))},
            pseudo_labels=PseudoLabels(
                unlabeled(b, c).repeat(2, 1), torch.ones(16, dtype=torch.bool)
            ),
        ),
        "returned pseudo_labels.probs with the shape (16, 10) instead of (8, 10): a row for each "
        "unlabeled",
    ),
    "a mask of floats": (
        lambda self, b, c: StepOutput(
            {"supervised": Loss(labels(b, c))},
            pseudo_labels=PseudoLabels(unlabeled(b, c), torch.ones(8)),
        ),
        "returned pseudo_labels.mask as torch.float32 instead of torch.bool",
    ),
    "a tuple for pseudo labels": (
        lambda self, b, c: StepOutput(
            {"supervised": Loss(labels(b, c))},
            pseudo_labels=(unlabeled(b, c), torch.ones(8)),  # type: ignore[arg-type]
        ),
        "returned pseudo_labels as a tuple instead of PseudoLabels",
    ),
    "pairs of floats": (
        lambda self, b, c: StepOutput(
            {"supervised": Loss(labels(b, c))}, pairs={"near": torch.ones(8, 8)}
        ),
        "returned pairs 'near' as torch.float32 instead of torch.bool",
    ),
}


def late_detached(self: Any, batch: Batch, ctx: Context) -> StepOutput:
    loss = labels(batch, ctx)
    return StepOutput({"supervised": Loss(loss if ctx.step < 2 else loss.detach())})


WRONG["late detached"] = (late_detached, "returned losses without a gradient (all detached?)")


def backward_inside(self: Any, batch: Batch, ctx: Context) -> StepOutput:
    loss = labels(batch, ctx)
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    return StepOutput({"supervised": Loss(loss)})


WRONG["backward inside"] = (backward_inside, "called backward(), which is left to the engine")


@pytest.mark.parametrize("mistake", WRONG)
def test_an_invalid_return_value_of_a_step_is_reported_in_one_line(
    mistake: str, tmp_path: Path
) -> None:
    step, text = WRONG[mistake]
    register(step)
    output = tmp_path / "run"
    with pytest.raises(TrainingError) as caught:
        train(output)
    (message,) = caught.value.messages
    place = rf"{HERE}:{step.__code__.co_firstlineno}"
    expected = (
        rf"step of algorithm 'mistaken' \({place}\) {re.escape(text)}.*; "
        r"see ssl_toolkit\.testing\.check_plugin\(Mistaken\)"
    )
    assert re.fullmatch(expected, message)
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["status"], summary["reason"]) == ("failed", message)


# --- what its code raises -----------------------------------------------------------------------


def no_index(self: Any, batch: Batch, ctx: Context) -> StepOutput:
    return StepOutput({"supervised": Loss(F.cross_entropy(ctx.model(batch.labeled_weak), None))})


def other_view(self: Any, batch: Batch, ctx: Context) -> StepOutput:
    return StepOutput({"supervised": Loss(ctx.model(batch.labeled_strong[0]).mean())})


def two_views(self: Any, batch: Batch, ctx: Context) -> StepOutput:
    first, second = batch.unlabeled_weak
    return StepOutput({"supervised": Loss(ctx.model(first + second).mean())})


def all_views(self: Any, batch: Batch, ctx: Context) -> StepOutput:
    return StepOutput({"supervised": Loss(ctx.model(batch.unlabeled_strong.flatten(0, 1)).mean())})


def helper(value: Tensor) -> float:
    return value.no_such_thing  # type: ignore[attr-defined, no-any-return]


def by_a_helper(self: Any, batch: Batch, ctx: Context) -> StepOutput:
    return StepOutput({"supervised": Loss(labels(batch, ctx), helper(batch.labels))})


def by_a_dict(self: Any, batch: Batch, ctx: Context) -> StepOutput:
    return {}["two\nlines"]  # type: ignore[no-any-return]


RAISED = {
    no_index: ("ValueError", 1, r"images must be \(N, 3, H, W\), got \(1, 8, 3, 8, 8\); a view is"),
    other_view: ("IndexError", 1, r"index 0 is out .* \(views\(\) requests .*labeled_strong=0, "),
    two_views: ("ValueError", 1, r"not enough values .* \(views\(\) requests .*unlabeled_weak=1"),
    all_views: ("ValueError", 1, r"there are no images; a view that views\(\) doesn't ask for"),
    by_a_helper: ("AttributeError", -3, "'Tensor' object has no attribute 'no_such_thing'"),
    by_a_dict: ("KeyError", 1, r"'two\\nlines'"),
}


@pytest.mark.parametrize("step", RAISED, ids=lambda step: step.__name__)
def test_an_exception_in_a_step_is_reported_with_its_line(step: Any, tmp_path: Path) -> None:
    kind, offset, text = RAISED[step]
    register(step)
    with pytest.raises(TrainingError) as caught:
        train(tmp_path / "run")
    place = f"{HERE}:{step.__code__.co_firstlineno + offset}"
    expected = rf"{kind} in {step.__name__} of algorithm 'mistaken' \({place}\): {text}.*; see ssl_"
    assert re.match(expected, str(caught.value))
    assert type(caught.value.__cause__).__name__ == kind
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_the_command_shows_how_to_check_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(other_view)
    entry = registry.find("algorithms", "mistaken")
    entry = replace(entry, distribution="mistaken-pkg")
    monkeypatch.setitem(registry._registered, ("algorithms", "mistaken"), entry)
    done = call("run", "--algo", "mistaken", "--steps", 1, "--output", tmp_path / "run")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "warning" not in line]
    assert re.match(
        rf"error: IndexError in other_view of algorithm 'mistaken' \({HERE}:\d+\)", line
    )
    assert line.endswith("; see `ssl-toolkit check mistaken`")
    assert "Traceback" not in done.stdout + done.stderr


def test_a_comparison_that_measures_a_step_reports_it_too(tmp_path: Path) -> None:
    register(other_view)
    rows = ("--algos", "mistaken,supervised", "--seeds", 0, "--budget", "minutes=0.01")
    done = call("compare", *rows, "--output", tmp_path / "both")
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert re.match(
        rf"error: IndexError in other_view of algorithm 'mistaken' \({HERE}:\d+", message
    )


def right(self: Any, batch: Batch, ctx: Context) -> StepOutput:
    return StepOutput({"supervised": Loss(labels(batch, ctx))})


def scan(self: Any, labeled: Any, unlabeled: Any, ctx: Context) -> None:
    next(labeled)[5]


def without_super(self: Any, config: Any, task: TaskInfo) -> None:
    self.seen = 0


def with_one_argument(self: Any, config: Any) -> None:
    Algorithm.__init__(self, config, None)  # type: ignore[arg-type]


def early_buffer(self: Any, config: Any, task: TaskInfo) -> None:
    self.register_buffer("early", torch.zeros(1))


BEFORE: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "scan": (
        {"scan": scan, "scan_every": 2},
        TrainingError,
        r"IndexError in scan of algorithm 'mistaken' \(.*: tuple index out of range; ",
    ),
    "views of None": (
        {"views": lambda self: None},
        PluginError,
        r"algorithm 'mistaken': views\(\) returned None; it must return Views\(\.\.\.\)",
    ),
    "views below 0": (
        {"views": lambda self: Views(unlabeled_weak=-1)},
        PluginError,
        r"algorithm 'mistaken': views\(\) returned Views\(labeled_weak=1, .*=-1, ",
    ),
    "an unknown augmenter": (
        {"views": lambda self: Views(extra={"medium": View("unlabeled", "strongg")})},
        PluginError,
        r"algorithm 'mistaken': view 'medium' has the augmenter 'strongg' \(did you mean 'strong'",
    ),
    "a view with the name of a count": (
        {"views": lambda self: Views(extra={"labeled_weak": View("labeled", "weak")})},
        PluginError,
        r"algorithm 'mistaken': views\(\) declares a view 'labeled_weak'; ",
    ),
    "a view of neither source": (
        {"views": lambda self: Views(extra={"test": View("test", "weak")})},  # type: ignore[arg-type]
        PluginError,
        r"algorithm 'mistaken': view 'test' is View\(source='test', .*; it must be a View of ",
    ),
    "a view without a count": (
        {"views": lambda self: Views(extra={"none": View("labeled", "weak", count=0)})},
        PluginError,
        r"algorithm 'mistaken': view 'none' is .*; count and size are whole numbers of at least 1",
    ),
    "an augmenter class": (
        {"augmenters": lambda self: {"medium": Augmenter}},
        PluginError,
        r"algorithm 'mistaken': augmenters\(\) returned .*; it must return a dict of ",
    ),
    "an augmenter with the name of another": (
        {"augmenters": lambda self: {"weak": Weak()}},
        PluginError,
        r"algorithm 'mistaken': augmenters\(\) returned the name 'weak', which the run uses; ",
    ),
    "views of another name": (
        {"views": lambda self: Views(unlabeled_medium=1)},  # type: ignore[call-arg]
        PluginError,
        r"TypeError in <lambda> of algorithm 'mistaken' \(.*\): .*'unlabeled_medium'; ",
    ),
    "no super": (
        {"__init__": without_super},
        PluginError,
        r"__init__ of algorithm 'mistaken' \(.*\) does not call super\(\)\.__init__$",
    ),
    "a buffer before super": (
        {"__init__": early_buffer},
        PluginError,
        r"AttributeError in early_buffer of algorithm 'mistaken' \(.*\): cannot assign buffer",
    ),
    "one argument": (
        {"__init__": with_one_argument},
        PluginError,
        r"__init__ of algorithm 'mistaken' \(.*\) does not take the arguments of "
        r"ssl_toolkit\.Algorithm: too many positional arguments$",
    ),
}


@pytest.mark.parametrize("mistake", BEFORE)
def test_mistakes_beside_the_step(mistake: str, tmp_path: Path) -> None:
    members, kind, message = BEFORE[mistake]
    register(right, **members)
    with pytest.raises(kind, match=f"^{message}") as caught:
        train(tmp_path / "run")
    assert len(str(caught.value).splitlines()) == 1
    assert (tmp_path / "run").exists() == (kind is TrainingError)


def test_an_augmenter_and_a_backbone_are_reported_as_such(tmp_path: Path) -> None:
    @ssl_toolkit.register_augmenter("mistaken")
    class Twice(Augmenter):
        """It makes images of twice the size."""

        def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> Any:
            return {}

        def transform(self, images: Tensor, draws: Any) -> Tensor:
            return images.repeat(1, 1, 2).nonsense  # type: ignore[attr-defined, no-any-return]

    @ssl_toolkit.register_backbone("mistaken")
    class Narrow(Backbone):
        """It expects other features."""

        feature_dim = 4

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, images: Tensor) -> Tensor:
            return self.layer(images.flatten(1))  # type: ignore[no-any-return]

    register(right)
    with pytest.raises(TrainingError, match=r"^RuntimeError in forward of backbone 'mistaken' \("):
        train(tmp_path / "a", backbone="mistaken")
    with pytest.raises(TrainingError, match=r"^RuntimeError in forward of backbone 'mistaken' \("):
        train(tmp_path / "b", algo="supervised", backbone="mistaken")
    with pytest.raises(TrainingError, match=r"in transform of augmenter 'mistaken' \(.*Twice\)"):
        train(tmp_path / "c", augment={"weak": "mistaken"})


def test_errors_with_their_own_message_or_without_a_plugin_are_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading(self: Any, batch: Batch, ctx: Context) -> StepOutput:
        return StepOutput({Path("missing.txt").read_text(): Loss(labels(batch, ctx))})

    register(reading)
    with pytest.raises(TrainingError, match=r"^missing\.txt: No such file"):
        train(tmp_path / "a")

    def broken(*_: Any) -> None:
        raise RuntimeError("in the toolkit")

    register(right)
    monkeypatch.setattr("ssl_toolkit.engine.trainer.StepRecorder.add", broken)
    with pytest.raises(RuntimeError, match=r"^in the toolkit$"):
        train(tmp_path / "b")


# --- what comes later, and what is not finite ---------------------------------------------------


def late(self: Any, batch: Batch, ctx: Context) -> StepOutput:
    value = labels(batch, ctx)
    if ctx.step < 3:
        return StepOutput({"supervised": Loss(value), "early": Loss(0 * value + 1)})
    probs = ctx.teacher(batch.unlabeled_weak[0]).softmax(dim=-1)
    return StepOutput(
        {"supervised": Loss(value), "late": Loss(0 * value + 100, 0.5)},
        pseudo_labels=PseudoLabels(probs, probs[:, 0] >= 0),
        metrics={"part": torch.zeros(()) / (0 if ctx.step == 3 else 1) + 2},
    )


def test_each_value_is_averaged_over_the_steps_that_have_it(tmp_path: Path) -> None:
    register(late)
    (row,) = train(tmp_path / "run")
    assert row["train.loss.early"] == 1
    assert (row["train.loss.late"], row["train.weighted.late"]) == (100, 50)
    assert row["train.coverage"] == 1
    assert row["train.part"] == 2  # over the steps in which it is no nan
    assert "train.pseudo_label_accuracy" in row
    rows = train(tmp_path / "rows", log_every=1)
    mean = sum(row["train.loss.supervised"] for row in rows) / 6
    assert row["train.loss.supervised"] == pytest.approx(mean)
    assert [row.get("train.part") for row in rows] == [None, None, None, None, 2, 2]


def nan_in(self: Any, batch: Batch, ctx: Context) -> StepOutput:
    self.threshold.mul_(float("nan"))
    return right(self, batch, ctx)


def make_buffers(self: Any, config: Any, task: TaskInfo) -> None:
    Algorithm.__init__(self, config, task)
    self.register_buffer("threshold", torch.tensor(0.5))
    self.register_buffer("least", torch.tensor(float("inf")))
    self.register_buffer("graph", torch.eye(2).to_sparse())


def test_a_nan_in_a_buffer_ends_the_run_and_infinity_does_not(tmp_path: Path) -> None:
    register(right, __init__=make_buffers)
    train(tmp_path / "good")
    register(nan_in, __init__=make_buffers)
    with pytest.raises(TrainingError, match=r"^'threshold' of algorithm 'mistaken' is not finite"):
        train(tmp_path / "bad")
