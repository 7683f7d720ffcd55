"""A Hugging Face hub on this machine: it answers what huggingface_hub asks for one file, over real HTTP."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REFUSALS = {"gated": (403, "GatedRepo"), "private": (401, "RepoNotFound"), "adapter": (404, "EntryNotFound"),
            "broken": (503, "")}  # fmt: skip
"""Model name -> (status, X-Error-Code), as https://huggingface.co answers."""


@contextmanager
def hub(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """(address, paths asked for) of a hub whose models `owner/name` have these config.json files."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, format: str, *values: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            asked.append(f"{self.command} {self.path}")
            model, _, rest = self.path.removeprefix("/").partition("/resolve/")
            known = files.get(model) if rest.endswith("/config.json") else None
            status, code = REFUSALS.get(model.rpartition("/")[2], (200, "") if known else (404, "RepoNotFound"))
            data = known if known is not None and status == 200 else b""
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", "a" * 40)
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if with_body:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
