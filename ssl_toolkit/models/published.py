"""Find the published weights of timm models in caches and packages, or download them.

Nothing here loads code from a file: pickles are read with ``weights_only``.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import threading
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torch import Tensor, hub

from ssl_toolkit import registry
from ssl_toolkit.errors import ModelError, PluginError, ToolkitError, one_line
from ssl_toolkit.models.weights import read_weights

PROBE_SECONDS = 3.0
"""Time limit for a HEAD request."""

_HUB_FILES = (
    "model.safetensors",
    "pytorch_model.bin",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
)


def published_weights(name: str, configuration: Any) -> tuple[Path, dict[str, Tensor] | None]:
    """Return the published weights of a timm model.

    Search the caches of Hugging Face and torch hub, then installed packages; otherwise download
    the file into its cache if the server answers a short request.

    Args:
        name: Name of the model in timm, for messages.
        configuration: timm's ``PretrainedCfg`` of the model, None if it has none.

    Returns:
        Path to the file and its tensors, or None in place of the tensors if only the model itself
        can read the format.

    Raises:
        ModelError: No weights are published, or they can't be downloaded.
    """
    if configuration is not None and configuration.source == "local-dir":
        return _weights_in(Path(configuration.file), name)
    if configuration is None or not configuration.has_weights:
        raise ModelError(
            f"backbone {name!r} has no published weights; leave --pretrained out, "
            "or give a file with --weights FILE"
        )
    path = _cached_file(configuration)
    if path is None and (packaged := _packaged_weights(configuration.architecture)):
        return packaged
    remedy = "give a file with --weights FILE, or leave --pretrained out"
    missing = f"the published weights of backbone {name!r} are not on this machine and"
    url = None if configuration.hf_hub_id else configuration.url
    path = path or _download(missing, _hub_files(configuration), url, remedy)
    own_format = path.suffix == ".npz" or configuration.custom_load == "hf"
    return path, None if own_format else read_weights(path).tensors


def _weights_in(folder: Path, name: str) -> tuple[Path, dict[str, Tensor]]:
    path = next((folder / file for file in _HUB_FILES if (folder / file).is_file()), None)
    if path is None:
        raise ModelError(
            f"backbone {name!r}: {folder} contains no weights ({' or '.join(_HUB_FILES[:2])}); "
            "give a file with --weights FILE, or leave --pretrained out"
        )
    return path, read_weights(path).tensors


def hub_file(name: str, place: str, filename: str) -> Path:
    """Return a file of a repository of the hub from the cache, or download it.

    Args:
        name: Name of the backbone, for messages.
        place: ``ORGANIZATION/NAME``, followed by ``@REVISION`` for another than the newest.
        filename: Name of the file.

    Raises:
        ModelError: It is not in the cache and can't be downloaded.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, _, revision = place.partition("@")
    files = [(repository, revision or None, filename)]
    try:
        found = try_to_load_from_cache(repository, filename, revision=revision or None)
    except HFValidationError as error:
        raise ModelError(f"backbone {name!r}: write hf-hub:ORGANIZATION/NAME") from error
    if isinstance(found, str):
        return Path(found)
    missing = f"the files of backbone {name!r} are not on this machine and"
    return _download(missing, files, None, "give a local folder as local-dir:PATH")


def _packaged_weights(architecture: str) -> tuple[Path, dict[str, Tensor]] | None:
    """Return what a function of the entry-point group ``ssl_toolkit.weights`` returns, if any."""
    for entry in registry.entries(registry.WEIGHTS):
        if entry.name == architecture:
            try:
                found = pkgutil.resolve_name(entry.value)()
            except ToolkitError:
                raise
            except Exception as error:
                raise PluginError(
                    f"weights {entry.name!r} of {entry.distribution} can't be read: "
                    f"{one_line(f'{type(error).__name__}: {error}')}"
                ) from error
            if found is not None:
                path, tensors = found
                return Path(path), tensors
    return None


def _cached_file(configuration: Any) -> Path | None:
    """Return the file in a local cache, if any."""
    from huggingface_hub import try_to_load_from_cache

    for repository, revision, filename in _hub_files(configuration):
        found = try_to_load_from_cache(repository, filename, revision=revision)
        if isinstance(found, str):
            return Path(found)
    path = _torch_hub_path(configuration.url) if configuration.url else None
    return path if path is not None and path.is_file() else None


def _hub_files(configuration: Any) -> list[tuple[str, str | None, str]]:
    if not configuration.hf_hub_id:
        return []
    repository, _, revision = configuration.hf_hub_id.partition("@")
    named = configuration.hf_hub_filename
    return [(repository, revision or None, name) for name in ((named,) if named else _HUB_FILES)]


def _torch_hub_path(url: str) -> Path:
    return Path(hub.get_dir(), "checkpoints", Path(urlsplit(url).path).name)


def _download(
    missing: str, files: list[tuple[str, str | None, str]], address: str | None, remedy: str
) -> Path:
    """Download the first of these files of the hub, else that of an address, into its cache.

    Args:
        missing: Start of the message of an error.
        files: Repository, revision and name of each file.
        address: URL of another server; None for none.
        remedy: End of the message of an error.
    """
    from huggingface_hub import constants, hf_hub_download, hf_hub_url

    # The library reads the variable once, at its import; a notebook may set it later.
    now = os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}
    if now or constants.HF_HUB_OFFLINE:
        raise ModelError(f"{missing} downloads are disabled (HF_HUB_OFFLINE); {remedy}")
    url = constants.ENDPOINT
    try:
        for repository, revision, filename in files:
            url = hf_hub_url(repository, filename, revision=revision)
            if _exists(url):  # else it may have another name
                return Path(hf_hub_download(repository, filename, revision=revision))
        url = address or url
        if address is not None and _exists(url):
            path = _torch_hub_path(url)
            path.parent.mkdir(parents=True, exist_ok=True)
            hub.download_url_to_file(url, str(path), progress=sys.stderr.isatty())
            return path
        raise FileNotFoundError("file not found")
    except (OSError, HTTPException, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        host = urlsplit(url).hostname
        raise ModelError(f"{missing} {host} does not provide them ({reason}); {remedy}") from error


def _exists(url: str) -> bool:
    """Return True if the server has a file, False for status 404; follows redirects and proxies.

    The libraries that download retry for most of a minute if a server doesn't answer, so they are
    called only after this.

    Raises:
        OSError: The server doesn't answer, or answers with another status.
    """
    statuses: list[int] = []

    def request_head() -> None:
        request = urllib.request.Request(url, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=PROBE_SECONDS) as answer:
                statuses.append(answer.status)
        except urllib.error.HTTPError as error:
            statuses.append(error.code)
            error.close()
        except (OSError, HTTPException, ValueError):
            pass

    # In a thread: name resolution has no time limit.
    thread = threading.Thread(target=request_head, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS + 1)
    if statuses not in ([200], [404]):
        raise OSError(f"status {statuses[0]}" if statuses else "no answer")
    return statuses == [200]
