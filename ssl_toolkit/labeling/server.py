"""An HTTP server for the labeling page, for the user of this machine alone.

It listens on 127.0.0.1. Each address starts with a random token, which other users and web pages
don't know; requests that name another host (DNS rebinding) or come from another origin are refused
too. Images are requested by number and encoded by the server, so that no path leads out of the data
and no file's own type or script reaches the browser.
"""

from __future__ import annotations

import errno
import hmac
import json
import re
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from ssl_toolkit.errors import ConfigError, DataError, one_line
from ssl_toolkit.labeling.page_images import encoded_image
from ssl_toolkit.labeling.session import LabelingSession

MOST_BYTES = 4096
"""Maximum length of the body of a request, and of its address."""

_PAGE = Path(__file__).parent / "page"
_FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refused(Exception):
    """A request that is answered with an error status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class LabelingServer(ThreadingHTTPServer):
    """Serves a session until `shutdown`, which the page can request.

    Args:
        session: The images and their labels.
        port: Port on 127.0.0.1; 0 for a free one.

    Raises:
        ConfigError: The port is in use, or not permitted.
    """

    daemon_threads = True
    request_queue_size = 128
    """Connections that may wait; with Python's default of 5, many tabs at once are refused."""

    def __init__(self, session: LabelingSession, port: int = 0) -> None:
        self.session = session
        self.token: str = secrets.token_urlsafe(24)
        self.files: dict[str, tuple[str, bytes]] = {
            name: (kind, (_PAGE / file).read_bytes()) for name, (file, kind) in _FILES.items()
        }
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                reason = "already in use; choose another one, or leave it out for a free one"
            else:
                reason = f"{error.strerror}; choose another one from 1024 to 65535"
            raise ConfigError(f"--port {port}: {reason}") from None

    @property
    def hosts(self) -> tuple[str, str]:
        """Values of a Host header that are accepted."""
        return f"127.0.0.1:{self.server_port}", f"localhost:{self.server_port}"

    @property
    def url(self) -> str:
        """The address to open."""
        return f"http://{self.hosts[0]}/{self.token}/"

    def server_bind(self) -> None:
        """Bind without the name lookup of `HTTPServer`, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name: str = "127.0.0.1"
        self.server_port: int = int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the browser closes early."""

    def stop_soon(self) -> None:
        """Stop serving after the answer that is being sent."""
        threading.Thread(target=self.shutdown, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: LabelingServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "ssl-toolkit", ""
    timeout = 30

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_POST(self) -> None:
        self._respond(self._post)

    def __getattr__(self, name: str) -> Any:
        # Every other method of HTTP, which `BaseHTTPRequestHandler` looks up by name.
        if name.startswith("do_"):
            return lambda: self._respond(self._not_allowed)
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: addresses contain the token."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that isn't HTTP."""
        self._send(code, "application/json", _json({"error": message or "wrong request"}))

    def _respond(self, action: Callable[[str], tuple[str, bytes]]) -> None:
        try:
            kind, content = action(self._resource())
        except Refused as error:
            self._send(error.status, "application/json", _json({"error": str(error)}))
        except (DataError, OSError) as error:
            status, reason = 422, str(error)
            if isinstance(error, OSError):
                status, reason = 500, f"{error.filename}: {error.strerror}"
            self._send(status, "application/json", _json({"error": one_line(reason)}))
        else:
            self._send(200, kind, content)
            if self.path.endswith("/finish"):
                self.server.stop_soon()

    def _resource(self) -> str:
        """Return the address after the token.

        Raises:
            Refused: The request isn't one of the page.
        """
        if len(self.path) > MOST_BYTES:
            raise Refused(414, "the address is too long")
        _, _, rest = self.path.partition("/")
        token, slash, resource = rest.partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            raise Refused(403, "open the address that the terminal shows")
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            raise Refused(403, f"the host must be {self.server.hosts[0]}: use the same port")
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            raise Refused(403, "the request comes from another page")
        # A link to the page itself, such as one in a terminal that is a web page, may be followed.
        followed = not resource and self.headers.get("Sec-Fetch-Dest") == "document"
        site = self.headers.get("Sec-Fetch-Site", "none")
        if site not in ("same-origin", "none") and not followed:
            raise Refused(403, "the request comes from another page")
        if not slash:
            raise Refused(404, "not found")
        return resource

    def _not_allowed(self, resource: str) -> tuple[str, bytes]:
        raise Refused(405, f"the method {self.command[:20]} is not allowed")

    def _get(self, resource: str) -> tuple[str, bytes]:
        session = self.server.session
        if resource in self.server.files:
            return self.server.files[resource]
        if resource == "state":
            return "application/json", _json(session.state())
        if match := re.fullmatch(r"(state|image)/([0-9]{1,9})", resource):
            index = int(match[2])
            if match[1] == "state" and index <= len(session):
                return "application/json", _json(session.state(index))
            if match[1] == "image" and index < len(session):
                return encoded_image(session.table, session.rows[index])
        raise Refused(404, "not found")

    def _post(self, resource: str) -> tuple[str, bytes]:
        body, session = self._body(), self.server.session
        if resource == "undo" and not body:
            return "application/json", _json(session.undo())
        if resource == "finish" and not body:
            return "application/json", _json(session.state())
        if resource != "answer":
            raise Refused(404, "not found")
        index, label, add = body.get("index"), body.get("label"), body.get("add", False)
        if body.keys() - {"index", "label", "add"} or not (
            type(index) is int and isinstance(label, str) and isinstance(add, bool)
        ):
            raise Refused(400, "an answer has an index, a label, and add")
        if not 0 <= index < len(session):
            raise Refused(404, "no image has this index")
        return "application/json", _json(session.answer(index, label, add=add))

    def _body(self) -> dict[str, Any]:
        """Return the JSON object of a request.

        Raises:
            Refused: It is another kind of content, or too long.
        """
        if not self.headers.get_all("Origin"):
            raise Refused(403, "the request has no origin")
        if self.headers.get_content_type() != "application/json":
            raise Refused(415, "the content must be JSON")
        length = self.headers.get_all("Content-Length", [])
        if self.headers.get_all("Transfer-Encoding") or len(length) != 1:
            raise Refused(411, "the request has no length")
        if not re.fullmatch(r"[0-9]{1,9}", length[0]):
            raise Refused(400, "the length is wrong")
        if int(length[0]) > MOST_BYTES:
            raise Refused(413, "the request is too long")
        try:
            body = json.loads(self.rfile.read(int(length[0])))
        except TimeoutError:
            raise Refused(408, "the request ends early") from None
        except (ValueError, RecursionError):
            raise Refused(400, "the content is no JSON") from None
        if not isinstance(body, dict):
            raise Refused(400, "the content is no JSON object")
        return body

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if status >= 400:  # the body may not have been read
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, allow_nan=False).encode()
