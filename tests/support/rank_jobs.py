"""Train runs one after the other, in this process or in several that share each batch.

``python rank_jobs.py JOBS``: a JSON list of configurations; run as one rank of a group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plain_backbone  # noqa: F401
import projected  # noqa: F401
import torch
from torch import distributed as dist

import ssl_toolkit
from ssl_toolkit.torch_workarounds import leave_process_group

TESTS = Path(__file__).parent


def carry_out(jobs: Sequence[dict[str, Any]]) -> None:
    for job in jobs:
        ssl_toolkit.train(job)


def carry_out_shared(jobs: Sequence[dict[str, Any]], ranks: int, scratch: Path) -> None:
    """Like `carry_out` in a group of processes; raise an error if one fails."""
    path = scratch / "jobs.json"
    path.write_text(json.dumps(jobs))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = os.environ | {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(path)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            message, _ = process.communicate(timeout=480)
            assert process.returncode == 0, message
    finally:
        for process in processes:
            process.kill()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    carry_out(json.loads(Path(sys.argv[1]).read_text()))
    leave_process_group()
    # A thread that is still alive after the group can abort the process at its exit.
    if sys.platform == "linux":
        threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        assert not any("gloo" in thread for thread in threads), threads
