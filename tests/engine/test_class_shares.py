"""Class shares of the pool: how they are estimated, who gets them, and the alarm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from pretrained_runs import experiment, keys, make_images
from ssl_toolkit_fixmatch import FixMatch
from torch import Tensor
from toy_context import FakeContext, build, make_batch

from ssl_toolkit import Loss, PseudoLabels, StepOutput, ops
from ssl_toolkit.engine.shares import class_shares, estimate_shares, labels_are_informative
from ssl_toolkit.engine.step_metrics import StepRecorder
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.runs.health import collapse
from ssl_toolkit.runs.resume import resume
from ssl_toolkit.runs.train import train

LABELS = (5,) * 7
POOL = (141, 14, 8, 11, 7, 242, 74)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().sum() / 2)


# --- the estimate -------------------------------------------------------------------------------


def calibrated(counts: Sequence[int], sharpness: float) -> tuple[Tensor, Tensor]:
    """What a classifier of equal labels says of a pool, and the shares of the pool."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    hidden = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    centers = sharpness * torch.eye(len(counts), dtype=torch.float64)
    x = centers[hidden] + torch.randn(len(hidden), len(counts), generator=generator)
    logits = -(x[:, None] - centers).square().sum(dim=-1) / 2
    return logits.softmax(dim=-1), shares


def test_the_estimate_is_nearer_to_the_pool_than_the_labels_and_the_mean() -> None:
    probs, shares = calibrated(POOL, 2.0)
    even = torch.full_like(shares, 1 / 7)
    result = estimate_shares(probs, LABELS)
    assert result.dtype == torch.float32
    assert float(result.sum()) == pytest.approx(1)
    assert distance(result, shares) < 0.8 * distance(probs.mean(dim=0), shares)
    assert distance(result, shares) < 0.4 * distance(even, shares)
    plain = ops.follow_shares(probs, 1.0).mean(dim=0)  # the classifier is right in its doubts
    assert distance(plain, shares) < 0.05


def test_the_estimate_starts_at_the_shares_of_the_labels() -> None:
    counts = torch.tensor([6.0, 3.0, 1.0])
    ignorant = (counts / 10).expand(1000, 3).double()
    for exponent in (0.5, 1.0):
        result = ops.follow_shares(ignorant, exponent, counts=counts)
        torch.testing.assert_close(result, ignorant)
    equal = ops.follow_shares(ignorant, 0.5, counts=torch.full((3,), 4))
    assert torch.equal(equal, ops.follow_shares(ignorant, 0.5))
    absent = ops.follow_shares(ignorant, 0.5, counts=torch.tensor([6, 3, 0]))
    assert absent.isfinite().all()
    assert float(absent[:, 2].max()) == 0


@pytest.mark.parametrize(
    ("counts", "tell"),
    [((5, 5, 5), False), ((5, 4, 5), False), ((9, 2, 4), True), ((3, 5, 4), True)],
)
def test_labels_are_informative_where_their_numbers_are_not_equal_by_design(
    counts: tuple[int, ...], tell: bool
) -> None:
    assert labels_are_informative(counts) is tell
    estimate = torch.tensor([0.7, 0.2, 0.1])
    own = torch.tensor(counts) / sum(counts)
    assert torch.equal(class_shares(counts, estimate), own if tell else estimate)
    assert torch.equal(class_shares(counts, None), own)


# --- what an algorithm is given -----------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many images of the first class, few of the others."""
    made = tmp_path_factory.mktemp("shares")
    make_images(made / "images", 40)
    for name in "bc":
        for path in sorted((made / "images" / name).iterdir())[12:]:
            path.unlink()
    return made


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.getbasetemp() / "shares-cache" / "images"
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(cache))


def started(folder: Path, **changes: object) -> Trainer:
    trainer = experiment(folder, algo="fixmatch", **changes).trainer
    trainer.start()
    return trainer


def test_a_context_has_the_estimate_of_the_probe(folder: Path) -> None:
    trainer = started(folder)
    given = trainer._context(0).class_shares
    hidden = trainer.batches.images.hidden
    shares = torch.bincount(hidden, minlength=3) / len(hidden)
    assert shares[0] > 0.7
    assert trainer.probe is not None
    assert torch.equal(given, trainer.probe.shares)
    assert distance(given, shares) < 0.7 * distance(torch.full((3,), 1 / 3), shares)


def test_no_hidden_label_is_used(folder: Path) -> None:
    made = experiment(folder, algo="fixmatch").trainer
    made.batches.images.hidden.fill_(-1)
    made.start()
    assert torch.equal(made._context(0).class_shares, started(folder)._context(0).class_shares)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": {"probe": False}}, [4, 4, 4]),
        ({"labels_per_class": None, "num_labels": 12}, None),
    ],
    ids=["without a probe", "of labels that tell"],
)
def test_a_context_has_the_shares_of_the_labels(
    folder: Path, changes: dict[str, object], expected: list[int] | None
) -> None:
    trainer = started(folder, **changes)
    counts = torch.tensor(expected or trainer.algorithm.task.label_counts)
    assert torch.equal(trainer._context(0).class_shares, counts / counts.sum())


@pytest.mark.parametrize(("per_class", "known"), [({"num_labels": 12}, True), ({}, False)])
def test_pseudo_labels_do_not_count_for_the_shares_of_uneven_labels(
    folder: Path, tmp_path: Path, per_class: dict[str, int], known: bool
) -> None:
    changes = {"labels_per_class": None, **per_class} if per_class else {}
    before = experiment(folder, **changes)
    pool = before.split.unlabeled[:9].tolist()
    lines = [f"{before.table.keys[row]},{before.classes[0]}" for row in pool]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *lines]))
    after = experiment(folder, **changes, pseudo_labels=str(tmp_path / "labels.csv"))
    counts = torch.tensor(before.trainer.algorithm.task.label_counts)
    assert sum(after.trainer.algorithm.task.label_counts) == 9 + counts.sum()
    expected = counts / counts.sum() if known else None
    assert after.trainer.prior is None if not known else torch.equal(after.trainer.prior, expected)


def test_a_resumed_run_has_the_same_shares_and_running_mean(folder: Path, tmp_path: Path) -> None:
    def tree(name: str, steps: int) -> dict:
        own = {"algo": "fixmatch", "fixmatch": {"align_exponent": 1.0}, "eval_every": 2}
        own["schedule"] = {"name": "constant"}  # which does not depend on the steps
        return keys(folder, **own, steps=steps, save_every=2, output=str(tmp_path / name))

    def last(name: str) -> dict:
        return torch.load(tmp_path / name / "checkpoints" / "last.pt", weights_only=True)

    train(tree("whole", 4))
    train(tree("half", 2))
    resume(tmp_path / "half", steps=4)
    whole, half = last("whole"), last("half")
    assert torch.equal(whole["probe"]["shares"], half["probe"]["shares"])
    assert float(whole["algorithm_state"]["mean_weight"]) > 0
    for part in ("model", "algorithm_state"):
        assert whole[part].keys() == half[part].keys()
        assert all(torch.equal(value, half[part][key]) for key, value in whole[part].items())


def test_processes_of_a_run_agree_on_the_shares(folder: Path) -> None:
    class Two:
        size = 2

        def all_reduce_sum(self, value: Tensor) -> Tensor:
            return value + torch.tensor([0.5, 0.3, 0.2])  # what the other process found

    alone, shared = (experiment(folder, algo="fixmatch").trainer for _ in range(2))
    shared.processes = Two()
    alone.start()
    shared.start()
    mean = (alone.probe.shares + torch.tensor([0.5, 0.3, 0.2])) / 2
    torch.testing.assert_close(shared._context(0).class_shares, mean)
    assert torch.equal(shared.probe.shares, shared._context(0).class_shares)  # as it is saved


# --- distribution alignment ---------------------------------------------------------------------


def test_alignment_gives_predictions_the_expected_shares() -> None:
    probs, _ = calibrated(LABELS, 1.0)
    shares = torch.tensor([0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    mean = probs.mean(dim=0)
    aligned = ops.align_distribution(probs, shares, mean, 1.0)
    product = probs * shares / mean  # ReMixMatch, section 3.1
    torch.testing.assert_close(aligned, product / product.sum(dim=-1, keepdim=True))
    half = ops.align_distribution(probs, shares, mean, 0.5)
    nearer = [distance(p.mean(dim=0), shares) for p in (probs, half, aligned)]
    assert nearer[0] > nearer[1] > nearer[2]
    torch.testing.assert_close(ops.align_distribution(probs, shares, mean, 0.0), probs)


def test_alignment_is_finite_at_the_edges() -> None:
    certain = torch.eye(3)
    aligned = ops.align_distribution(certain, torch.tensor([0.0, 0.5, 0.5]), torch.zeros(3), 1.0)
    assert torch.equal(aligned, certain)  # a class without a share is left where nothing else is
    logits = torch.zeros(2, 3, requires_grad=True)
    third = torch.full((3,), 1 / 3)
    assert not ops.align_distribution(logits.softmax(dim=-1), third, third, 1.0).requires_grad


def steps_of(count: int, **options: float) -> tuple[FixMatch, list[StepOutput]]:
    algorithm = build(FixMatch, confidence_threshold=0.3, **options)
    ctx = FakeContext()
    ctx.class_shares = torch.tensor([0.7, 0.1, 0.1, 0.1])
    batches = [make_batch(algorithm, seed=seed) for seed in range(count)]
    return algorithm, [algorithm.step(batch, ctx) for batch in batches]


def test_fixmatch_aligns_its_predictions_with_the_mean_of_all_batches() -> None:
    _, plain = steps_of(3)
    algorithm, aligned = steps_of(3, align_exponent=1.0)
    own = torch.stack([output.pseudo_labels.probs for output in plain])
    weights = torch.tensor([(1 - 1 / 128) ** age for age in (2, 1, 0)])
    mean = (own.mean(dim=1) * weights[:, None]).sum(dim=0) / weights.sum()
    product = own[2] * torch.tensor([0.7, 0.1, 0.1, 0.1]) / mean
    expected = product / product.sum(dim=-1, keepdim=True)
    guess = aligned[2].pseudo_labels
    torch.testing.assert_close(guess.probs, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(guess.mask, guess.probs.amax(dim=-1) >= 0.3)
    assert set(algorithm.state_dict()) == {"mean_probs", "mean_weight"}
    assert not torch.equal(
        aligned[2].losses["unsupervised"].value, plain[2].losses["unsupervised"].value
    )


def test_fixmatch_aligns_with_more_even_shares_at_a_lower_temperature() -> None:
    _, plain = steps_of(1)
    _, aligned = steps_of(1, align_exponent=1.0, align_temperature=0.5)
    own = plain[0].pseudo_labels.probs
    roots = [share**0.5 for share in (0.7, 0.1, 0.1, 0.1)]
    target = torch.tensor([root / sum(roots) for root in roots])
    product = own * target / own.mean(dim=0)
    expected = product / product.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(aligned[0].pseudo_labels.probs, expected, rtol=1e-4, atol=1e-5)


def test_fixmatch_without_alignment_has_no_state_and_reads_no_shares() -> None:
    algorithm = build(FixMatch)
    assert not algorithm.state_dict()
    assert algorithm.config.align_exponent == 0
    algorithm.step(make_batch(algorithm), FakeContext())  # which has no class_shares
    assert not hasattr(FakeContext(), "class_shares")


# --- the alarm ----------------------------------------------------------------------------------

PERFECT = torch.tensor([247, 146, 19, 13, 16, 12, 79])
ONE_LARGE = torch.tensor([247, 12, 12, 12, 12, 12, 12])
COLLAPSED = torch.tensor([920, 14, 14, 13, 13, 13, 13])


def evaluations(recorder: StepRecorder, counts: Tensor) -> list[dict[str, float]]:
    """Rows of a run of 1,000 steps whose used pseudo labels have these counts throughout."""
    classes = torch.arange(len(counts)).repeat_interleave(counts)
    guess = PseudoLabels(
        torch.eye(len(counts))[classes], torch.ones(len(classes), dtype=torch.bool)
    )
    output = StepOutput({"supervised": Loss(torch.tensor(0.1))}, guess)
    rows = []
    for step in range(50, 1001, 50):
        recorder.add(step, torch.tensor(0.1), output, torch.full_like(classes, -1))
        rows.append({"step": step, "train.labeled.accuracy": 1.0, **recorder.flush()})
    return rows


def recorders(pool: Tensor) -> dict[str, StepRecorder]:
    """Of runs that know more and more of a pool."""
    shares = pool / pool.sum()
    estimated = StepRecorder(LABELS)
    estimated.estimate = (0.6 * shares + 0.4 / 7).tolist()  # too even, as estimates are
    return {
        "nothing": StepRecorder(LABELS),
        "an estimate": estimated,
        "validation images": StepRecorder(LABELS, validation_counts=(pool // 4).tolist()),
        "labels": StepRecorder((pool // 6).tolist()),
    }


@pytest.mark.parametrize("known", recorders(PERFECT))
@pytest.mark.parametrize("pool", [PERFECT, ONE_LARGE], ids=["uneven", "one large class"])
def test_a_perfect_teacher_of_an_uneven_pool_raises_no_alarm(known: str, pool: Tensor) -> None:
    assert collapse(evaluations(recorders(pool)[known], pool), steps=1000) == ""


@pytest.mark.parametrize("known", recorders(PERFECT))
@pytest.mark.parametrize("pool", [PERFECT, torch.full((7,), 60)], ids=["uneven", "even"])
def test_a_collapse_into_one_class_raises_the_alarm_without_known_shares(
    known: str, pool: Tensor
) -> None:
    message = collapse(evaluations(recorders(pool)[known], COLLAPSED), steps=1000)
    assert "one class had at least 92% of the pseudo labels" in message
    if pool is PERFECT:  # of an even one the labels say nothing that their design does not
        words = {"nothing": "pseudo labels; ", "an estimate": "that the probe expects"}
        assert words.get(known, "those of the pool") in message


@pytest.mark.parametrize("share", [0.55, 0.75])
def test_an_even_pool_is_watched_as_closely_by_validation_images_as_by_labels(
    share: float,
) -> None:
    """Equal labels and equal validation images: the limits are those of an even pool."""
    own = round(1000 * share)
    counts = torch.tensor([own, *[(1000 - own) // 6] * 6])
    recorder = StepRecorder(LABELS, validation_counts=(20,) * 7)
    rows = evaluations(recorder, counts)
    assert rows[0]["train.pseudo_label_shift"] == pytest.approx(share - 1 / 7, abs=0.01)
    assert bool(collapse(rows, steps=1000)) is (share > 0.6)


def test_unknown_shares_are_not_logged_as_a_shift() -> None:
    def names(recorder: StepRecorder) -> set[str]:
        return {key for key in evaluations(recorder, PERFECT)[0] if "shift" in key}

    made = recorders(PERFECT)
    assert names(made["nothing"]) == set()
    assert names(made["an estimate"]) == {"train.pseudo_label_shift_estimated"}
    assert names(made["validation images"]) == {"train.pseudo_label_shift"}
    made["validation images"].estimate = made["an estimate"].estimate
    assert names(made["validation images"]) == {"train.pseudo_label_shift"}
