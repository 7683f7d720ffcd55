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


@contextmanager
def hub(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a hub, and the list of requested paths. Its models `owner/name` have these config.json
    files."""
    paths: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, format: str, *values: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            paths.append(f"{self.command} {self.path}")
            model, _, path = self.path.removeprefix("/").partition("/resolve/")
            if model.rpartition("/")[2] in HOSTILE:
                self._harm(model.rpartition("/")[2], with_body=with_body)
                return
            file = files.get(model) if path.endswith("/config.json") else None
            status, code = REFUSALS.get(model.rpartition("/")[2], (200, "") if file else (404, "RepoNotFound"))
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
                    while not over.is_set():
                        self.wfile.write(body)
            except OSError:
                self.close_connection = True

        def _drip(self, begin: bytes) -> None:
            self.wfile.write(begin)
            while not over.wait(DRIP_S):
                self.wfile.write(b" ")

    over = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()
