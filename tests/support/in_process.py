"""Run the command line in this process, like the `command` fixture but without its start-up."""

from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from subprocess import CompletedProcess

import pytest

from ssl_toolkit.commands import main

Command = Callable[..., CompletedProcess[str]]


def call(*arguments: object) -> CompletedProcess[str]:
    """Run ``ssl-toolkit`` with some arguments; return its output and exit status."""
    texts = [str(argument) for argument in arguments]
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as exit_error:
        main(texts)
    status = exit_error.value.code
    assert isinstance(status, int)
    return CompletedProcess(texts, status, out.getvalue(), err.getvalue())


def refusal(*arguments: object) -> str:
    """Return stderr of an invalid command, which exits with 2 and only prints ``error:`` lines."""
    result = call(*arguments)
    assert result.returncode == 2, result.stderr or result.stdout
    assert result.stderr
    for line in result.stderr.splitlines():
        assert line.startswith("error: "), line
    return result.stderr
