"""Published weights of timm models: where they are on this computer, and how to get them.

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
"""How long a server may take to answer a question without content."""

_HUB_FILES = (
    "model.safetensors",
    "pytorch_model.bin",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
)


def published_weights(name: str, configuration: Any) -> tuple[Path, dict[str, Tensor] | None]:
    """The published weights of a timm model.

    Looks, in this order, into the caches of Hugging Face and torch hub, into an installed
    package that holds the weights, and, where a short probe finds that the server answers,
    downloads them into the cache.

    Args:
        name: timm's name, for the messages.
        configuration: timm's ``PretrainedCfg`` of that name, None where there is none.

    Returns:
        The file, and its tensors; None for a format that only the model itself can read.

    Raises:
        ModelError: no weights were published, or they are not here and can't be fetched.
    """
    if configuration is None or not configuration.has_weights:
        raise ModelError(
            f"backbone {name!r} has no published weights; leave --pretrained out, "
            "or give a file with --weights FILE"
        )
    path = cached_file(configuration)
    if path is None and (packaged := _packaged_weights(configuration.architecture)):
        return packaged
    path = path or _download(name, configuration)
    own_format = path.suffix == ".npz" or configuration.custom_load == "hf"
    return path, None if own_format else read_weights(path).tensors


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


def cached_file(configuration: Any) -> Path | None:
    """The weights of a timm configuration in a local cache, None where there are none."""
    from huggingface_hub import try_to_load_from_cache

    for repository, revision, filename in _places_in_hub(configuration):
        found = try_to_load_from_cache(repository, filename, revision=revision)
        if isinstance(found, str):
            return Path(found)
    path = _place_in_torch_hub(configuration)
    return path if path is not None and path.is_file() else None


def _places_in_hub(configuration: Any) -> list[tuple[str, str | None, str]]:
    if not configuration.hf_hub_id:
        return []
    repository, _, revision = configuration.hf_hub_id.partition("@")
    named = configuration.hf_hub_filename
    return [(repository, revision or None, name) for name in ((named,) if named else _HUB_FILES)]


def _place_in_torch_hub(configuration: Any) -> Path | None:
    if not configuration.url:
        return None
    return Path(hub.get_dir(), "checkpoints", Path(urlsplit(configuration.url).path).name)


def _download(name: str, configuration: Any) -> Path:
    """Fetch the weights into the cache they belong to."""
    from huggingface_hub import constants, hf_hub_download, hf_hub_url

    remedy = "give a file with --weights FILE, or leave --pretrained out"
    absent = f"the published weights of backbone {name!r} are not on this computer and"
    if _is_offline():
        raise ModelError(f"{absent} downloads are switched off (HF_HUB_OFFLINE); {remedy}")
    url = constants.ENDPOINT
    try:
        for repository, revision, filename in _places_in_hub(configuration):
            url = hf_hub_url(repository, filename, revision=revision)
            status = _status(url)
            if status == 404:  # the weights may be there under another name
                continue
            if status == 200:
                return Path(hf_hub_download(repository, filename, revision=revision))
            raise OSError(f"status {status}" if status else "no answer")
        path = _place_in_torch_hub(configuration)
        if path is None or configuration.hf_hub_id:
            raise OSError("it has no such file")
        url = configuration.url
        if (status := _status(url)) != 200:
            raise OSError(f"status {status}" if status else "no answer")
        path.parent.mkdir(parents=True, exist_ok=True)
        hub.download_url_to_file(url, str(path), progress=sys.stderr.isatty())
        return path
    except (OSError, HTTPException, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        host = urlsplit(url).hostname
        raise ModelError(f"{absent} {host} does not give them ({reason}); {remedy}") from error


def _is_offline() -> bool:
    from huggingface_hub import constants

    # The library reads the variable once, at its import; a notebook may set it later.
    now = os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}
    return now or bool(constants.HF_HUB_OFFLINE)


def _status(url: str) -> int | None:
    """HTTP status of an address, None where nobody answers; follows redirects and proxies.

    The libraries that download retry for most of a minute where nobody answers, so they are only
    called after this.
    """
    statuses: list[int] = []

    def ask() -> None:
        request = urllib.request.Request(url, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=PROBE_SECONDS) as answer:
                statuses.append(answer.status)
        except urllib.error.HTTPError as error:
            statuses.append(error.code)
            error.close()
        except (OSError, HTTPException, ValueError):
            pass

    # In a thread: looking up a host name has no time limit of its own.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS + 1)
    return statuses[0] if statuses else None
