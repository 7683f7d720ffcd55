"""A Hugging Face hub on this machine: it answers huggingface_hub's requests for one file over real HTTP."""

import gzip
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REFUSALS = {"gated": (403, "GatedRepo"), "private": (401, "RepoNotFound"), "adapter": (404, "EntryNotFound"),
            "broken": (503, ""), "limited": (429, "")}  # fmt: skip
"""Model name -> (status, X-Error-Code), as https://huggingface.co answers."""

HOSTILE = ("endless", "lying", "unsized", "dripping", "dripping-headers", "bomb")
"""Model names whose file never ends, has more bytes than announced, has no announced size, or arrives byte by byte."""
DRIP_S = 0.02


class HubServer(ThreadingHTTPServer):
    """The state of a hub: the files of its models, the requested paths, and whether the hub is about to end."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = files
        self.paths: list[str] = []
        self.over = threading.Event()


class Answer(BaseHTTPRequestHandler):
    """Answers one request."""

    server: HubServer

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *values: object) -> None:
        """Print nothing."""

    def _answer(self, *, with_body: bool) -> None:
        self.server.paths.append(f"{self.command} {self.path}")
        model, _, path = self.path.removeprefix("/").partition("/resolve/")
        name = model.rpartition("/")[2]
        if name in HOSTILE:
            self._harm(name, with_body=with_body)
            return
        file = self.server.files.get(model) if path.endswith("/config.json") else None
        status, code = REFUSALS.get(name, (200, "") if file else (404, "RepoNotFound"))
        data = file if file is not None and status == 200 else b""
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if with_body:
            self.wfile.write(data)

    def _harm(self, how: str, *, with_body: bool) -> None:
        try:
            if how == "dripping-headers":
                self._drip(b"HTTP/1.1 200 OK\r\nX-Padding: ")
            self.send_response(200)
            self.send_header("X-Repo-Commit", "b" * 40)
            self.send_header("ETag", '"b"')
            if how == "bomb":
                self.send_header("Content-Encoding", "gzip")
            if how != "unsized" and not (how == "lying" and with_body):
                self.send_header("Content-Length", str(1 << 40 if how == "endless" else 1000))
            self.end_headers()
            if with_body and how == "dripping":
                self._drip(b"")
            elif with_body:
                body = gzip.compress(b" " * (1 << 20)) if how == "bomb" else b" " * (1 << 16)
                while not self.server.over.is_set():
                    self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def _drip(self, begin: bytes) -> None:
        self.wfile.write(begin)
        while not self.server.over.wait(DRIP_S):
            self.wfile.write(b" ")


@contextmanager
def hub(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a hub, and the list of requested paths. Its models `owner/name` have these config.json
    files."""
    server = HubServer(files)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.paths
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
