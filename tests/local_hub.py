"""A hub on this machine that answers the requests of huggingface_hub, and of modelscope_hub, for the files of folders.

https://github.com/huggingface/huggingface_hub/blob/main/src/huggingface_hub/file_download.py has the headers that a
client reads: X-Repo-Commit, ETag and, for large files, X-Linked-ETag and X-Linked-Size.
https://github.com/modelscope/modelscope_hub/blob/main/src/modelscope_hub/_legacy_api.py has ModelScope's addresses.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

COMMIT = "c" * 40
LARGE_BYTES = 1000
"""Files from this size on have a SHA-256, as files in LFS have on the real hub."""
TOKEN = "hf_localhubtoken0123456789"


class LocalHub:
    """Repositories by id, such as `owner/name` and `datasets/owner/name`. Each is a mapping of path -> bytes."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.wrong_hash: set[str] = set()
        """Paths of files whose hash does not fit."""
        self.broken_after: dict[str, int] = {}
        """Path -> bytes after which the connection ends, once."""
        self.requests: list[tuple[str, str]] = []
        """(path of a file, range) of every download."""
        self.address = ""


def files_of(folder: Path) -> dict[str, bytes]:
    """Return a repository with the files of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def siblings(hub: LocalHub, repository: str) -> list[dict[str, Any]]:
    described = []
    for path, data in hub.repositories[repository].items():
        content = data + b"!" if path in hub.wrong_hash else data
        sha256 = hashlib.sha256(content).hexdigest()
        one: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": git_id(content), "sha256": sha256}
        if len(data) >= LARGE_BYTES:
            one["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 130}
        described.append(one)
    return described


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers a request from the repositories of `hub`."""

    hub: ClassVar[LocalHub]

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0].lstrip("/")
        if path.startswith("api/v1/"):
            self.answer_modelscope(path.removeprefix("api/v1/"), body=body)
            return
        if path.startswith("api/"):
            kind, _, rest = path[4:].partition("/")
            repository = "/".join(rest.split("/")[:2])
            self.describe(repository if kind == "models" else f"{kind}/{repository}")
            return
        repository, _, rest = path.partition("/resolve/")
        self.send(repository, rest.partition("/")[2], body=body)

    def answer_modelscope(self, path: str, *, body: bool) -> None:
        kind, owner, name = path.split("/")[:3]
        repository = f"{owner}/{name}" if kind == "models" else f"{kind}/{owner}/{name}"
        query = parse_qs(urlsplit(self.path).query)
        if repository not in self.hub.repositories:
            self.fail(404, "RepoNotFound")
        elif self.is_refused(repository):
            self.fail(403, "GatedRepo")
        elif "FilePath" in query:
            self.send(repository, query["FilePath"][0], body=body)
        else:
            described = siblings(self.hub, repository)
            files = [{"Path": one["rfilename"], "Size": one["size"], "Type": "blob",
                      "Sha256": one["sha256"]} for one in described]  # fmt: skip
            self.send_json({"Code": 200, "Success": True, "Data": {"Files": files}})

    def describe(self, repository: str) -> None:
        if repository not in self.hub.repositories:
            self.fail(404, "RepoNotFound")
        elif self.is_refused(repository):
            self.fail(403, "GatedRepo")
        else:
            name = repository.removeprefix("datasets/")
            info = {"id": name, "_id": name, "sha": COMMIT, "private": False, "tags": [], "downloads": 0}
            self.send_json({**info, "siblings": siblings(self.hub, repository)})

    def send_json(self, answer: object) -> None:
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def is_refused(self, repository: str) -> bool:
        return repository in self.hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}"

    def send(self, repository: str, path: str, *, body: bool) -> None:
        data = self.hub.repositories.get(repository, {}).get(path)
        if data is None:
            self.fail(404, "EntryNotFound")
            return
        if self.is_refused(repository):
            self.fail(403, "GatedRepo")
            return
        span = self.headers.get("Range", "")
        first = int(span.partition("=")[2].partition("-")[0]) if span else 0
        self.send_response(206 if span else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("Content-Length", str(len(data) - first))
        if span:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if not body:
            return
        self.hub.requests.append((path, span))
        stop = self.hub.broken_after.pop(path, None)
        self.wfile.write(data[first:stop])
        if stop is not None:
            self.wfile.flush()
            self.connection.close()

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def local_hub(host: str = "127.0.0.1") -> Iterator[LocalHub]:
    """Yield a running hub without repositories."""
    hub = LocalHub()
    server = ThreadingHTTPServer((host, 0), type("HubHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.address = f"http://{host}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
