"""`label import` and `label export`: files of Label Studio, CVAT, FiftyOne and tables."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from in_process import call, refusal
from tiny_images import put

from ssl_toolkit.labeling.exchange import answers
from ssl_toolkit.labeling.labels_table import LabelsTable

FORMS = Path(__file__).parent / "forms"
NAMES = ("one.png", "two &.png", "sub/three.png", "sub/four.png")
ODD = {
    "é, ü.png": "ja, é",
    "a\nb.png": "two\nlines",
    "=sum.png": "null",
    "sub/'x'.png": "007",
    "sub/ y.png": "-1",
    "1.png": "1e5",
    "no.png": "unlabeled",
    "sub/deep/z z.PNG": " spaces ",
    "日本.png": "=1+1",
    'q"uote.png': "'s",
}
SUFFIX = {"label-studio": ".json", "fiftyone": ".json", "cvat": ".zip", "csv": ".csv"}


def pool(folder: Path, names: Any = NAMES) -> Path:
    for number, name in enumerate(names):
        put(folder / "photos" / "unlabeled" / name, number)
    return folder / "photos"


def labels_file(path: Path, labels: Mapping[str, str]) -> Path:
    table = LabelsTable(path)
    for key, label in labels.items():
        table.put(f"unlabeled/{key}", label)
    table.write()
    return path


def rows(path: Path) -> dict[str, str]:
    return {key.removeprefix("unlabeled/"): label for key, label in LabelsTable(path).rows.items()}


@pytest.mark.parametrize("kind", SUFFIX)
def test_a_round_trip_gives_the_same_file(tmp_path: Path, kind: str) -> None:
    data, file = pool(tmp_path, ODD), tmp_path / f"out{SUFFIX[kind]}"
    labels = labels_file(tmp_path / "labels.csv", ODD)
    done = call("label", "export", data, "--labels", labels, "--format", kind, "-o", file)
    assert done.returncode == 0, done.stderr
    assert f"{len(ODD)} images" in done.stderr
    back = tmp_path / "back.csv"
    done = call("label", "import", data, file, "--labels", back)
    assert done.returncode == 0, done.stderr
    assert back.read_bytes() == labels.read_bytes()
    again = tmp_path / f"again{SUFFIX[kind]}"
    call("label", "export", data, "--labels", back, "--format", kind, "-o", again)
    assert again.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("kind", ["label-studio", "csv"])
def test_skipped_images_are_kept_where_the_form_has_them(tmp_path: Path, kind: str) -> None:
    data, file = pool(tmp_path), tmp_path / f"out{SUFFIX[kind]}"
    labels = labels_file(tmp_path / "labels.csv", {"one.png": "a", "two &.png": ""})
    call("label", "export", data, "--labels", labels, "--format", kind, "-o", file)
    call("label", "import", data, file, "--labels", tmp_path / "back.csv")
    assert (tmp_path / "back.csv").read_bytes() == labels.read_bytes()


def test_skipped_images_are_left_out_elsewhere(tmp_path: Path) -> None:
    data = pool(tmp_path)
    labels = labels_file(tmp_path / "labels.csv", {"one.png": "a", "two &.png": ""})
    for kind in ("cvat", "fiftyone"):
        file = tmp_path / f"out{SUFFIX[kind]}"
        done = call("label", "export", data, "--labels", labels, "--format", kind, "-o", file)
        assert "1 images; 1 without a label left out" in done.stderr


def test_tasks_with_predictions(tmp_path: Path) -> None:
    data, queue = pool(tmp_path), tmp_path / "queue.csv"
    queue.write_text(
        "path,score,guess,confidence,method\n"
        "unlabeled/two &.png,0.1,null,0.75,margin\nunlabeled/one.png,,,,random\n"
    )
    file = tmp_path / "tasks.json"
    done = call("label", "export", data, "--queue", queue, "--format", "label-studio", "-o", file)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(file.read_text())
    assert first["data"]["image"] == "/data/local-files/?d=unlabeled/two%20%26.png"
    assert first["predictions"] == [
        {
            "result": [
                {
                    "from_name": "label",
                    "to_name": "image",
                    "type": "choices",
                    "value": {"choices": ["null"]},
                }
            ],
            "model_version": "ssl-toolkit, margin",
            "score": 0.75,
        }
    ]
    assert "annotations" not in first
    assert "predictions" not in second


def test_an_export_of_label_studio(tmp_path: Path) -> None:
    data, labels = pool(tmp_path), tmp_path / "labels.csv"
    done = call("label", "import", data, FORMS / "label_studio.json", "--labels", labels)
    assert done.returncode == 0, done.stderr
    assert rows(labels) == {"one.png": "cat", "two &.png": "", "sub/four.png": "dog"}
    assert "3 rows added or changed" in done.stderr
    assert "2 labels, 1 images were skipped" in done.stderr


def test_an_export_of_fiftyone(tmp_path: Path) -> None:
    data, labels = pool(tmp_path), tmp_path / "labels.csv"
    done = call("label", "import", data, FORMS / "fiftyone.json", "--labels", labels)
    assert done.returncode == 0, done.stderr
    assert rows(labels) == {"one.png": "dog", "two &.png": "cat", "sub/four.png": "cat"}


@pytest.mark.parametrize("packed", [True, False])
def test_an_export_of_cvat(tmp_path: Path, packed: bool) -> None:
    data, labels = pool(tmp_path), tmp_path / "labels.csv"
    for name in ("cat/one.png", "cat/sub/four.png", "dog/dog_two &.png"):
        put(tmp_path / "export" / name)
    file = tmp_path / "export"
    if packed:
        file = Path(shutil.make_archive(str(file), "zip", file))
    done = call("label", "import", data, file, "--labels", labels)
    assert done.returncode == 0, done.stderr
    assert rows(labels) == {"one.png": "cat", "sub/four.png": "cat", "two &.png": "dog"}


@pytest.mark.parametrize("packed", [True, False])
def test_images_of_cvat_without_an_answer_are_left_out(tmp_path: Path, packed: bool) -> None:
    data, labels = pool(tmp_path), tmp_path / "labels.csv"
    for name in ("cat/one.png", "no_label/two &.png"):
        put(tmp_path / "export" / name)
    file = tmp_path / "export"
    if packed:
        file = Path(shutil.make_archive(str(file), "zip", file))
    start = ("label", "import", data, file, "--labels", labels)
    assert call(*start).returncode == 0
    assert rows(labels) == {"one.png": "cat"}
    assert call(*start, "--classes", "cat,no_label").returncode == 0
    assert rows(labels) == {"one.png": "cat", "two &.png": "no_label"}
    file = tmp_path / "out.zip"
    start = ("label", "export", data, "--labels", labels, "--format", "cvat", "-o", file)
    assert "'no_label' can't be the names of folders of classes" in refusal(*start)


def test_files_that_tools_leave_in_an_archive_of_cvat_are_left_out(tmp_path: Path) -> None:
    data, labels, file = pool(tmp_path), tmp_path / "labels.csv", tmp_path / "a.zip"
    left = ("__MACOSX/cat/._one.png", "__MACOSX/._cat", "cat/._one.png", "._one.png")
    left += ("cat/.DS_Store", "cat/Thumbs.db", "cat/@eaDir/one.png", ".ipynb_checkpoints/two.png")
    file.write_bytes(archive("cat/one.png", *left))
    done = call("label", "import", data, file, "--labels", labels)
    assert done.returncode == 0, done.stderr
    assert rows(labels) == {"one.png": "cat"}
    for name in left:
        put(tmp_path / "export" / name)
    put(tmp_path / "export" / "cat" / "one.png")
    done = call("label", "import", data, tmp_path / "export", "--labels", labels)
    assert "0 rows added or changed" in done.stderr


def archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, b"x")
    return buffer.getvalue()


def task(image: str, *choices: str, **more: Any) -> dict[str, Any]:
    result = [{"type": "choices", "value": {"choices": list(choices)}}]
    return {"data": {"image": image}, "annotations": [{"result": result}], **more}


def tasks(*content: Any) -> bytes:
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zip", archive("../../evil/one.png"), "leads out of the archive"),
        ("a.zip", archive("/etc/one.png"), "leads out of the archive"),
        ("a.zip", archive("cat/one.png", "dog/one.png"), "two answers for 'unlabeled/one.png'"),
        ("a.zip", archive("one.png"), "'one.png' is in no class folder"),
        ("a.zip", archive("cat/none.png"), "the data has no image 'none.png'"),
        ("a.zip", b"PK\3\4 no archive", "no zip archive or corrupt"),
        ("a.json", b"[" * 200_000, "not JSON or corrupt"),
        ("a.json", b"\xff\xfe\x00", "not JSON or corrupt"),
        ("a.json", b"", "not JSON or corrupt"),
        ("a.json", b"3", "no list of tasks"),
        ("a.json", b'{"a": 1}', "no object 'labels'"),
        ("a.json", b'[{"image": "one.png", "choice": "cat"}]', "not JSON-MIN"),
        ("a.json", tasks({"data": {}}), "task 1: no task of Label Studio"),
        ("a.json", tasks({"data": {"image": "one.png"}, "annotations": [3]}), "task 1: no task"),
        ("a.json", tasks(task("none.png", "cat")), "task 1: the data has no image 'none.png'"),
        ("a.json", tasks(task("one.png", "cat", "dog")), "two answers for 'one.png'"),
        ("a.json", tasks(task("one.png", "a"), task("x/one.png", "b")), "task 2: two answers"),
        ("a.json", tasks(task("one.png", "ca\0t")), "holds a NUL character"),
        ("a.json", b'{"classes": ["a"], "labels": {"one": 5}}', "the class index 5"),
        ("a.json", b'{"classes": ["a"], "labels": {"one": true}}', "neither a class nor"),
        ("a.json", b'{"classes": 3, "labels": {}}', "'classes' is no list of texts"),
        ("a.json", b'{"labels": {"one": "a", "one": "b"}}', "label 2: two answers"),
        ("a.csv", b"path,label\none.png,cat\nunlabeled/one.png,dog\n", "two answers"),
        ("a.csv", b"image,label\none.png,cat\n", "no column 'path'"),
        ("a.csv", b"path\none.png\n", "has no labels; give a table with the columns path and"),
        ("a.pkl", b"cposix\nsystem\n", "a folder or a file in"),
    ],
)
def test_hostile_and_wrong_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    data, labels = pool(tmp_path), tmp_path / "labels.csv"
    (tmp_path / name).write_bytes(content)
    error = refusal("label", "import", data, tmp_path / name, "--labels", labels)
    assert message in error
    assert len(error.splitlines()) == 1
    assert not labels.exists()
    assert not (tmp_path.parent / "evil").exists()


def test_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_BYTES", 2**20)
    data = pool(tmp_path)
    (tmp_path / "a.json").write_bytes(b" " * 2**21)
    start = ("label", "import", data)
    assert "more than 1 MiB" in refusal(*start, tmp_path / "a.json", "--labels", tmp_path / "l.csv")
    assert "not found" in refusal(*start, tmp_path / "none.json", "--labels", tmp_path / "l.csv")


def test_unknown_classes_and_test_images(tmp_path: Path) -> None:
    data, labels = pool(tmp_path), tmp_path / "labels.csv"
    put(data / "test" / "cat" / "t.png")
    put(data / "test" / "dog" / "u.png", 7)
    file = tmp_path / "a.csv"
    file.write_text("path,label\none.png,cta\n")
    error = refusal("label", "import", data, file, "--labels", labels)
    assert "unknown class 'cta' (did you mean 'cat'?)" in error
    assert (
        call("label", "import", data, file, "--labels", labels, "--classes", "cta").returncode == 0
    )
    file.write_text("path,label\ntest/cat/t.png,cat\n")
    assert "is a test image" in refusal("label", "import", data, file, "--labels", labels)


def test_other_labels_are_replaced_on_request(tmp_path: Path) -> None:
    data = pool(tmp_path)
    labels = labels_file(tmp_path / "labels.csv", {"one.png": "cat"})
    before = labels.read_bytes()
    (tmp_path / "a.csv").write_text("path,label\none.png,dog\ntwo &.png,dog\n")
    start = ("label", "import", data, tmp_path / "a.csv", "--labels", labels)
    assert "1 images have another label" in refusal(*start)
    assert labels.read_bytes() == before
    assert call(*start, "--replace").returncode == 0
    assert rows(labels) == {"one.png": "dog", "two &.png": "dog"}


def test_names_that_may_be_several_images(tmp_path: Path) -> None:
    data = pool(tmp_path, ["a/x.png", "b/x.png", "c/x.jpg"])
    (tmp_path / "a.csv").write_text("path,label\nx.png,dog\n")
    start = ("label", "import", data, tmp_path / "a.csv", "--labels", tmp_path / "l.csv")
    assert "may be 'unlabeled/a/x.png' or 'unlabeled/b/x.png'" in refusal(*start)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a/0001.png", "unlabeled/a/0001.png"),
        ("photos/unlabeled/a/0001.png", "unlabeled/a/0001.png"),
        ("storage/photos/a/0001.png", "unlabeled/a/0001.png"),
        ("storage/b/top.png", "unlabeled/top.png"),
        ("deep/0002.png", "unlabeled/a/deep/0002.png"),
        ("0002.png", "unlabeled/a/deep/0002.png"),
        ("0001.png", "unlabeled/a/0001.png"),
        ("b/0001.png", ""),
        ("storage/b/0001.png", ""),
        ("a/0002.png", ""),
        ("storage/deep/0002.png", ""),
        ("other-unlabeled/a/0001.png", "unlabeled/a/0001.png"),
        ("1.png", ""),
    ],
)
def test_a_name_means_no_image_of_another_folder(tmp_path: Path, name: str, key: str) -> None:
    data = pool(tmp_path, ["a/0001.png", "a/deep/0002.png", "top.png"])
    (tmp_path / "a.csv").write_text(f"path,label\n{name},dog\n")
    start = ("label", "import", data, tmp_path / "a.csv", "--labels", tmp_path / "l.csv")
    if key:
        assert call(*start).returncode == 0
        assert LabelsTable(tmp_path / "l.csv").rows == {key: "dog"}
    else:
        error = refusal(*start)
        assert f"the data has no image {name!r}" in error
        assert ("is in another folder" in error) == ("/" in name)
        assert not (tmp_path / "l.csv").exists()


def test_the_hash_of_an_upload_is_no_part_of_a_name(tmp_path: Path) -> None:
    data = pool(tmp_path, ["20240101-1.png", "1.png", "2.png", "holidays-2.png"])
    addresses = {
        "/data/upload/1/20240101-1.png": "20240101-1.png",
        "/data/upload/1/0a1b2c3d-1.png": "1.png",
        "/data/upload/0a1b2c3d-2.png": "2.png",
        "/data/upload/1/01234567-holidays-2.png": "holidays-2.png",
    }
    file, labels = tmp_path / "a.json", tmp_path / "labels.csv"
    file.write_bytes(tasks(*(task(address, "cat") for address in addresses)))
    assert call("label", "import", data, file, "--labels", labels).returncode == 0
    assert list(rows(labels)) == list(addresses.values())
    wrong = ("/data/local-files/?d=upload/20240102-1.png", "/data/upload/1/holidayz-2.png")
    file.write_bytes(tasks(*(task(address, "dog") for address in wrong)))
    error = refusal("label", "import", data, file, "--labels", labels)
    assert "no image 'upload/20240102-1.png'" in error
    assert "no image '/data/upload/1/holidayz-2.png'" in error


def test_what_a_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    data = pool(tmp_path, ["x.png", "x.jpg"])
    labels = labels_file(tmp_path / "labels.csv", {"x.png": "a/b", "x.jpg": "c"})

    def export(kind: str, *more: object) -> str:
        file = tmp_path / f"out{SUFFIX[kind]}"
        return refusal("label", "export", data, "--format", kind, "-o", file, *more)

    assert "can't be the names of folders" in export("cvat", "--labels", labels)
    assert "without their extensions" in export("fiftyone", "--labels", labels)
    assert "nothing to export" in export("csv")
    other = labels_file(tmp_path / "other.csv", {"none.png": "a"})
    assert "the data has no images unlabeled/none.png" in export("csv", "--labels", other)
