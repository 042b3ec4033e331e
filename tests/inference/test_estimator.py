"""The estimator: scikit-learn's own checks, and what they don't look at."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from ssl_toolkit import ConfigError, SemiSupervisedClassifier

IMAGES = (load_digits().images * 15.9).astype(np.uint8)
X, DIGITS = load_digits(return_X_y=True)
KNOWN = np.arange(len(DIGITS)) % 20 == 0
SMALL = {"algo": "supervised", "backbone": "wrn_10_1", "pretrained": False,
         "image_size": 8, "steps": 1}  # fmt: skip

EXPECTED = {"check_classifiers_classes": "its labels are -1 and 1, and -1 means no label here"}


@parametrize_with_checks(
    [SemiSupervisedClassifier("label_spreading")],
    expected_failed_checks=lambda _: EXPECTED,
)
def test_a_check_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "labels",
    [
        DIGITS.astype(np.int32) * 100,
        np.array([f"digit {n}" for n in DIGITS]),
        DIGITS.astype(object),
    ],
)
def test_predicted_labels_have_the_type_of_the_given_ones(labels: Any) -> None:
    given = labels.copy()
    given[~KNOWN] = None if labels.dtype == object else "-1" if labels.dtype.kind == "U" else -1
    model = SemiSupervisedClassifier("graph_probe", seed=3).fit(X, given)
    kind = np.int64 if labels.dtype == object else labels.dtype
    assert model.classes_.dtype == model.transduction_.dtype == model.predict(X[:3]).dtype == kind
    assert np.array_equal(model.classes_, np.unique(labels.tolist()))
    assert np.array_equal(model.transduction_[KNOWN], labels[KNOWN])
    assert np.array_equal(model.transduction_[~KNOWN], model.predict(X[~KNOWN]))
    assert model.score(X, labels.tolist()) > 0.9
    assert np.array_equal(
        pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X)
    )


@pytest.mark.parametrize("kind", [bool, object])
def test_labels_may_be_booleans(kind: type) -> None:
    labels = (DIGITS > 4).astype(kind)
    if kind is object:
        labels[~KNOWN] = None
    model = SemiSupervisedClassifier("knn").fit(X, labels)
    assert model.classes_.dtype == model.predict(X[:3]).dtype == bool
    assert model.classes_.tolist() == [False, True]
    assert model.score(X, DIGITS > 4) > 0.9


def test_auto_reports_its_choice() -> None:
    model = SemiSupervisedClassifier().fit(X[KNOWN], DIGITS[KNOWN])
    assert model.algorithm_ in ("graph_probe", "label_spreading", "linear_probe")
    assert model.n_features_in_ == 64
    assert clone(model).get_params() == model.get_params()


def test_inside_scikit_learn() -> None:
    model = make_pipeline(StandardScaler(), SemiSupervisedClassifier("knn"))
    grid = {"semisupervisedclassifier__options": [{"knn": {"k": 1}}, {"knn": {"k": 60}}]}
    search = GridSearchCV(model, grid, cv=2).fit(X[KNOWN], DIGITS[KNOWN])
    assert search.best_params_["semisupervisedclassifier__options"] == {"knn": {"k": 1}}


def test_images_of_every_kind(tmp_path: Path) -> None:
    paths = []
    for place, image in enumerate(IMAGES[:40]):
        paths.append(str(tmp_path / f"{place:02d}.png"))
        Image.fromarray(image).save(paths[-1])
    labels = np.where(np.arange(40) < 30, DIGITS[:40], -1)
    result = []
    for images in (IMAGES[:40], paths, np.array(paths), [Image.fromarray(i) for i in IMAGES[:40]]):
        model = SemiSupervisedClassifier(**SMALL).fit(images, labels)
        assert not hasattr(model, "n_features_in_")
        result.append(model.predict_proba(images[:5]))
        assert np.array_equal(model.transduction_[30:], model.predict(images[30:]))
    for other in result[1:]:
        assert np.allclose(other, result[0], atol=1e-6)


def test_a_run_is_written_to_the_requested_folder(tmp_path: Path, capfd: Any) -> None:
    model = SemiSupervisedClassifier("knn", output=tmp_path / "runs" / "own")
    for _ in range(2):  # the second replaces the first
        model.fit(X[KNOWN], DIGITS[KNOWN])
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names[0].startswith("given-")
    assert names[1:] == ["own"]
    assert capfd.readouterr().out == ""
    SemiSupervisedClassifier("knn", verbose=True).fit(X[KNOWN], DIGITS[KNOWN])
    assert "features_64" in capfd.readouterr().out


def test_errors_are_reported() -> None:
    labels = DIGITS[KNOWN]
    with pytest.raises(ValueError, match="labels of 1 class"):
        SemiSupervisedClassifier("knn").fit(X[KNOWN], np.where(labels == 3, 3, -1))
    with pytest.raises(ValueError, match="y has no label"):
        SemiSupervisedClassifier("knn").fit(X[KNOWN], np.full(len(labels), -1))
    with pytest.raises(ValueError, match="requires y to be passed"):
        SemiSupervisedClassifier(**SMALL).fit(IMAGES, None)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        SemiSupervisedClassifier(**SMALL).fit(IMAGES, labels)
    with pytest.raises(ValueError, match="the labels ' a' and 'a ' of y are equal after stripping"):
        SemiSupervisedClassifier("knn").fit(X[KNOWN], np.array([" a", "a ", "b"])[labels % 3])
    for key, value in {"classes": ["b", "a"], "algo": "knn", "output": "runs/a"}.items():
        with pytest.raises(ConfigError, match=f"options: {key} is set by .*; leave it out"):
            SemiSupervisedClassifier("knn", options={key: value}).fit(X[KNOWN], labels)
    with pytest.raises(ConfigError, match=r"knn\.kk: unknown key"):
        SemiSupervisedClassifier("knn", options={"knn": {"kk": 1}}).fit(X[KNOWN], labels)
