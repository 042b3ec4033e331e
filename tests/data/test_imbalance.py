"""Long tails that are drawn from even sets: ``--imbalance``."""

import json

import numpy as np
import pytest
from in_process import call, refusal
from split_tables import table_of

from ssl_toolkit.config.loading import load_config
from ssl_toolkit.config.sections import ImbalanceSettings
from ssl_toolkit.data.splits.draw import draw_split
from ssl_toolkit.data.splits.imbalance import long_tail, longest_tail
from ssl_toolkit.data.splits.split_file import load_split, save_split
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.runs.folder import RunFolder


def per_class(table, rows):
    return np.bincount(table.labels[rows], minlength=len(table.classes)).tolist()


def test_the_counts_of_the_papers():
    assert long_tail(1500, 100, 10) == [1500, 899, 539, 323, 193, 116, 69, 41, 25, 15]
    assert long_tail(1500, 1 / 100, 10) == long_tail(1500, 100, 10)[::-1]
    assert long_tail(7, 1, 4) == [7] * 4
    assert long_tail(4, 50, 5) == [4, 1, 1, 1, 1]  # never 0
    for ratio in (1 / 49, 49):
        counts = long_tail(490, ratio, 3)
        assert sorted(counts) == [10, 70, 490]


@pytest.mark.parametrize("ratio", [1, 3, 1 / 3, 50, 1 / 50, 1.5])
def test_the_longest_tail_is_the_largest_that_fits(ratio):
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes = rng.integers(1, 60, size=6).tolist()
        counts = longest_tail(sizes, ratio)
        assert all(count <= size for count, size in zip(counts, sizes, strict=True))
        larger = long_tail(max(counts) + 1, ratio, 6)
        assert any(count > size for count, size in zip(larger, sizes, strict=True))


def test_labels_and_pool_may_differ_and_the_rest_stays_the_same():
    table = table_of([100] * 5, test=10)
    keys = {"seed": 3, "labels_per_class": 16, "val_fraction": 0.1}
    even = draw_split(table, **keys)
    split = draw_split(table, **keys, imbalance=ImbalanceSettings(labels=16, pool="1/10"))
    assert per_class(table, split.labeled) == [16, 8, 4, 2, 1]
    assert per_class(table, split.unlabeled) == long_tail(89, 1 / 10, 5)
    assert split.imbalance == ("labels 16", "pool 1/10")
    assert set(split.labeled) <= set(even.labeled)
    assert split.validation.tolist() == even.validation.tolist()
    assert split.test.tolist() == even.test.tolist()
    again = draw_split(table, **keys, imbalance=ImbalanceSettings(labels=16, pool="1/10"))
    assert again.unlabeled.tolist() == split.unlabeled.tolist()
    other = draw_split(table, **keys | {"seed": 4}, imbalance=ImbalanceSettings(pool=10))
    assert other.unlabeled.tolist() != split.unlabeled.tolist()
    parts = [split.labeled, split.unlabeled, split.validation, split.test]
    assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))


def test_the_labeled_images_stay_in_a_pool_that_contains_them():
    table = table_of([50] * 3, test=3)
    imbalance = ImbalanceSettings(labels=4, pool=5)
    split = draw_split(table, seed=0, labels_per_class=8, labeled_in_pool=True, imbalance=imbalance)
    assert per_class(table, split.unlabeled) == [50, 22, 10]
    assert np.isin(split.labeled, split.unlabeled).all()


def test_all_labels_without_a_number_of_them():
    table = table_of([40, 40], part="labeled", test=3)
    split = draw_split(table, seed=0, imbalance=ImbalanceSettings(labels=8))
    assert per_class(table, split.labeled) == [40, 5]
    assert len(split.unlabeled) == 0


@pytest.mark.parametrize(
    ("keys", "imbalance", "words"),
    [
        ({"labels_per_class": 2}, {"pool": 5}, "no unlabeled image of class a, b"),
        ({"num_labels": 4}, {"labels": 5}, "--num-labels can't be used together"),
        ({"chosen": np.array([0, 2])}, {"labels": 5}, "--labels can't be used together"),
        ({"labels_per_class": 1, "unlabeled": 4}, {"pool": 5}, "the classes of 4 of the 6"),
    ],
)
def test_impossible_requests_are_one_line(keys, imbalance, words):
    table = table_of([2, 2], unlabeled=keys.pop("unlabeled", 0))
    with pytest.raises(DataError, match=words) as caught:
        draw_split(table, seed=0, **keys, imbalance=ImbalanceSettings(**imbalance))
    assert len(caught.value.messages) == 1


def test_the_split_file_records_it(tmp_path):
    table, file = table_of([20] * 3, test=3), tmp_path / "split.json"
    split = draw_split(
        table, seed=0, labels_per_class=4, imbalance=ImbalanceSettings(labels=4, pool=2)
    )
    save_split(file, table, split)
    assert json.loads(file.read_text())["imbalance"] == ["labels 4", "pool 2"]
    assert load_split(file, table).split.imbalance == split.imbalance
    file.write_text(file.read_text().replace("pool 2", "pool 3"))
    with pytest.raises(DataError, match="doesn't match its hash"):
        load_split(file, table)
    save_split(file, table, draw_split(table, seed=0, labels_per_class=4))
    assert "imbalance" not in json.loads(file.read_text())


def test_one_number_sets_both_and_each_can_be_set_alone():
    def imbalance(**keys):
        return load_config(flags=keys).settings.imbalance.model_dump()

    assert imbalance() == {"labels": None, "pool": None}
    assert imbalance(imbalance="50") == {"labels": 50, "pool": 50}
    assert imbalance(imbalance="50", imbalance_pool="1/50") == {"labels": 50, "pool": 0.02}
    assert imbalance(imbalance_labels=3) == {"labels": 3, "pool": None}
    sets = load_config(flags={"imbalance": 50}, sets=["imbalance.pool=2"])
    assert sets.settings.imbalance.model_dump() == {"labels": 50, "pool": 2}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"imbalance": "abc"}, "--imbalance: must be a number (given 'abc')"),
        ({"imbalance": "1/0"}, "--imbalance: must be a number (given '1/0')"),
        ({"imbalance_pool": "0"}, "--imbalance-pool: must be greater than 0 (given '0')"),
        ({"imbalance_labels": "-1/2"}, "--imbalance-labels: must be greater than 0 (given '-1/2')"),
    ],
)
def test_wrong_ratios_are_one_line(flags, message):
    with pytest.raises(ConfigError) as caught:
        load_config(flags=flags)
    assert list(caught.value.messages) == [message]


def test_runs_record_it_and_a_given_split_must_agree(tmp_path):
    keys = ["--steps", 4, "--labels-per-class", 8]
    run = tmp_path / "run"
    first = call("run", *keys, "--imbalance", "8", "--imbalance-pool", "1/4", "--output", run)
    assert "long tail of labels (8): 0 8, 1 6" in first.stdout
    summary = json.loads((run / "summary.json").read_text())
    assert summary["imbalance"]["ratios"] == ["labels 8", "pool 1/4"]
    pool = [*summary["imbalance"]["pool"].values()]
    assert pool == sorted(pool)
    assert summary["imbalance"]["labels"] == summary["health"]["labeled"]
    assert sum(pool) == summary["counts"]["unlabeled"]
    assert "Drawn with an imbalance of labels 8 and pool 1/4." in (RunFolder(run).card).read_text()
    call("report", run)
    assert "imbalance of labels 8 and pool 1/4 (8 to 1 labels" in (run / "report.html").read_text()
    assert call("check-run", run).returncode == 0
    split = run / "split.json"
    with_split = call("run", *keys, "--split", split, "--output", tmp_path / "same")
    assert with_split.returncode == 0
    wrong = refusal("run", *keys, "--split", split, "--imbalance", 3, "--output", tmp_path / "x")
    assert "was drawn with an imbalance of labels 8 and pool 1/4, not with" in wrong


def test_a_dry_run_shows_the_counts():
    result = call("run", "--imbalance", "1/8", "--labels-per-class", 8, "--dry-run")
    counts = ", ".join(f"{i} {count}" for i, count in enumerate(long_tail(8, 1 / 8, 10)))
    assert f"# long tail of labels (1/8): {counts}\n" in result.stdout
    assert "# long tail of the pool (1/8)" in result.stdout
    wrong = refusal("run", "--imbalance", 8, "--num-labels", 40, "--dry-run")
    assert "--imbalance-labels and --num-labels can't be used together" in wrong


def test_rows_of_a_comparison_share_it(tmp_path):
    folder = tmp_path / "comparison"
    keys = ["--algos", "supervised,fixmatch", "--seeds", "0", "--steps", 4, "--imbalance", 4]
    call("compare", *keys, "--labels-per-class", 8, "--output", folder)
    records = [json.loads(path.read_text()) for path in folder.rglob("record.json")]
    assert len({record["split"] for record in records}) == 1
    assert len(records) == 2
