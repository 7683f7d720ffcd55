"""A receiver of messages: a real HTTP server at one of Apprise's addresses."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

TOKEN = "s3cr3t-t0ken-0123456789"


class Inbox:
    """An HTTP server that stores what it receives. It refuses as many requests as the test says."""

    def __init__(self) -> None:
        self.taken: list[dict[str, str]] = []
        self.refuses = 0
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if inbox.refuses:
                    inbox.refuses -= 1
                    self.send_error(503)
                    return
                inbox.taken.append(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Write nothing to the terminal."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"json://127.0.0.1:{self._server.server_port}/{TOKEN}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def titles(self) -> list[str]:
        return [message["title"] for message in self.taken]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
