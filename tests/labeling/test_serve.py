"""The labeling page's server: what it refuses, and that no answer is ever lost."""

from __future__ import annotations

import io
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import call, refusal
from labeling_data import Client, make_data, opened, served, write_queue
from PIL import Image

from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.splits.labels_file import choose_labeled
from ssl_toolkit.labeling.labels_table import LabelsTable

IN_ORDER = [(f"unlabeled/{number}.png", "", "") for number in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    data = make_data(folder)
    (data / "unlabeled" / "evil.png").write_text("<svg onload='alert(1)'><script>alert(2)</script>")
    (data / "unlabeled" / "secret.txt").write_text("secret")
    write_queue(folder, [*IN_ORDER, ("unlabeled/evil.png", "cat", "0.5")])
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Client]:
    """A server that several tests ask, and whose labels nobody reads."""
    with opened(folder / "data", folder / "any.csv", queue=folder / "queue.csv") as page:
        yield page


def answer(index: int = 0, label: str = "cat", **more: object) -> dict[str, object]:
    return {"index": index, "label": label, **more}


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/state",
        "//state",
        "/wrong/state",
        "/TOKEN",
        "/TOKEN0/state",
        "/token%00/state",
        "/é/state",
        "http://127.0.0.1/TOKEN/state",
        "*",
    ],
)
def test_without_the_token_nothing_is_shown(page: Client, path: str) -> None:
    path = path.replace("TOKEN", page.token).encode().decode("latin-1")
    if path == f"/{page.token}":
        assert page.request("GET", "", path=path)[0] == 404
    else:
        with socket.create_connection(("127.0.0.1", page.port)) as connection:
            host = f"127.0.0.1:{page.port}"
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
            response = connection.recv(4000)
        assert response.startswith(b"HTTP/1.1 403 "), response
        assert b"classes" not in response
        assert page.token.encode() not in response


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "BREW"])
def test_other_methods_are_refused(page: Client, method: str) -> None:
    assert page.request(method, "state")[0] == 405
    assert page.request(method, "state", path="/wrong/state")[0] == 403


@pytest.mark.parametrize(
    "host", ["example.org", "127.0.0.1", "localhost", "127.0.0.1:1", "[::1]:1"]
)
def test_another_host_is_refused(page: Client, host: str) -> None:
    for resource, body in (("", None), ("state", None), ("answer", answer())):
        method = "GET" if body is None else "POST"
        assert page.request(method, resource, body, headers={"Host": host})[0] == 403


def test_two_hosts_or_none_are_refused(page: Client) -> None:
    ours = f"Host: 127.0.0.1:{page.port}\r\n"
    for hosts in ("", ours * 2, ours + "Host: example.org\r\n"):
        with socket.create_connection(("127.0.0.1", page.port)) as connection:
            connection.sendall(f"GET /{page.token}/state HTTP/1.1\r\n{hosts}\r\n".encode())
            assert connection.recv(4000).startswith(b"HTTP/1.1 403 ")


def test_both_names_of_this_machine_are_accepted(page: Client) -> None:
    assert page.request("GET", "state", headers={"Host": f"localhost:{page.port}"})[0] == 200


@pytest.mark.parametrize(
    "origin",
    ["http://example.org", "null", "http://127.0.0.1", "https://127.0.0.1:PORT", "file://"],
)
def test_requests_of_other_pages_are_refused(page: Client, origin: str) -> None:
    headers = {"Origin": origin.replace("PORT", str(page.port))}
    assert page.request("POST", "answer", answer(), headers=headers)[0] == 403
    assert page.request("GET", "state", headers=headers)[0] == 403
    assert page.request("GET", "image/0", headers={"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert page.request("GET", "state", headers={"Sec-Fetch-Site": "same-site"})[0] == 403
    assert page.request("POST", "answer", answer(), headers={"Origin": ""})[0] == 403


def test_a_link_to_the_page_may_be_followed(page: Client) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
    assert page.request("GET", "", headers=headers)[0] == 200
    assert page.request("GET", "state", headers=headers)[0] == 403
    assert page.request("GET", "", headers=headers | {"Sec-Fetch-Dest": "iframe"})[0] == 403


@pytest.mark.parametrize(
    "resource",
    [
        "image/7",
        "image/-1",
        "image/0.png",
        "image/../../queue.csv",
        "image/..%2f..%2fqueue.csv",
        "image/1e0",
        "image/٣",
        "image/99999999999999",
        "../queue.csv",
        "unlabeled/secret.txt",
        "page.js/../index.html",
        "state/8",
        "answer",
        "state?x=1",
    ],
)
def test_nothing_else_can_be_read(page: Client, resource: str) -> None:
    path = f"/{page.token}/{resource}".encode().decode("latin-1")
    with socket.create_connection(("127.0.0.1", page.port)) as connection:
        host = f"127.0.0.1:{page.port}"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
        assert connection.recv(4000).startswith(b"HTTP/1.1 404 ")


def test_images_are_encoded_again_and_nothing_else_is_sent(page: Client) -> None:
    for index in range(6):
        status, headers, content = page.request("GET", f"image/{index}")
        with Image.open(io.BytesIO(content)) as image:
            assert (status, image.format) == (200, headers["Content-Type"][6:].upper())
            assert image.size == ((900, 600) if index % 2 else (32, 24))
    status, headers, content = page.request("GET", "image/6")
    assert (status, headers["Content-Type"]) == (422, "application/json")
    assert b"alert" not in content


@pytest.mark.parametrize("resource", ["", "page.js", "page.css", "state", "image/0", "image/9"])
def test_every_answer_forbids_scripts_of_others(page: Client, resource: str) -> None:
    _, headers, content = page.request("GET", resource)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers
    assert b"http:" not in content.replace(b"http://127.0.0.1", b"")
    assert b"https:" not in content


@pytest.mark.parametrize(
    ("status", "headers", "content"),
    [
        (415, {"Content-Type": "text/plain"}, b"{}"),
        (415, {"Content-Type": "application/x-www-form-urlencoded"}, b"{}"),
        (411, {"Content-Length": None}, b""),
        (411, {"Transfer-Encoding": "chunked"}, b"0\r\n\r\n"),
        (400, {"Content-Length": "-1"}, b""),
        (400, {"Content-Length": "1e3"}, b""),
        (413, {"Content-Length": "5000"}, b""),
        (413, {"Content-Length": "999999999"}, b""),
        (400, {}, b"no JSON"),
        (400, {}, b"[" * 4000),
        (400, {}, b"[]"),
        (400, {}, b'{"index": 0}'),
        (400, {}, b'{"index": true, "label": "cat"}'),
        (400, {}, b'{"index": 0.0, "label": "cat"}'),
        (400, {}, b'{"index": 0, "label": 1}'),
        (400, {}, b'{"index": 0, "label": "cat", "add": 1}'),
        (400, {}, b'{"index": 0, "label": "cat", "path": "/etc/passwd"}'),
        (404, {}, b'{"index": -1, "label": "cat"}'),
        (404, {}, b'{"index": 7, "label": "cat"}'),
        (422, {}, b'{"index": 0, "label": "bird"}'),
        (422, {}, b'{"index": 0, "label": "\\ud800", "add": true}'),
        (422, {}, b'{"index": 0, "label": "a\\u0000b", "add": true}'),
        (422, {}, b'{"index": 0, "label": "a\\nb", "add": true}'),
        (422, {}, b'{"index": 0, "label": "' + b"x" * 201 + b'", "add": true}'),
        (422, {}, b'{"index": 0, "label": "Cat", "add": true}'),
        (422, {}, b'{"index": 0, "label": " ", "add": true}'),
        (431, {"X-Long": "x" * 70000}, b"{}"),
    ],
)
def test_wrong_answers_are_refused(
    page: Client, status: int, headers: dict[str, str | None], content: bytes
) -> None:
    ours = f"127.0.0.1:{page.port}"
    sent = {
        "Host": ours,
        "Origin": f"http://{ours}",
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
    } | headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items() if value is not None)
    with socket.create_connection(("127.0.0.1", page.port), 20) as connection:
        head = f"POST /{page.token}/answer HTTP/1.1\r\n{lines}\r\n".encode()
        connection.sendall(head + content)
        response = connection.recv(4000)
    assert response.startswith(f"HTTP/1.1 {status} ".encode()), response
    assert page.state()["labeled"] == 0
    assert page.state()["classes"] == ["cat", "dog"]


def test_a_long_address_is_refused(page: Client) -> None:
    assert page.request("GET", "x" * 5000)[0] == 414


def test_garbage_ends_the_connection_but_not_the_server(page: Client) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 99,
    ):
        with socket.create_connection(("127.0.0.1", page.port), 20) as connection:
            connection.sendall(garbage)
    assert page.state()["total"] == 7


def test_it_listens_on_this_machine_only(page: Client) -> None:
    with Path("/proc/net/tcp").open() as lines:
        ports = {
            line.split()[1].split(":")[0]
            for line in lines
            if f":{page.port:04X} 00000000:0000" in line
        }
    assert ports == {"0100007F"}


# --- answers --------------------------------------------------------------------------------------


def test_a_round_of_answers(tmp_path: Path) -> None:
    make_data(tmp_path)
    write_queue(tmp_path, [("unlabeled/3.png", "dog", "0.75"), *IN_ORDER[:3]])
    labels = tmp_path / "labels.csv"
    arguments = ("data", "--labels", "labels.csv", "--queue", "queue.csv", "--classes", "dog,fox")
    with served(*arguments, cwd=tmp_path) as page:
        state = page.state()
        assert state["classes"] == ["dog", "fox", "cat"]
        shown = {name: state[name] for name in ("index", "total", "labeled", "path", "guess")}
        assert shown == {
            "index": 0, "total": 4, "labeled": 0, "path": "unlabeled/3.png", "guess": "dog",
        }  # fmt: skip
        assert state["confidence"] == 0.75
        assert not labels.exists()
        state = page.state("answer", answer(0, "dog"))
        assert labels.read_text() == "path,label\nunlabeled/3.png,dog\n"
        assert (state["index"], state["path"]) == (1, "unlabeled/0.png")
        state = page.state("answer", answer(1, ""))
        assert (state["index"], state["labeled"], state["skipped"]) == (2, 1, 1)
        state = page.state("answer", answer(2, " lynx ", add=True))
        assert state["classes"] == ["dog", "fox", "cat", "lynx"]
        assert LabelsTable(labels).rows == {
            "unlabeled/3.png": "dog", "unlabeled/0.png": "", "unlabeled/1.png": "lynx",
        }  # fmt: skip
        state = page.state("undo", {})
        assert (state["index"], state["answer"]) == (2, None)
        assert state["classes"] == ["dog", "fox", "cat"]  # without the typing error
        page.state("answer", answer(0, "fox"))  # a second thought about an earlier image
        state = page.state("undo", {})
        assert (state["index"], state["answer"]) == (0, "dog")
        page.state("answer", answer(2, "cat"))
        assert page.state("answer", answer(3, "cat"))["index"] == 4
        page.process.send_signal(signal.SIGINT)
        output, errors = page.process.communicate(timeout=20)
        assert (page.process.returncode, errors) == (0, "")
        assert output == "3 of 4 images labeled, 1 skipped: labels.csv\n"


def test_a_killed_server_has_lost_nothing(tmp_path: Path) -> None:
    make_data(tmp_path)
    write_queue(tmp_path, IN_ORDER)
    arguments = ("data", "--labels", "labels.csv", "--queue", "queue.csv")
    confirmed: dict[str, str] = {}
    for turn in range(2):
        with served(*arguments, cwd=tmp_path) as page:
            state = page.state()
            assert state["index"] == len(confirmed)
            assert LabelsTable(tmp_path / "labels.csv").rows == confirmed
            stop = threading.Timer(0.05, page.process.kill)
            for index in range(3 * turn, 3 * turn + 3):
                confirmed[page.state(f"state/{index}")["path"]] = "cat"
                page.state("answer", answer(index, "cat"))
            stop.start()
            alternate = ("cat", "dog")
            count = 0
            with pytest.raises((OSError, AssertionError)):  # noqa: PT012  # killed in the middle
                while True:
                    page.state("answer", answer(3 * turn, alternate[count % 2]))
                    count += 1
            stop.join()
            found = LabelsTable(tmp_path / "labels.csv").rows
            assert found.keys() == confirmed.keys()
            last = f"unlabeled/{3 * turn}.png"
            assert found[last] in alternate
            confirmed = found
    with served(*arguments, cwd=tmp_path) as page:
        assert page.state()["labeled"] == 6
        assert page.state("undo", {})["labeled"] == 5  # also of an earlier session


def test_one_server_at_a_time_writes_a_labels_file(tmp_path: Path) -> None:
    data, labels = make_data(tmp_path), tmp_path / "labels.csv"
    with served(data, "--labels", labels, cwd=tmp_path) as page:
        message = refusal("label", "serve", data, "--labels", labels)
        assert f"labels.csv is in use by process {page.process.pid}" in message
        page.process.kill()
        page.process.wait()
        with served(data, "--labels", labels, cwd=tmp_path) as other:
            assert other.state()["total"] == 6


def test_answers_of_many_tabs_are_all_written(tmp_path: Path) -> None:
    make_data(tmp_path, 24)
    with opened(tmp_path / "data", tmp_path / "labels.csv") as page:
        threads = [
            threading.Thread(target=page.state, args=("answer", answer(index, "dog")))
            for index in range(24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert page.state()["labeled"] == 24
    assert len(LabelsTable(tmp_path / "labels.csv").labels) == 24


def test_labels_that_another_program_adds_are_kept(tmp_path: Path) -> None:
    make_data(tmp_path)
    with opened(tmp_path / "data", tmp_path / "labels.csv") as page:
        page.state("answer", answer(0, "dog"))
        other = LabelsTable(tmp_path / "labels.csv")
        other.put("labeled/cat/0.png", "bird")
        other.write()
        state = page.state("answer", answer(1, "cat"))
        assert state["classes"] == ["cat", "dog", "bird"]
        assert [*LabelsTable(tmp_path / "labels.csv").labels.values()] == ["dog", "bird", "cat"]


def test_a_correction_by_another_program_is_not_undone(tmp_path: Path) -> None:
    make_data(tmp_path)
    with opened(tmp_path / "data", tmp_path / "labels.csv") as page:
        first, second = (page.state(f"state/{index}")["path"] for index in range(2))
        page.state("answer", answer(0, "dog"))
        page.state("answer", answer(1, "dog"))
        other = LabelsTable(tmp_path / "labels.csv")
        other.put(second, "cat")
        other.write()
        state = page.state("undo", {})
        assert (state["path"], state["answer"], state["kept"]) == (second, "cat", True)
        state = page.state("undo", {})
        assert (state["path"], state["answer"], state["can_undo"]) == (first, None, False)
        assert page.error("undo", {}) == "no answer to undo"
    assert LabelsTable(tmp_path / "labels.csv").rows == {second: "cat"}


def test_a_file_that_can_not_be_written_is_reported_and_the_answer_not_counted(
    tmp_path: Path,
) -> None:
    make_data(tmp_path)
    answers = tmp_path / "answers"
    answers.mkdir()
    with opened(tmp_path / "data", answers / "labels.csv") as page:
        answers.rename(tmp_path / "away")
        answers.touch()  # as root may write anywhere, no permission would stop it
        assert "answers/labels.csv" in page.error("answer", answer(0, "dog"), 500)
        answers.unlink()
        (tmp_path / "away").rename(answers)
        assert page.state()["labeled"] == 0
        assert page.state("answer", answer(0, "dog"))["labeled"] == 1


def test_a_damaged_labels_file_is_reported_and_left_alone(tmp_path: Path) -> None:
    make_data(tmp_path)
    with opened(tmp_path / "data", tmp_path / "labels.csv") as page:
        (tmp_path / "labels.csv").write_text("path,label,note\na,b,c\n")
        assert "columns path, label, note" in page.error("answer", answer(0, "dog"))
        assert (tmp_path / "labels.csv").read_text() == "path,label,note\na,b,c\n"
        (tmp_path / "labels.csv").unlink()
        assert page.state("answer", answer(0, "dog"))["labeled"] == 1


def test_nothing_to_undo_is_no_error_of_the_server(tmp_path: Path) -> None:
    make_data(tmp_path)
    write_queue(tmp_path, IN_ORDER)
    (tmp_path / "labels.csv").write_text("path,label\nlabeled/cat/0.png,cat\n")  # an earlier round
    with opened(tmp_path / "data", tmp_path / "labels.csv", queue=tmp_path / "queue.csv") as page:
        assert not page.state()["can_undo"]
        assert page.error("undo", {}) == "no answer to undo"
    assert LabelsTable(tmp_path / "labels.csv").rows == {"labeled/cat/0.png": "cat"}


def test_the_page_ends_the_server(tmp_path: Path) -> None:
    make_data(tmp_path)
    with served("data", "--labels", "labels.csv", cwd=tmp_path) as page:
        page.state("answer", answer(0, "dog"))
        assert page.state("finish", {})["labeled"] == 1
        output, errors = page.process.communicate(timeout=20)
        assert (page.process.returncode, errors) == (0, "")
        assert output == "1 of 6 images labeled: labels.csv\n"
    assert not (tmp_path / ".labels.csv.lock").exists()


def test_a_terminated_server_says_so_by_its_status(tmp_path: Path) -> None:
    make_data(tmp_path)
    with served("data", "--labels", "labels.csv", cwd=tmp_path) as page:
        page.process.terminate()
        assert page.process.wait(timeout=20) == 143


# --- invalid arguments ----------------------------------------------------------------------------


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refusal("label", "serve", data, "--labels", tmp_path / "l.csv", "--port", port)
    assert message.startswith(f"error: --port {port}: already in use; choose another one")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("not-there", "--labels", "l.csv"), "not-there doesn't exist"),
        (("data", "--labels", "l.txt"), r"l.txt: the name of a labels file ends in .csv"),
        (("data", "--labels", "l.csv", "--port", "0"), "0 is not in the range"),
        (("data", "--labels", "l.csv", "--queue", "not-there.csv"), "not-there.csv"),
        (("data", "--labels", "l.csv", "--queue", "unknown.csv"), "the data has no images x.png"),
        (("data", "--labels", "unknown.csv"), "the data has no images x.png"),
        (("data", "--labels", "l.csv", "--queue", "test.csv"), "test images: test/cat/0.png"),
        (
            ("data", "--labels", "l.csv", "--queue", "nan.csv"),
            "nan.csv, line 2: 'nan' is no number",
        ),
        (("data/labeled", "--labels", "l.csv"), "data/labeled: every image has a label; its"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    data = make_data(tmp_path)
    (data / "test" / "cat").mkdir(parents=True)
    (data / "test" / "cat" / "0.png").write_bytes((data / "labeled/cat/0.png").read_bytes())
    (tmp_path / "unknown.csv").write_text("path,label\nx.png,cat\n")
    (tmp_path / "nan.csv").write_text("path,confidence\nunlabeled/0.png,nan\n")
    (tmp_path / "test.csv").write_text("path\ntest/cat/0.png\n")
    monkeypatch.chdir(tmp_path)
    assert message in refusal("label", "serve", *arguments)
    assert not (tmp_path / "l.csv").exists()


def test_a_run_reads_the_labels(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    with opened(data, tmp_path / "labels.csv") as page:
        paths = [page.state(f"state/{index}")["path"] for index in range(3)]
        for index, label in enumerate(("cat", "dog", "")):
            page.state("answer", answer(index, label))
    table, chosen = choose_labeled(read_data(data), str(tmp_path / "labels.csv"), data)
    assert {table.keys[row]: int(table.labels[row]) for row in chosen} == {paths[0]: 0, paths[1]: 1}


def test_a_run_learns_a_class_that_was_added(tmp_path: Path) -> None:
    data, labels = make_data(tmp_path), tmp_path / "labels.csv"
    labels.write_text("path,label\nunlabeled/0.png,bird\nlabeled/cat/0.png,cat\n"
                      "labeled/dog/0.png,dog\n")  # fmt: skip
    arguments = ("run", "--data", data, "--labels", labels, "--algo", "supervised", "--steps", 1)
    output = ("--output", tmp_path / "run")
    message = refusal(*arguments, *output)
    assert "'bird', no class of the data; list all classes to add it: --set classes=" in message
    result = call(*arguments, *output, "--set", "classes=[cat,dog,bird]")
    assert result.returncode == 0, result.stderr
    assert "3 classes" in result.stdout
