"""One small file of a model on the Hugging Face hub, within a deadline and a limit of bytes."""

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


class TooLarge(Exception):
    """The file exceeds its limit of bytes."""


def fetch(model_id: str, name: str, *, most_bytes: int, answer_s: float, whole_s: float) -> bytes:
    """The newest file, or the one in the library's cache where the hub cannot be asked.

    The hub has `answer_s` for each answer and `whole_s` for the whole call. Raises TooLarge (before the download if the
    hub tells the size), HTTPError or OSError.
    """
    deadline = time.monotonic() + whole_s
    try:
        return _within(whole_s, lambda: _newest(model_id, name, most_bytes, answer_s, deadline))
    except (RepositoryNotFoundError, RemoteEntryNotFoundError):
        raise
    except (HTTPError, OSError):
        cached = _cached(model_id, name, None, most_bytes)
        if cached is None:
            raise
        return cached


def _within(whole_s: float, act: Callable[[], bytes]) -> bytes:
    """What `act` returns or raises, by a deadline: the HTTP library restarts its time-outs with every byte."""
    ends: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            ends.put(act())
        except RuntimeError as error:  # another call's deadline closed the shared session
            ends.put(OSError(str(error)))
        except Exception as error:
            ends.put(error)

    threading.Thread(target=work, name="hub", daemon=True).start()
    try:
        end = ends.get(timeout=whole_s)
    except queue.Empty:
        close_session()  # this ends the thread at its next byte or time-out
        raise TimeoutError(f"no whole answer within {whole_s:g} s") from None
    if isinstance(end, Exception):
        raise end
    return end


def _newest(model_id: str, name: str, most_bytes: int, answer_s: float, deadline: float) -> bytes:
    url = hf_hub_url(model_id, name)
    found = get_hf_file_metadata(url, timeout=answer_s)
    if (found.size or 0) > most_bytes:
        raise TooLarge
    commit = found.commit_hash if found.commit_hash and _COMMIT.fullmatch(found.commit_hash) else None
    cached = _cached(model_id, name, commit, most_bytes) if commit else None
    if cached is not None:
        return cached
    data = _download(url, most_bytes, answer_s, deadline)
    if commit:
        _keep(model_id, name, commit, data)
    return data


def _download(url: str, most_bytes: int, answer_s: float, deadline: float) -> bytes:
    # Uncompressed, because a few compressed KiB could become gigabytes.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    data = bytearray()
    with get_session().stream("GET", url, headers=headers, timeout=answer_s, follow_redirects=True) as response:
        if response.status_code != 200:
            raise OSError(f"HTTP {response.status_code}")
        for piece in response.iter_raw():
            data += piece
            if len(data) > most_bytes:
                raise TooLarge
            if time.monotonic() > deadline:
                raise TimeoutError("too slow")
    return bytes(data)


def _cached(model_id: str, name: str, commit: str | None, most_bytes: int) -> bytes | None:
    path = try_to_load_from_cache(model_id, name, revision=commit)
    if not isinstance(path, str):
        return None
    with open(path, "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise TooLarge
    return data


def _keep(model_id: str, name: str, commit: str, data: bytes) -> None:
    """Write it to the library's cache, where try_to_load_from_cache and other programs find it offline."""
    folder = Path(constants.HF_HUB_CACHE) / f"models--{model_id.replace('/', '--')}"
    try:
        _put(folder / "snapshots" / commit / name, data)
        _put(folder / "refs" / "main", commit.encode())
    except OSError as error:
        _log.warning("%s of %s is not kept for later: %s", name, model_id, error)


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    part.write_bytes(data)
    part.replace(path)
