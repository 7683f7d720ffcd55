"""A mirror of the package index for nodes without internet: it passes on what PyPI answers.

Pages of the index (https://peps.python.org/pep-0503/) name files at files.pythonhosted.org. The mirror names itself.
"""

import shutil
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

INDEX = "https://pypi.org/simple/"
FILES = "https://files.pythonhosted.org/"


def _handler(address: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            part, _, path = self.path.lstrip("/").partition("/")
            origin = {"simple": INDEX, "files": FILES}.get(part)
            try:
                if origin is None:
                    raise FileNotFoundError(self.path)
                with urllib.request.urlopen(f"{origin}{path}", timeout=60) as answer:
                    self.send_response(200)
                    self.send_header("Content-Type", answer.headers["Content-Type"])
                    if part == "simple":
                        page = answer.read().replace(FILES.encode(), f"{address}/files/".encode())
                        self.send_header("Content-Length", str(len(page)))
                        self.end_headers()
                        if with_body:
                            self.wfile.write(page)
                    else:
                        self.send_header("Content-Length", answer.headers["Content-Length"])
                        self.end_headers()
                        if with_body:
                            shutil.copyfileobj(answer, self.wfile)
            except (urllib.error.URLError, FileNotFoundError) as error:
                self.send_error(getattr(error, "code", 404))

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    return Handler


@contextmanager
def package_mirror(listener: socket.socket) -> Iterator[str]:
    """Yield the address of the index. `listener` may be in another network than this process."""
    host, port = listener.getsockname()[:2]
    address = f"http://{host}:{port}"
    server = ThreadingHTTPServer((host, port), _handler(address), bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{address}/simple"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
