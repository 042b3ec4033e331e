"""Damaged input raises only documented exceptions."""

from __future__ import annotations

from pathlib import Path

import fuzz
import fuzz_atheris
import fuzz_targets
import pytest

from ssl_toolkit.errors import DataError

COUNT = 200


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_only_documented_exceptions_are_raised(name: str) -> None:
    outcomes = fuzz.fuzz(name, COUNT)
    assert outcomes.total() >= COUNT
    # If all or none of the inputs were refused, the test would check little.
    assert len(outcomes) > 1


@pytest.mark.parametrize("name", fuzz_atheris.TARGETS)
def test_the_seed_inputs_of_the_fuzzer_are_valid(name: str, tmp_path: Path) -> None:
    read, seeds = fuzz_atheris.target_of(name, fuzz_targets, tmp_path)
    outcomes = {fuzz_targets.outcome(read, tmp_path, content) for content in seeds}
    assert outcomes <= {"accepted", "read", "loaded"}


def test_a_garbled_header_with_a_correct_checksum_is_parsed(tmp_path: Path) -> None:
    garbled = fuzz_targets.SHARD.replace(b"a/0.png", b"../.png", 1)
    with pytest.raises(DataError, match="damaged"):
        fuzz_targets.read_shard(tmp_path, (False, garbled))
    with pytest.raises(DataError, match="leads outside"):
        fuzz_targets.read_shard(tmp_path, (True, garbled))
    assert fuzz_targets.with_checksums(fuzz_targets.SHARD) == fuzz_targets.SHARD


def test_an_undocumented_exception_propagates(tmp_path: Path) -> None:
    def refuse(folder: Path, message: str) -> str:
        raise DataError(message)

    assert fuzz_targets.outcome(refuse, tmp_path, "no such image") == "refused (DataError)"
    with pytest.raises(AssertionError, match="an empty message"):
        fuzz_targets.outcome(refuse, tmp_path, " ")
    with pytest.raises(ZeroDivisionError):
        fuzz_targets.outcome(lambda folder, example: str(1 // 0), tmp_path, "")
