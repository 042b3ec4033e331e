"""Become a command that is asked to end (SIGTERM) when the process that started it is no more.

``tied.py PARENT PROGRAM ARGUMENT...``, PARENT being the number of that process. Linux only. Run by
its path and free of imports of the package, so that it costs 30 ms.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def _main(parent: str, *command: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before it was watched
        sys.exit(128 + signal.SIGTERM)
    # Ray's workers block SIGINT. Slurm sends SIGUSR2, a word for the launcher, to every process.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: {command[0]}: can't be started: {error.strerror}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
