"""Leaving images of no class out of the unlabeled batches: ``--drop-strangers``."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from in_process import call, refusal
from run_files import metrics, summary, weights
from short_runs import configure
from sklearn.metrics import roc_auc_score

from ssl_toolkit.engine import stranger_scores as scoring
from ssl_toolkit.engine.compatibility import check_filter
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.multilabel import check_task
from ssl_toolkit.engine.pool_filter import PoolFilter
from ssl_toolkit.engine.stranger_scores import (
    mixture_probabilities,
    share_of_strangers,
    stranger_probabilities,
    stranger_scores,
)
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.models.known_scores import are_many
from ssl_toolkit.runs.scoring import area_under_roc


def test_the_mixture_separates_two_groups_and_rise_with_the_score():
    generator = torch.Generator().manual_seed(0)
    known = torch.randn(600, generator=generator)
    strangers = 8 + 2 * torch.randn(400, generator=generator)
    probs = mixture_probabilities(torch.cat([known, strangers]))
    assert probs[:600].mean() < 0.02
    assert probs[600:].mean() > 0.95
    wide = torch.cat([0.1 * known, 1 + 3 * strangers])
    ordered = mixture_probabilities(wide)[wide.argsort()]
    assert (ordered.diff() >= 0).all()
    assert ordered[0] < 0.01 < 0.99 < ordered[-1]


@pytest.mark.parametrize("values", [[], [2.0], [2.0, 2.0, 2.0]])
def test_equal_scores_are_no_strangers(values):
    assert mixture_probabilities(torch.tensor(values)).tolist() == [0.0] * len(values)


def test_one_group_is_not_divided():
    known = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for scores in (known, -known.abs(), 1 - known.exp()):
        assert mixture_probabilities(scores).eq(0).all()
    assert mixture_probabilities(torch.cat([known, known + 6])).gt(0.5).float().mean() > 0.45
    few_known = torch.cat([known[:200], known + 6])
    assert mixture_probabilities(few_known).eq(0).all()


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("count", [60, 400])
def test_validation_images_tell_a_skewed_tail_from_strangers(share, count):
    generator = torch.Generator().manual_seed(0)

    def known(number):
        return torch.randn(number, generator=generator).exp()

    strangers = 8 + torch.randn(round(1000 * share / (1 - share)), generator=generator)
    scores, validation = torch.cat([known(1000), strangers]), known(count)
    estimated, _ = share_of_strangers(scores, validation)
    probs = stranger_probabilities(scores, validation, estimated)
    assert (probs[:1000] > 0.5).float().mean() < 0.15
    assert (probs[1000:] > 0.5).float().mean() > 0.9
    assert (probs[scores.argsort()].diff() >= 0).all()
    assert ((probs >= 0) & (probs <= 1)).all()


def test_as_many_scores_as_validation_has_are_no_strangers():
    scores = torch.arange(200.0)
    assert stranger_probabilities(scores, scores, 0.0).eq(0).all()
    twice = torch.cat([scores, scores[100:]])
    probs = stranger_probabilities(twice, scores, 1 / 3)
    torch.testing.assert_close(probs, 0.5 * (twice > 99).float())


def features():
    """Return features (10, 4), labels and features (1000, 4) of two classes, 400 of them strangers.

    Strangers differ in the last two features, whose variance is small.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1010, 4, generator=generator)
    labels = torch.tensor([0, 1]).repeat_interleave(5)
    signs = torch.cat([labels, torch.arange(1000) % 2])
    x[:, :2] += 5 * (2 * signs - 1)[:, None]
    x[:610, 2:] -= 2
    x[610:, 2:] += 2
    return x[:10] * SCALE, labels, x[10:] * SCALE


SCALE = torch.tensor([1.0, 1.0, 0.05, 0.05])


@pytest.mark.parametrize("references", [10_000, 300])
def test_scores_find_strangers_that_differ_where_classes_do_not(references, monkeypatch):
    monkeypatch.setattr(scoring, "REFERENCES", references)
    labeled, labels, unlabeled = features()
    scores, _ = stranger_scores(labeled, labels, unlabeled, unlabeled[:0])
    strangers = np.arange(1000) >= 600
    assert area_under_roc(scores.numpy(), strangers) > 0.9
    distances = torch.cdist(unlabeled, labeled).amin(dim=1)
    assert area_under_roc(distances.numpy(), strangers) < 0.7
    assert mixture_probabilities(scores)[600:].mean() > 0.8
    scaled, _ = stranger_scores(100 * labeled - 3, labels, 100 * unlabeled - 3, unlabeled[:9])
    torch.testing.assert_close(scores, scaled, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("strangers", "many"), [(0, False), (20, False), (200, True)])
@pytest.mark.parametrize("references", [10_000, 150])
def test_validation_images_show_whether_there_are_strangers(
    strangers, many, references, monkeypatch
):
    monkeypatch.setattr(scoring, "REFERENCES", references)
    labeled, labels, images = features()
    validation, known = images[:200], images[200:600]
    pool = torch.cat([known, images[600 : 600 + strangers]])
    scores, of_validation = stranger_scores(labeled, labels, pool, validation)
    estimate = share_of_strangers(scores, of_validation)
    assert are_many(*estimate) is many
    assert estimate[0] < 1.3 * strangers / len(pool) + 0.1
    assert share_of_strangers(scores, of_validation[:49]) is None
    every = -(-len(pool) // references)
    found = torch.arange(400) % every == 0  # among the references, or not
    for part in (scores[:400][found], scores[:400][~found]):
        if len(part):
            assert abs(of_validation.mean() - part.mean()) < scores[:400].std() / 3


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_small_pools_have_finite_scores(count):
    labeled, labels, unlabeled = features()
    for pool in (unlabeled[:count], unlabeled[:1].repeat(count, 1)):
        scores, of_validation = stranger_scores(labeled, labels, pool, unlabeled[:2])
        assert scores.shape == (count,)
        assert of_validation.shape == (2,)
        assert scores.isfinite().all()
        assert of_validation.isfinite().all()


def test_area_under_roc_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 9, 200) / 9, rng.random(200) < 0.3
    assert area_under_roc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))


def pool_filter(mode, steps, *, at_start=False, algorithm=None):
    algorithm = prepare(configure()).trainer.algorithm if algorithm is None else algorithm
    return PoolFilter(mode, steps, 256, torch.empty(0), algorithm, at_start=at_start)


def selected(mode, scores, epochs=1):
    """Return the positions of some epochs, and the number of images in one."""
    chosen = {}

    def select(_mask, count, order):
        chosen.update(count=count, order=order)

    state = {"scores": scores, "validation_scores": scores[:0]}
    pool_filter(mode, 10).restore(state, SimpleNamespace(select=select))
    generator = torch.Generator().manual_seed(0)
    drawn = [chosen["order"](generator) for _ in range(epochs)]
    assert {len(epoch) for epoch in drawn} == {chosen["count"]}
    return drawn, chosen


SCORES = torch.cat([torch.linspace(0, 1, 30), torch.linspace(5, 6, 20)])[torch.randperm(50)]


def test_hard_keeps_the_order_of_those_below_the_threshold():
    (order,), chosen = selected("hard", SCORES)
    assert chosen["count"] == 30
    whole = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert order.tolist() == [index for index in whole.tolist() if SCORES[index] < 3]


def test_soft_draws_likely_strangers_less_often():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(100, generator=generator)
    scores[60:] += 3.7
    kept = 1 - mixture_probabilities(scores)
    drawn, chosen = selected("soft", scores, epochs=300)
    assert chosen["count"] == round(float(kept.sum()))
    assert all(len(set(epoch.tolist())) == len(epoch) for epoch in drawn)
    frequency = torch.bincount(torch.cat(drawn), minlength=100) / 300
    unsure = (kept > 0.2) & (kept < 0.8)
    assert unsure.sum() > 3
    assert frequency[kept > 0.99].quantile(0.1) > frequency[unsure].max()
    assert frequency[unsure].min() > frequency[kept < 0.01].quantile(0.9)


@pytest.mark.parametrize(("at_start", "due"), [(False, [4]), (True, [0, 2, 4])])
def test_updates_are_due_after_each_part_of_the_run(at_start, due):
    subject = pool_filter("hard", 25, at_start=at_start)
    assert [step for step in range(6) if subject.is_due(step)] == due


def test_batches_and_scans_contain_only_selected_images():
    experiment = prepare(configure(algo="fixmatch"))
    batches = experiment.trainer.batches
    count = len(batches.images.unlabeled)
    scores = torch.arange(count, dtype=torch.float32) ** 2
    subject = pool_filter("hard", 6)
    subject.restore({"scores": scores, "validation_scores": scores[:0]}, batches)
    kept = (subject.weights > 0.5).nonzero().flatten()
    assert 0 < len(kept) < count
    drawn = torch.cat([batches.draw(number).unlabeled_indices for number in range(3)])
    assert set(drawn.tolist()) <= set(kept.tolist())
    scanned = torch.cat([positions for positions, _ in batches.unlabeled_images(100)])
    assert torch.equal(scanned, kept)
    assert torch.equal(batches.pool_mask.nonzero().flatten(), kept)


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_a_pool_of_strangers_keeps_the_image_of_the_lowest_score(mode):
    batches = prepare(configure(algo="fixmatch")).trainer.batches
    scores = 10 + torch.rand(len(batches.images.unlabeled))
    state = {"scores": scores, "validation_scores": torch.linspace(0, 1, 100)}
    pool_filter(mode, 6).restore(state, batches)
    assert [p.tolist() for p, _ in batches.unlabeled_images(100)] == [[int(scores.argmin())]]
    assert set(batches.draw(0).unlabeled_indices.tolist()) == {int(scores.argmin())}


def test_statistics_of_the_pool_start_again_when_images_are_first_left_out(monkeypatch):
    trainer = prepare(configure(algo="remixmatch")).trainer
    statistics = trainer.algorithm.recent_probs
    initial = statistics.clone()
    subject = pool_filter("hard", 6, algorithm=trainer.algorithm)

    def update(strangers):
        scores = torch.randn(len(trainer.batches.images.unlabeled))
        scores[:strangers] += 20
        found = lambda *_: (scores, scores[:0])  # noqa: E731
        monkeypatch.setattr("ssl_toolkit.engine.pool_filter.stranger_scores", found)
        statistics.fill_(7.0)
        subject.update(trainer.predictor, trainer.batches, trainer.processes)
        assert int((subject.weights < 0.5).sum()) == strangers

    update(0)
    assert (statistics == 7).all()
    update(300)
    assert torch.equal(statistics, initial)
    update(200)
    assert (statistics == 7).all()


KEYS = ["--strangers", "mnist5k", "--strangers-fraction", 0.2, "--batch-size", 8, "--eval-every", 3]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("drop") / "run"
    keys = [*KEYS, "--algo", "fixmatch", "--steps", 6, "--drop-strangers", "hard"]
    result = call("run", *keys, "--output", run)
    assert result.returncode == 0, result.stderr
    return run, result.stdout


def test_a_run_reports_what_it_left_out(finished):
    run, printed = finished
    dropped = summary(run)["dropped"]
    assert 0 < dropped["strangers"] <= dropped["images"] < summary(run)["counts"]["unlabeled"]
    assert 0 < dropped["auroc"] < 1
    assert f"{dropped['strangers']:,} of {summary(run)['strangers']:,} strangers" in printed
    assert call("check-run", run).returncode == 0


def test_a_stopped_run_resumes_with_the_same_selection(finished, tmp_path):
    run = tmp_path / "run"
    keys = [*KEYS, "--algo", "fixmatch", "--steps", 6, "--drop-strangers", "hard"]
    limit = ["--time-limit", "1e-9", "--save-every", 1]
    assert call("run", *keys, *limit, "--output", run).returncode == 0
    for steps in (2, 3):  # images are selected before the third step
        assert call("resume", run, "--time-limit", "1e-9").returncode == 0
        assert summary(run)["steps"] == steps
    assert call("resume", run, "--time-limit", "60").returncode == 0
    assert summary(run)["dropped"] == summary(finished[0])["dropped"]
    assert metrics(run) == metrics(finished[0])
    ours, theirs = weights(run), weights(finished[0])
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("algo", ["deep_label_propagation", "openmatch", "fixmatch+adsh"])
def test_algorithms_that_scan_the_pool_train_on_a_part_of_it(algo, tmp_path):
    keys = [*KEYS, "--algo", algo, "--drop-strangers", "hard", "--steps", 4]
    result = call("run", *keys, "--output", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert summary(tmp_path / "run")["dropped"]["images"] > 0


def test_nothing_is_left_out_if_validation_images_show_no_strangers(tmp_path):
    keys = ["--algo", "fixmatch", "--batch-size", 8, "--eval-every", 6, "--steps", 6]
    for name, flags in {"all": (), "filtered": ("--drop-strangers", "hard")}.items():
        result = call("run", *keys, *flags, "--output", tmp_path / name)
        assert result.returncode == 0, result.stderr
    assert re.search(
        r"0 of 1,253; validation images show few strangers or none \(\d%\)", result.stdout
    )
    ours, theirs = weights(tmp_path / "all"), weights(tmp_path / "filtered")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("fraction", [0, 0.1])
def test_a_head_is_fitted_to_the_images_that_are_kept(fraction, tmp_path):
    keys = ["--algo", "label_spreading", "--drop-strangers", "hard", "--val-fraction", fraction]
    for strangers in ((), ("--strangers", "mnist5k")):
        run = tmp_path / f"run{len(strangers)}"
        result = call("run", *keys, *strangers, "--output", run)
        assert result.returncode == 0, result.stderr
        dropped = summary(run)["dropped"]
        assert (dropped["expected"] is None) == (fraction == 0)
        assert (dropped["images"] > 0) == bool(strangers)


@pytest.mark.parametrize("algo", ["supervised", "fully_supervised"])
def test_algorithms_without_pseudo_labels_score_nothing(algo):
    assert prepare(configure(algo=algo, drop_strangers="hard")).trainer.pool_filter is None


def test_combinations_without_scores_are_refused():
    fitted = ("run", "--algo", "linear_probe", "--drop-strangers", "soft")
    assert "fits a head to all images at once; use hard" in refusal(*fitted)
    several = configure(algo="pseudo_label", drop_strangers="hard", task="multilabel").settings
    with pytest.raises(ConfigError, match="--drop-strangers supports --task multiclass only"):
        check_task(several)
    streamed = configure(drop_strangers="hard", stream_buffer=8).settings
    with pytest.raises(ConfigError, match="leave --stream-buffer out"):
        check_filter(streamed, fits_head=False)
