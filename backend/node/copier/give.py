"""HTTP server for the files of node 0. Its clients need the token."""

from __future__ import annotations

import errno
import hmac
import http.server
import json
import os
import socket
import threading
import time
from typing import Any, NoReturn

from .files import CHUNK, files_of, sha256_of

REPORT_S = 2.0


class Offer:
    """Files that node 0 offers, by number. A hash is computed on the first request."""

    def __init__(self, roots: list[dict[str, Any]]) -> None:
        self.files: list[dict[str, Any]] = [
            {"root": number, "path": path, "size": size}
            for number, root in enumerate(roots)
            for path, size in files_of(root["root"], root["names"])
        ]
        self.roots = [root["root"] for root in roots]
        self.hashes: dict[int, str] = {}
        self.locks = [threading.Lock() for _ in self.files]
        self.sent = 0

    def path(self, number: int) -> str:
        file = self.files[number]
        return os.path.join(str(self.roots[file["root"]]), str(file["path"]))

    def sha256(self, number: int) -> str:
        """Return a file's hash. The file is read once for all nodes."""
        with self.locks[number]:
            if number not in self.hashes:
                self.hashes[number] = sha256_of(self.path(number))
            return self.hashes[number]


def make_handler(offer: Offer, token: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        """Server of /list, /sha256/NUMBER, and /file/NUMBER with a Range. Only offered files have a number."""

        protocol_version = "HTTP/1.1"
        timeout = 600

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                self.send_error(403)
                return
            _, action, *rest = self.path.split("/")
            if action == "list":
                self.answer(json.dumps(offer.files).encode())
            elif not (len(rest) == 1 and rest[0].isdigit() and int(rest[0]) < len(offer.files)):
                self.send_error(404)
            elif action == "sha256":
                self.answer(offer.sha256(int(rest[0])).encode())
            else:
                self.give(int(rest[0]))

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def give(self, number: int) -> None:
            start = int(self.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
            with open(offer.path(number), "rb") as file:
                file.seek(start)
                self.send_response(206)
                self.send_header("Content-Length", str(offer.files[number]["size"] - start))
                self.end_headers()
                for block in iter(lambda: file.read(CHUNK), b""):
                    self.wfile.write(block)
                    offer.sent += len(block)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing. The log would have a line for every file."""

    return Handler


def serve(request: dict[str, Any]) -> tuple[http.server.ThreadingHTTPServer, Offer]:
    """Start a server in a thread, and return it with its offer."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in request["address"] else socket.AF_INET

    offer = Offer(request["roots"])
    handler = make_handler(offer, request["token"])
    try:
        server = Server((request["address"], request["port"]), handler)
    except OSError as error:
        # The network may translate the address that other nodes dial.
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        server = Server(("", request["port"]), handler)
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    return server, offer


def give(request: dict[str, Any]) -> NoReturn:
    """Serve until the supervisor ends this process, on a stop or after the last node's copy."""
    _, offer = serve(request)
    print(f"megaboard: giving {len(offer.files)} files", flush=True)
    reported = 0
    while True:
        time.sleep(REPORT_S)
        if offer.sent != reported:
            reported = offer.sent
            print(f"megaboard: gave {reported} bytes", flush=True)
