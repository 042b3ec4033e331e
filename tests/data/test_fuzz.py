"""Damaged and foreign input brings out nothing but the documented exceptions."""

from __future__ import annotations

from pathlib import Path

import fuzz
import fuzz_atheris
import fuzz_targets
import pytest

from ssl_toolkit.errors import DataError

COUNT = 200


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_only_documented_exceptions_come_out(name: str) -> None:
    ends = fuzz.fuzz(name, COUNT)
    assert ends.total() >= COUNT
    # Neither all nor none of the inputs may be refused: then nothing would be tried.
    assert len(ends) > 1


@pytest.mark.parametrize("kind", fuzz_atheris.KINDS)
def test_the_seed_inputs_of_the_fuzzer_are_valid(kind: str, tmp_path: Path) -> None:
    use, seeds = fuzz_atheris.fed(kind, fuzz_targets, tmp_path)
    ends = {fuzz_targets.ended(use, tmp_path, content) for content in seeds}
    assert ends <= {"accepted", "read", "loaded"}


def test_a_garbled_header_with_a_correct_checksum_is_parsed(tmp_path: Path) -> None:
    garbled = fuzz_targets.SHARD.replace(b"a/0.png", b"../.png", 1)
    with pytest.raises(DataError, match="damaged"):
        fuzz_targets.read_shard(tmp_path, (False, garbled))
    with pytest.raises(DataError, match="leads outside"):
        fuzz_targets.read_shard(tmp_path, (True, garbled))
    assert fuzz_targets.with_sums(fuzz_targets.SHARD) == fuzz_targets.SHARD


def test_an_undocumented_exception_propagates(tmp_path: Path) -> None:
    def refuse(folder: Path, drawn: str) -> str:
        raise DataError(drawn)

    assert fuzz_targets.ended(refuse, tmp_path, "no such image") == "refused (DataError)"
    with pytest.raises(AssertionError, match="an empty message"):
        fuzz_targets.ended(refuse, tmp_path, " ")
    with pytest.raises(ZeroDivisionError):
        fuzz_targets.ended(lambda folder, drawn: str(1 // 0), tmp_path, "")
