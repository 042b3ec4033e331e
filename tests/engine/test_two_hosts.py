"""A run shared by two hosts, which are two network namespaces that a pair of links joins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kill_resume
import pytest
from in_process import call

RUN = ("run", "--algo", "fixmatch", "--dataset", "digits", "--device", "cpu", "--batch-size", "8",
       "--set", "fixmatch.unlabeled_ratio=2", "--steps", "6", "--eval-every", "3", "--log-every",
       "1", "--quiet")  # fmt: skip

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None,
    reason="makes network namespaces: needs Linux, root and ip",
)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """The address of each host by the name of its namespace; both call their link ``wire``."""
    names = [f"ssl-toolkit-{os.getpid()}-{number}" for number in (1, 2)]
    addresses = dict(zip(names, ("10.77.0.1", "10.77.0.2"), strict=True))
    try:
        try:
            for name in names:
                ip("netns", "add", name)
        except subprocess.CalledProcessError:
            pytest.skip("no network namespaces may be made here")
        wires = ("wire", "netns", names[0], "type", "veth", "peer", "name", "wire", "netns")
        ip("link", "add", *wires, names[1])
        for name, address in addresses.items():
            ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            for device in ("lo", "wire"):
                ip("-n", name, "link", "set", device, "up")
        yield addresses
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def started(host: str, address: str, meeting: str, run: Path, log: Path) -> subprocess.Popen[bytes]:
    """``torchrun`` on a host, with one process there and two in all."""
    first = address == meeting
    with log.open("wb") as file:
        return subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run",
             "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "1",
             "--rdzv-endpoint", f"{meeting}:29400", "--rdzv-conf", f"is_host={first:d}",
             "--local-addr", address, "-m", "ssl_toolkit", *RUN, "--output", str(run)],
            env=os.environ | {"GLOO_SOCKET_IFNAME": "wire", "OMP_NUM_THREADS": "1"},
            stdout=file, stderr=file,
        )  # fmt: skip


@pytest.mark.slow
def test_two_hosts_equal_two_processes_of_one_host(hosts: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "shared" / "run"
    meeting = min(hosts.values())
    logs = {host: tmp_path / f"{host}.txt" for host in hosts}
    processes = [
        started(host, address, meeting, run, logs[host]) for host, address in hosts.items()
    ]
    try:
        statuses = [process.wait(240) for process in processes]
    finally:
        for process in processes:
            process.terminate()  # torchrun then ends what it has started
            process.wait(60)
    assert statuses == [0, 0], "\n".join(log.read_text() for log in logs.values())
    alone = tmp_path / "alone" / "run"
    assert call(*RUN, "--devices", 2, "--output", alone).returncode == 0
    assert kill_resume.differences(alone, run) == []
    assert call("check-run", run).returncode == 0
