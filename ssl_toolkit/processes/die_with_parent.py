"""Execute a command that receives SIGTERM when its parent process ends.

``die_with_parent.py PARENT PROGRAM ARGUMENT...``, where PARENT is the ID of the parent process.
Linux only. Run by its path, without importing the package, so that it costs only 30 ms.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def _main(parent: str, *command: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # the parent ended before prctl was called
        sys.exit(128 + signal.SIGTERM)
    # Ray's workers block SIGINT. Slurm sends SIGUSR2, which is for the launcher, to every process.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: {command[0]}: can't be started: {error.strerror}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
