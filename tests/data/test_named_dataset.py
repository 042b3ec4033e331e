"""Data sets by name: registered ones, and those of a collection."""

from __future__ import annotations

import pytest
from ssl_toolkit_digits import Digits

from ssl_toolkit import Dataset, PluginError, did_you_mean, load_dataset, register_dataset, registry
from ssl_toolkit.data.load import named_dataset


class Hub(Dataset):
    """A collection of one data set."""

    def load(self, root, *, download=False):
        raise AssertionError

    @classmethod
    def from_name(cls, rest):
        if rest != "team/digits":
            hint = did_you_mean(rest, ["team/digits"])
            raise PluginError(f"unknown dataset hub:{rest}{hint}")
        return Digits()


@pytest.fixture(autouse=True)
def _hub(monkeypatch):
    monkeypatch.setattr(registry, "_registered", registry._registered.copy())
    register_dataset("hub")(Hub)


def test_a_collection_resolves_the_rest_of_a_name():
    assert isinstance(named_dataset("hub:team/digits"), Digits)
    with pytest.raises(PluginError, match=r"unknown dataset hub:team/digit \(did you mean"):
        named_dataset("hub:team/digit")


def test_the_name_of_a_distribution_comes_before_a_collection():
    assert isinstance(named_dataset("ssl-toolkit:digits"), Digits)


def test_a_data_set_that_is_no_collection_is_reported():
    with pytest.raises(PluginError, match=r"Digits is not a collection: .* without ':big'") as info:
        named_dataset("digits:big")
    assert len(info.value.messages) == 1


def test_an_unknown_prefix_is_reported():
    with pytest.raises(PluginError, match="unknown dataset 'hup:digits'"):
        named_dataset("hup:digits")


def test_a_data_set_is_loaded_by_name() -> None:
    table = load_dataset("digits")
    assert len(table.keys) == 1797
    assert table.classes == tuple("0123456789")
    with pytest.raises(PluginError, match="digits"):
        load_dataset("digts")
