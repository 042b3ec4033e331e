"""Data to label, and the page's server: in this process, or as a command in one of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from PIL import Image

from ssl_toolkit.data.images.files import pillow_muted
from ssl_toolkit.labeling.serve import labeling_server

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/([\w-]+)/")


def make_data(folder: Path, count: int = 6) -> Path:
    """Return a folder of two classes, with `count` unlabeled images of different sizes."""
    data = folder / "data"
    names = [f"labeled/{kind}/{number}.png" for kind in ("cat", "dog") for number in range(2)]
    names += [f"unlabeled/{number}.png" for number in range(count)]
    for number, name in enumerate(names):
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (900, 600) if number % 2 else (32, 24)
        Image.fromarray(np.full((size[1], size[0], 3), 8 * number, np.uint8)).save(path)
    return data


class Client:
    """Asks a server for what the page in a browser would; `line` has its address."""

    def __init__(self, line: str) -> None:
        match = ADDRESS.search(line)
        assert match is not None, line
        self.url, self.port, self.token = match[0], int(match[1]), match[2]

    def request(
        self,
        method: str,
        resource: str,
        body: object = None,
        *,
        headers: dict[str, str] | None = None,
        path: str | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and content; by default as the page itself would ask."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        content = None if body is None else json.dumps(body).encode()
        sent = {"Host": f"127.0.0.1:{self.port}"}
        if body is not None:
            sent |= {"Origin": f"http://127.0.0.1:{self.port}", "Content-Type": "application/json"}
        sent |= headers or {}
        sent = {name: value for name, value in sent.items() if value}
        connection.request(method, path or f"/{self.token}/{resource}", content, sent)
        response = connection.getresponse()
        answer = response.status, dict(response.getheaders()), response.read()
        connection.close()
        return answer

    def state(self, resource: str = "state", body: object = None) -> dict[str, Any]:
        """Return the JSON of a request that must succeed."""
        status, _, content = self.request("GET" if body is None else "POST", resource, body)
        assert status == 200, content
        result: dict[str, Any] = json.loads(content)
        return result

    def error(self, resource: str, body: object = None, status: int = 422) -> str:
        """Return the message of a request that must fail."""
        found, _, content = self.request("GET" if body is None else "POST", resource, body)
        assert found == status, content
        return str(json.loads(content)["error"])


class Page(Client):
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], line: str) -> None:
        super().__init__(line)
        self.process = process


@contextmanager
def opened(data: Path, labels: Path, **options: Any) -> Iterator[Client]:
    """Serve a page from a thread until the end of the block; arguments as `labeling_server`."""
    with labeling_server(data, labels, **options) as server, pillow_muted():
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield Client(server.url)
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def served(*arguments: object, cwd: Path) -> Iterator[Page]:
    """Serve a page by the command until the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ssl_toolkit", "label", "serve", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        yield Page(process, line)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def write_queue(folder: Path, rows: Sequence[tuple[str, str, str]]) -> Path:
    """Write path, guess and confidence of some images."""
    lines = ["path,score,guess,confidence,method"]
    lines += [f"{path},0.5,{guess},{confidence},margin" for path, guess, confidence in rows]
    path = folder / "queue.csv"
    path.write_text("\n".join(lines) + "\n")
    return path
