"""Fetch one small file of a model from the Hugging Face hub, with a deadline and a size limit."""

import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import (
    close_session,
    constants,
    get_hf_file_metadata,
    get_session,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    HTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import build_hf_headers

_log = logging.getLogger(__name__)

_COMMIT = re.compile(r"[0-9a-f]{40}")


class FileTooLargeError(Exception):
    """The file exceeds its limit of bytes."""


def fetch(model_id: str, name: str, *, max_bytes: int, response_s: float, total_s: float) -> bytes:
    """Return the newest version of a file, or the cached one if the hub cannot be reached.

    `response_s` limits each response of the hub, `total_s` the whole call. Raises FileTooLargeError (before the
    download if the hub sends the size), HTTPError or OSError.
    """
    deadline = time.monotonic() + total_s
    try:
        return _with_deadline(total_s, lambda: _newest(model_id, name, max_bytes, response_s, deadline))
    except (RepositoryNotFoundError, RemoteEntryNotFoundError):
        raise
    except (HTTPError, OSError):
        cached = _cached(model_id, name, None, max_bytes)
        if cached is None:
            raise
        return cached


def _with_deadline(total_s: float, call: Callable[[], bytes]) -> bytes:
    """Return or raise the result of `call` before a deadline: the HTTP library restarts its timeout with every byte."""
    results: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put(call())
        except RuntimeError as error:  # another call's deadline closed the shared session
            results.put(OSError(str(error)))
        except Exception as error:
            results.put(error)

    threading.Thread(target=work, name="hub", daemon=True).start()
    try:
        result = results.get(timeout=total_s)
    except queue.Empty:
        close_session()  # this ends the thread at its next byte or timeout
        raise TimeoutError(f"no whole answer within {total_s:g} s") from None
    if isinstance(result, Exception):
        raise result
    return result


def _newest(model_id: str, name: str, max_bytes: int, response_s: float, deadline: float) -> bytes:
    url = hf_hub_url(model_id, name)
    metadata = get_hf_file_metadata(url, timeout=response_s)
    if (metadata.size or 0) > max_bytes:
        raise FileTooLargeError
    commit = metadata.commit_hash if metadata.commit_hash and _COMMIT.fullmatch(metadata.commit_hash) else None
    cached = _cached(model_id, name, commit, max_bytes) if commit else None
    if cached is not None:
        return cached
    data = _download(url, max_bytes, response_s, deadline)
    if commit:
        _write_to_cache(model_id, name, commit, data)
    return data


def _download(url: str, max_bytes: int, response_s: float, deadline: float) -> bytes:
    # Not compressed: a few compressed KiB could become gigabytes.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    data = bytearray()
    with get_session().stream("GET", url, headers=headers, timeout=response_s, follow_redirects=True) as response:
        if response.status_code != 200:
            raise OSError(f"HTTP {response.status_code}")
        for chunk in response.iter_raw():
            data += chunk
            if len(data) > max_bytes:
                raise FileTooLargeError
            if time.monotonic() > deadline:
                raise TimeoutError("too slow")
    return bytes(data)


def _cached(model_id: str, name: str, commit: str | None, max_bytes: int) -> bytes | None:
    path = try_to_load_from_cache(model_id, name, revision=commit)
    if not isinstance(path, str):
        return None
    with open(path, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FileTooLargeError
    return data


def _write_to_cache(model_id: str, name: str, commit: str, data: bytes) -> None:
    """Write the file to the library's cache, where this module and other programs find it offline."""
    folder = Path(constants.HF_HUB_CACHE) / f"models--{model_id.replace('/', '--')}"
    try:
        _write_atomically(folder / "snapshots" / commit / name, data)
        _write_atomically(folder / "refs" / "main", commit.encode())
    except OSError as error:
        _log.warning("%s of %s was not written to the cache: %s", name, model_id, error)


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_bytes(data)
    temporary.replace(path)
