"""Configurations from files, flags and --set: one tree, every fault told, nothing guessed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import call, refusal

from ssl_toolkit import registry
from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import Layer, RunConfig, load_config, validate
from ssl_toolkit.config.options import fields_of
from ssl_toolkit.config.other_names import OTHER_NAMES
from ssl_toolkit.config.settings import ResolvedSettings, Settings
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.runs.folder import RunFolder

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a configuration file, each under a name of its own."""

    def put(text: str) -> Path:
        path = tmp_path / f"c{len(list(tmp_path.iterdir()))}.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return put


def check(**tree: Any) -> RunConfig:
    return validate([Layer("test", tree)])


def faults(*layers: Layer) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(layers)
    return "\n".join(caught.value.messages)


# --- what is told about a fault -----------------------------------------------------------------


def test_a_rule_between_the_options_of_a_plugin_is_reported_in_its_words() -> None:
    options = {"forward": "selective", "interleaved": True}
    message = faults(Layer("flags", {"algo": "fixmatch", "fixmatch": options}))
    assert (
        message == "flags: fixmatch: forward=selective can't be interleaved; leave one of them out"
    )


def test_all_errors_are_reported_together_with_file_key_and_value(write: Write) -> None:
    first = write("algo: fixmatch\nlerning_rate: 0.1\nsteps: many\nema: {decay: 2}\n")
    second = write("fixmatch: {treshold: 0.9, unlabeled_ratio: 0}\nmixmatch: {alpha: 0.5}\n")
    message = refusal(
        "run", "--config", first, "--config", second, "--batch-size", "0",
        "--set", "optimizer.momentum=2", "--data", "/not/there",
    )  # fmt: skip
    lines = message.splitlines()
    for origin, key, rest in [
        (first, "lerning_rate", "unknown key (did you mean 'lr'?)"),
        (first, "steps", "given 'many'"),
        (first, "ema.decay", "given '2'"),
        (second, "fixmatch.treshold", "did you mean 'fixmatch.confidence_threshold'?"),
        (second, "fixmatch.unlabeled_ratio", "given '0'"),
        (second, "mixmatch.alpha", "this run uses 'fixmatch'"),
        ("--set optimizer.momentum=2", "optimizer.momentum", "given '2'"),
    ]:
        result = [line for line in lines if line.startswith(f"error: {origin}: {key}: ")]
        assert result, (key, message)
        assert any(rest in line for line in result), result
    assert "error: --batch-size: must be at least 1 (given '0')" in lines
    assert "/not/there" not in message  # no data was read


def test_an_error_names_the_layer_that_set_the_value(write: Write) -> None:
    files = [write("algo: fixmatch\nlr: 0.1\nfixmatch: {unlabeled_ratio: 3}\n"), write("lr: -1\n")]
    assert f"error: {files[1]}: lr: " in refusal(
        "run", "--config", files[0], "--config", files[1], "--dry-run"
    )
    message = refusal("run", "--config", files[1], "--lr", "x")
    assert message == "error: --lr: must be a number (given 'x')\n"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("learning_rate", "lr"),
        ("epochs", "steps"),
        ("arch", "backbone"),
        ("bs", "batch_size"),
        ("num_workers", "workers"),
        ("threshold", "fixmatch.confidence_threshold"),
        ("lambda_u", "fixmatch.unsupervised_weight"),
        ("ema_decay", "ema.decay"),
        ("weight_decay", "optimizer.weight_decay"),
        ("step", "steps"),
        ("label_per_class", "labels_per_class"),
        ("Batch-Size", "batch_size"),
        ("optimizer.WeightDecay", "optimizer.weight_decay"),
        ("optimzer", "optimizer"),
        ("optimizer.wieght_decay", "optimizer.weight_decay"),
        ("ema.warm_up", "ema.warmup"),
        ("fixmatch.mu", "fixmatch.unlabeled_ratio"),
        ("fixmatch.unlabelled_ratio", "fixmatch.unlabeled_ratio"),
        ("fixmatch.guess", "fixmatch.pseudo_labels_from"),
        ("labelled_in_pool", "labeled_in_pool"),
        ("optimizer.accumulate", "optimizer.accumulation_steps"),
        ("optimizer.feature_lr", "optimizer.backbone_lr"),
        ("keep", "keep_checkpoints"),
        ("fixmatch.p_cutoff", "fixmatch.confidence_threshold"),
    ],
)
def test_a_near_or_earlier_name_is_suggested(key: str, meant: str) -> None:
    message = refusal("run", "--algo", "fixmatch", "--set", f"{key}=1")
    assert f"{key}: unknown key (did you mean {meant!r}?)" in message


@pytest.mark.parametrize(
    ("algo", "key", "meant"),
    [("mixmatch", "lambda_per", "mixup_per"), ("mixmatch_enhanced", "anchors", "train_on")],
)
def test_an_earlier_name_of_an_algorithms_option_is_refused(
    algo: str, key: str, meant: str
) -> None:
    message = faults(Layer("f", {"algo": algo, algo: {key: 1}}))
    assert message == f"f: {algo}.{key}: unknown key (did you mean '{algo}.{meant}'?)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("lr=", "the value is missing; write --set lr=VALUE"),
        ("ema.decay= ", "the value is missing; write --set ema.decay=VALUE"),
        ("lr=abc", "lr: must be a number (given 'abc')"),
        ("lr=0", "lr: must be greater than 0 (given '0')"),
        ("steps=2.5", "steps: must be an integer (given '2.5')"),
        ("seed=null", "seed: must be an integer (given null)"),
        ("compile=maybe", "compile: must be true or false (given 'maybe')"),
        ("precision=BF16", "precision: must be 'auto', 'fp32', 'bf16' or 'fp16' (given 'BF16')"),
        ("classes=a", "classes: must be a list (given 'a')"),
        ("classes=[a]", "classes: must have 2 items or more (given ['a'])"),
        ("optimizer=3", "optimizer: must be a map of options (given '3')"),
        ("output=''", "output: must not be empty (given '')"),
        ("fixmatch.confidence_threshold=2", "confidence_threshold: must be at most 1 (given '2')"),
    ],
)
def test_an_invalid_value_is_reported_in_one_line(given: str, message: str) -> None:
    (line,) = refusal("run", "--algo", "fixmatch", "--set", given).splitlines()
    assert line.startswith(f"error: --set {given}".rstrip())
    assert line.endswith(message)


@pytest.mark.parametrize("ours", sorted(set(OTHER_NAMES.values())))
def test_the_suggestions_for_names_of_other_tools_exist(ours: str) -> None:
    keys = {key for key, _ in fields_of(Settings)}
    for entry in registry.entries("algorithms"):
        keys |= registry.load("algorithms", entry.name).Config.model_fields.keys()
    assert ours in keys


@pytest.mark.parametrize("word", ["on", "off", "bool", "float", "a[0]", "literal['auto']"])
@pytest.mark.parametrize("above", ["", "ema.", "optimizer.", "simple."])
def test_an_unknown_key_may_look_like_anything(word: str, above: str) -> None:
    message = refusal("run", "--set", f"{above}{word}=1", "--dry-run")
    assert f": {above}{word}: unknown key" in message


def test_options_of_another_algorithm_are_an_error_each() -> None:
    message = faults(
        Layer("f", {"algo": "fixmatch", "mixmatch": {"alpha": "1", "pseudo_labels_from": "model"}})
    )
    assert "f: mixmatch.alpha: " in message
    assert "f: mixmatch.pseudo_labels_from: " in message
    assert "mixmatch" in faults(Layer("f", {"algo": "fixmatch", "mixmatch": {}}))


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "0", "-1", "", "x", "[1]"])
def test_numbers_out_of_range_are_refused(value: str) -> None:
    assert "lr: " in refusal("run", "--set", f"lr={value or '{}'}", "--dry-run")


@pytest.mark.parametrize("section", ["optimizer", "fixmatch", "algorithm", "augment", "ema"])
@pytest.mark.parametrize("value", ["5", "[1, 2]", "some text"])
def test_a_section_must_be_a_mapping(section: str, value: str) -> None:
    assert ": " in refusal("run", "--algo", "fixmatch", "--set", f"{section}={value}", "--dry-run")


@pytest.mark.parametrize(
    "text", ["lr", "=1", ".lr=1", "lr.=1", "a..b=1", "lr=[1", "lr={a: 1, a: 2}"]
)
def test_a_malformed_data_set_is_reported(text: str) -> None:
    assert f"--set {text}" in refusal("run", "--set", text)


# --- layers -------------------------------------------------------------------------------------


def test_later_layers_win(write: Write) -> None:
    files = [
        write("algo: fixmatch\nlr: 0.1\nsteps: 10\nbatch_size: 3\nseed: 1\n"
              "optimizer: {momentum: 0.5, weight_decay: 0.1}\nfixmatch: {unlabeled_ratio: 2}\n"),
        write("lr: 0.2\nsteps: 20\nbatch_size: 4\noptimizer: {momentum: 0.6}\n"),
    ]  # fmt: skip
    flags = {"lr": "0.3", "steps": "30", "batch_size": None}
    config = load_config(files, flags, ["lr=0.4", "optimizer.clip_norm=3"])
    s = config.settings
    assert (s.seed, s.batch_size, s.steps, s.lr) == (1, 4, 30, 0.4)
    assert (s.optimizer.momentum, s.optimizer.weight_decay, s.optimizer.clip_norm) == (0.6, 0.1, 3)
    assert s.optimizer.nesterov is Settings().optimizer.nesterov
    assert config.algorithm.model_dump()["unlabeled_ratio"] == 2
    assert config.algorithm.model_dump()["confidence_threshold"] == 0.95


def test_lists_are_replaced_and_not_joined(write: Write) -> None:
    files = [write("classes: [a, b, c]\n"), write("classes: [x, y]\n")]
    assert load_config(files).settings.classes == ["x", "y"]


def test_algorithm_refers_to_the_one_that_runs(write: Write) -> None:
    file = write("algo: mixmatch\nmixmatch: {alpha: 0.5}\nalgorithm: {temperature: 0.4}\n")
    config = load_config([file], sets=["algorithm.alpha=0.6"])
    options = config.algorithm.model_dump()
    assert (options["alpha"], options["temperature"]) == (0.6, 0.4)
    assert config.tree()["mixmatch"]["alpha"] == 0.6
    # The algorithm may be named in a later layer than its options.
    late = load_config([write("algorithm: {unlabeled_ratio: 3}\n")], {"algo": "fixmatch"})
    assert late.tree()["fixmatch"]["unlabeled_ratio"] == 3
    bad = write("algo: fixmatch\nalgorithm: {alpha: 0.5}\n")
    assert f"error: {bad}: fixmatch.alpha: unknown key" in refusal("run", "--config", bad)


@pytest.mark.parametrize("name", ["fixmatch", "ssl-toolkit:fixmatch"])
def test_a_prefix_does_not_change_the_section(name: str) -> None:
    config = validate([Layer("f", {"algo": name, "fixmatch": {"unlabeled_ratio": "2"}})])
    assert config.tree()["fixmatch"]["unlabeled_ratio"] == 2


# --- the resolved configuration -----------------------------------------------------------------

ROUND_TRIPS = [
    ("--algo", "simple"),
    ("--algo", "fixmatch", "--set", "ema=off", "--lr", "1e-5", "--set", "optimizer.clip_norm=5"),
    ("--algo", "mixmatch", "--profile", "reference", "--set", "optimizer.name=sgd"),
    ("--algo", "mixmatch_enhanced", "--set", "schedule.name=cosine", "--seed", "9007199254740993"),
    ("--algo", "supervised", "--set", "classes=[no, 'null', '001', 'a: b', '']", "--data", "x y"),
    ("--algo", "fully_supervised", "--set", "augment.strong=fixed", "--no-labeled-in-pool"),
    ("--pretrained", "--backbone", "test_resnet", "--data", "x", "--image-size", "32"),
]


@pytest.mark.parametrize("arguments", ROUND_TRIPS, ids=" ".join)
def test_the_output_of_a_dry_run_reads_back_the_same(
    arguments: tuple[str, ...], write: Write
) -> None:
    first = call("run", *arguments, "--dry-run")
    assert (first.returncode, first.stderr) == (0, "")
    file = write(first.stdout)
    assert call("run", "--config", file, "--dry-run").stdout == first.stdout
    # Everything is written out: the profile's name alone decides nothing any more.
    again = load_config([file], {"profile": "paper"}).tree() | {"profile": None}
    assert again == load_config([file]).tree() | {"profile": None}


# semantics of the authors' code: row → key, algorithm, values of paper, reference and original
PROFILE = {
    "confidence factor": ("simple.confidence_weighted", "simple", True, False),
    "pair weight": ("simple.pair_weight", "simple", None, "same"),
    "cosine": ("schedule.cycles", "simple", 7 / 16, 1023 / 2048),
    "cosine, mixmatch": ("schedule.cycles", "mixmatch", 7 / 16, 1023 / 2048, 7 / 16),
    "cosine, fixmatch": ("schedule.cycles", "fixmatch", 7 / 16, 7 / 16),
    "clipping": ("optimizer.clip_norm", "simple", None, 5.0),
    "clipping, supervised": ("optimizer.clip_norm", "supervised", None, 5.0),
    "clipping, mixmatch": ("optimizer.clip_norm", "mixmatch", None, 5.0, None),
    "clipping, fixmatch": ("optimizer.clip_norm", "fixmatch", None, None),
    "teacher": ("simple.pseudo_labels_from", "simple", "teacher", "teacher"),
    "teacher, mixmatch": (
        "mixmatch.pseudo_labels_from",
        "mixmatch",
        "teacher",
        "teacher",
        "model",
    ),
    "ramp, simple": ("simple.rampup_steps", "simple", None, 0),
    "ramp, mixmatch": ("mixmatch.rampup_fraction", "mixmatch", 0.3, 1.0, 0.3),
    "ramp in steps": ("mixmatch.rampup_steps", "mixmatch", None, None, 16384),
    "ramp, enhanced": ("mixmatch_enhanced.rampup_fraction", "mixmatch_enhanced", 0.3, 1.0, 0.3),
    "mixup": ("mixmatch.mixup_per", "mixmatch", "sample", "batch", "sample"),
    "mixup, enhanced": (
        "mixmatch_enhanced.mixup_per",
        "mixmatch_enhanced",
        "sample",
        "batch",
        "sample",
    ),
    "average": ("ema.decay", "simple", 0.99, 0.999),
    "average, fixmatch": ("ema.decay", "fixmatch", 0.99, 0.999),
    "average, warm-up": ("ema.warmup", "simple", True, False),
    "average, warm-up, usb": ("ema.warmup", "freematch", True, False),
    "buffers": ("ema.average_buffers", "simple", False, False),
    "batchnorm": ("model.batchnorm_momentum", "simple", 0.1, 0.001),
    "batchnorm, mixmatch": ("model.batchnorm_momentum", "mixmatch", 0.1, 0.001, 0.001),
    "decay": ("optimizer.weight_decay_on", "simple", "all", "all"),
    "decay, mixmatch": ("optimizer.weight_decay_on", "mixmatch", "all", "all", "kernels"),
    "decay, fixmatch": ("optimizer.weight_decay_on", "fixmatch", "all", "kernels"),
    "decay, usb": ("optimizer.weight_decay_on", "uda", "all", "kernels"),
    "pool": ("labeled_in_pool", "simple", None, None),
    "pool, fixmatch": ("labeled_in_pool", "fixmatch", None, True),
    "pool, comatch": ("labeled_in_pool", "comatch", None, None),
    "pool, adamatch": ("labeled_in_pool", "adamatch", None, True),
    "pool, remixmatch": ("labeled_in_pool", "remixmatch", None, True),
    "flip of digits": ("augment.flip", "simple", False, True),
    "flip of digits, mixmatch": ("augment.flip", "mixmatch", False, True, False),
    "interleave, simple": ("simple.interleaved", "simple", False, True),
    "interleave, mixmatch": ("mixmatch.interleaved", "mixmatch", False, True, True),
    "interleave, fixmatch": ("fixmatch.interleaved", "fixmatch", False, True),
    "per batch": ("augment.strong_options.choice", "simple", "image", "batch"),
    "per batch, fixmatch": ("augment.strong_options.choice", "fixmatch", "image", "image"),
    "variant": ("augment.strong_options.variant", "simple", "fixmatch", "authors"),
    "variant, fixmatch": ("augment.strong_options.variant", "fixmatch", "fixmatch", "fixmatch"),
    "operations, usb": ("augment.strong_options.num_ops", "softmatch", 2, 3),
    "augmenter, remixmatch": ("augment.strong", "remixmatch", "ctaugment", "ctaugment"),
    "augmenter, adamatch": ("augment.strong", "adamatch", "randaugment", "ctaugment"),
    "augmenter, dash": ("augment.strong", "dash", "randaugment", "ctaugment"),
    "threshold, dash": ("dash.threshold_factor", "dash", 1.0001, 1 / 1.27),
}


@pytest.mark.parametrize("row", PROFILE)
def test_the_values_of_each_profile(row: str) -> None:
    key, algo, *values = PROFILE[row]
    for profile, expected in zip(("paper", "reference", "original"), values, strict=False):
        result = call("run", "--algo", algo, "--profile", profile, "--dry-run")
        value: Any = load_tree(result.stdout)
        for part in key.split("."):
            value = value[part]
        exact = isinstance(expected, str | None)
        assert value == (expected if exact else pytest.approx(expected)), profile


def test_the_pair_weight_follows_the_unsupervised_weight_in_the_reference_profile() -> None:
    def weights(**options: float) -> tuple[float, Any]:
        tree = {"profile": "reference", "simple": options}
        section = validate([Layer("f", tree)]).tree()["simple"]
        return section["unsupervised_weight"], section["pair_weight"]

    assert weights(unsupervised_weight=300) == (300, "same")
    assert weights(unsupervised_weight=300, pair_weight=5) == (300, 5)


def load_tree(text: str) -> Any:
    return validate([Layer("dry run", yaml.parse(text))]).tree()


def test_a_users_value_beats_the_profile() -> None:
    tree = {"profile": "reference", "simple": {"interleaved": "no"}, "schedule": {"cycles": "0.3"}}
    config = validate([Layer("f", tree)])
    assert config.tree()["simple"]["interleaved"] is False
    assert config.settings.schedule.cycles == 0.3


def test_the_fingerprint_covers_the_settings_that_a_comparison_holds_equal() -> None:
    base = check(algo="fixmatch", seed="0").fingerprint()
    assert re.fullmatch(r"[0-9a-f]{16}", base)
    assert check(algo="mixmatch", seed="5", output="o").fingerprint() == base
    assert check(algo="fixmatch", fixmatch={"unlabeled_ratio": "2"}).fingerprint() == base
    for other in ({"lr": "0.1"}, {"steps": "5"}, {"backbone": "x"}, {"ema": "off"},
                  {"augment": {"flip": "no"}}, {"labels_per_class": "3"}):  # fmt: skip
        assert check(algo="fixmatch", **other).fingerprint() != base, other


def test_a_resolved_configuration_has_no_unset_values(tmp_path: Path) -> None:
    settings = resolve_config(check(algo="fixmatch"))[0].settings
    required = ResolvedSettings.__annotations__
    assert all(getattr(settings, key) is not None for key in required)
    assert list(ResolvedSettings.model_fields) == list(Settings.model_fields)

    folder = RunFolder(tmp_path)
    tree = resolve_config(check(algo="fixmatch"))[0].tree()
    folder.config.write_text(yaml.dump(tree | {"lr": None}))
    with pytest.raises(ConfigError, match=r"config\.yaml: lr: must not be null in a resolved"):
        folder.read_config()
