"""The command line in this process: the same answers as the `command` fixture, at no start-up."""

from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from subprocess import CompletedProcess

import pytest

from ssl_toolkit.commands import main

Command = Callable[..., CompletedProcess[str]]


def call(*arguments: object) -> CompletedProcess[str]:
    """Run ``ssl-toolkit`` with these arguments; what it printed and its exit status."""
    given = [str(argument) for argument in arguments]
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(given)
    status = ended.value.code
    assert isinstance(status, int)
    return CompletedProcess(given, status, out.getvalue(), err.getvalue())


def refusal(*arguments: object) -> str:
    """What stderr says when the user's command is wrong: exit 2, each line an ``error:``."""
    result = call(*arguments)
    assert result.returncode == 2, result.stderr or result.stdout
    assert result.stderr
    for line in result.stderr.splitlines():
        assert line.startswith("error: "), line
    return result.stderr
