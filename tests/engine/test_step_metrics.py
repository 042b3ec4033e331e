"""What the log says of pseudo labels and pairs, against counts made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from loss_forms import pair_masks, pair_statistics

from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.step_metrics import StepRecorder
from ssl_toolkit.interfaces import Loss, Metric, PseudoLabels, StepOutput

PROBS = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.4, 0.3, 0.3]])
USED = torch.tensor([True, True, True, False])
HIDDEN = torch.tensor([0, 1, 2, 0])
SIMILAR = torch.tensor(
    [
        [False, True, True, False],
        [True, False, False, False],
        [False, False, False, True],
        [False, False, False, False],
    ]
)


def record(recorder: StepRecorder, step: int, hidden: torch.Tensor = HIDDEN) -> None:
    output = StepOutput(
        losses={"supervised": Loss(torch.tensor(1.0))},
        pseudo_labels=PseudoLabels(PROBS, USED),
        pairs={"similarity": SIMILAR, "none": torch.zeros_like(SIMILAR)},
    )
    recorder.add(step, torch.tensor(1.0), output, hidden)


def test_classes_of_the_used_pseudo_labels_and_false_pairs() -> None:
    recorder = StepRecorder([2, 2, 4])
    record(recorder, 1)
    record(recorder, 2)
    values = recorder.flush()
    assert values["train.coverage"] == 0.75
    assert values["train.pseudo_label_accuracy"] == pytest.approx(2 / 3)
    # Used labels: two of class 0 and one of class 2, against 1/4, 1/4, 1/2.
    assert values["train.largest_class_share"] == pytest.approx(2 / 3)
    assert values["train.pseudo_label_shift"] == pytest.approx(2 / 3 - 1 / 4)
    # (0, 1), (0, 2), (1, 0) and (2, 3) pass; their classes differ in all four.
    assert values["train.pair_similarity_false"] == 1
    assert "train.pair_none_false" not in values
    assert not [key for key in values if not key.startswith("train.")]
    assert recorder.take_class_counts() == [4, 0, 2]
    assert recorder.take_class_counts() == [0, 0, 0]


def test_pairs_of_unknown_class_are_not_judged() -> None:
    recorder = StepRecorder([2, 2, 4])
    record(recorder, 1, torch.tensor([0, 0, -1, 0]))  # left: (0, 1) and (1, 0), both right
    assert recorder.flush()["train.pair_similarity_false"] == 0
    record(recorder, 2, torch.tensor([-1, -1, -1, -1]))
    values = recorder.flush()
    assert "train.pair_similarity_false" not in values
    assert "train.pseudo_label_accuracy" not in values
    assert values["train.largest_class_share"] == pytest.approx(2 / 3)


def test_a_state_contains_metrics_that_were_not_logged_yet() -> None:
    first, second, straight = (StepRecorder([2, 2, 4]) for _ in range(3))
    for recorder in (first, straight):
        record(recorder, 1)
        recorder.flush()
        record(recorder, 2)
    second.restore(first.state())
    assert second.flush() == straight.flush()
    assert second.take_class_counts() == straight.take_class_counts() == [4, 0, 2]


def answer(step: int) -> StepOutput:
    """One loss at first, later another one, a metric and a guess; the metric is nan at 3."""
    if step < 2:
        return StepOutput({"supervised": Loss(torch.tensor(2.0))})
    losses = {"supervised": Loss(torch.tensor(4.0)), "late": Loss(torch.tensor(10.0), 0.5)}
    part = torch.tensor(float("nan") if step == 3 else float(step))
    return StepOutput(losses, pseudo_labels=PseudoLabels(PROBS, USED), metrics={"part": part})


def test_late_and_non_finite_values_are_averaged_over_the_valid_steps() -> None:
    recorder, straight = StepRecorder([2, 2, 4]), StepRecorder([2, 2, 4])
    for step in range(5):
        recorder.add(step, torch.tensor(1.0), answer(step), HIDDEN)
        straight.add(step, torch.tensor(1.0), answer(step), HIDDEN)
        again = StepRecorder([2, 2, 4])
        again.restore(recorder.state())  # as if it was saved after each step
        recorder = again
    values = recorder.flush()
    assert values == straight.flush()
    assert values["train.loss.supervised"] == pytest.approx((2 + 2 + 4 + 4 + 4) / 5)
    assert (values["train.loss.late"], values["train.weighted.late"]) == (10, 5)
    assert values["train.part"] == (2 + 4) / 2
    assert values["train.coverage"] == 0.75
    assert recorder.flush() == {}
    recorder.add(5, torch.tensor(1.0), answer(3), HIDDEN)
    assert "train.part" not in recorder.flush()


class Two(ProcessGroup):
    """Two processes, of which the other one has what it is told to have."""

    def __init__(self) -> None:
        super().__init__(0, 2)
        self.other = torch.zeros(())

    def all_reduce_sum(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.other


def test_a_metric_missing_on_one_process_is_the_mean_of_the_others() -> None:
    processes = Two()
    recorder = StepRecorder([], processes)
    metrics = {"both": torch.tensor(2.0), "one": torch.tensor(float("nan")), "none": math.nan}
    recorder.add(
        1,
        torch.tensor(3.0),
        StepOutput(
            {"supervised": Loss(torch.tensor(3.0))},
            metrics={name: torch.as_tensor(value) for name, value in metrics.items()},
        ),
        HIDDEN,
    )
    # train.loss, train.loss.supervised, train.weighted.supervised, both, one, none
    processes.other = torch.tensor([[5.0, 5, 5, 4, 7, 0], [1, 1, 1, 1, 1, 0]])
    message = recorder.flush()
    assert message == {
        "train.loss": 4,
        "train.loss.supervised": 4,
        "train.weighted.supervised": 4,
        "train.both": 3,
        "train.one": 7,
    }


def test_a_metric_that_is_declared_as_a_sum_adds_up_over_processes() -> None:
    processes = Two()
    recorder = StepRecorder([], processes, metrics=[Metric("seen", reduction="sum")])
    output = StepOutput(
        {"supervised": Loss(torch.tensor(3.0))},
        metrics={"seen": torch.tensor(8.0), "share": torch.tensor(0.5)},
    )
    processes.other = torch.tensor([[3.0, 3, 3, 4, 0.25], [1, 1, 1, 1, 1]])
    recorder.add(1, torch.tensor(3.0), output, HIDDEN)
    means = recorder.flush()
    assert (means["train.seen"], means["train.share"]) == (12, 0.375)
    lacking = StepOutput(output.losses, metrics={"seen": torch.tensor(math.nan)})
    processes.other = torch.tensor([[3.0, 3, 3, 0], [1, 1, 1, 0]])
    recorder.add(2, torch.tensor(3.0), lacking, HIDDEN)
    assert "train.seen" not in recorder.flush(), "no process has it, which is not a sum of 0"


def test_pair_masks_are_what_the_statistics_count() -> None:
    targets = torch.tensor([[0.97, 0.03], [0.96, 0.04], [0.6, 0.4], [0.02, 0.98]])
    masks = pair_masks(targets, 0.95, 0.95)
    assert not any(mask.diagonal().any() for mask in masks.values())
    assert masks["confidence"].sum(dim=1).tolist() == [3, 3, 0, 3]
    assert masks["similarity"].nonzero().tolist() == [[0, 1], [1, 0]]
    assert torch.equal(masks["both"], masks["confidence"] & masks["similarity"])
    shares = [share.item() for share in pair_statistics(targets, 0.95, 0.95)]
    assert shares == pytest.approx([9 / 12, 2 / 12, 2 / 12])
