"""Gives the files of node 0 to whoever shows the token."""

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

GIVING_TOLD_S = 2.0


class Offer:
    """What the giver gives: the files by number, their hashes when they are asked for."""

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
        """Read once, however many takers ask."""
        with self.locks[number]:
            if number not in self.hashes:
                self.hashes[number] = sha256_of(self.path(number))
            return self.hashes[number]


def make_handler(offer: Offer, token: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        """/list, /sha256/NUMBER, and /file/NUMBER with a Range; nothing that is not offered has a number."""

        protocol_version = "HTTP/1.1"
        timeout = 600

        def do_GET(self) -> None:
            if not hmac.compare_digest(self.headers.get("Authorization", ""), f"Bearer {token}"):
                self.send_error(403)
                return
            _, what, *rest = self.path.split("/")
            if what == "list":
                self.answer(json.dumps(offer.files).encode())
            elif not (len(rest) == 1 and rest[0].isdigit() and int(rest[0]) < len(offer.files)):
                self.send_error(404)
            elif what == "sha256":
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
            """A line for every request would be a line for every file."""

    return Handler


def serve(wanted: dict[str, Any]) -> tuple[http.server.ThreadingHTTPServer, Offer]:
    """A giver that serves in a thread of its own."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in wanted["address"] else socket.AF_INET

    offer = Offer(wanted["roots"])
    handler = make_handler(offer, wanted["token"])
    try:
        server = Server((wanted["address"], wanted["port"]), handler)
    except OSError as error:
        # The others may dial an address that is translated on its way here.
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        server = Server(("", wanted["port"]), handler)
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    return server, offer


def give(wanted: dict[str, Any]) -> NoReturn:
    """Until the supervisor ends it: on request, or because nobody takes anything any more."""
    _, offer = serve(wanted)
    print(f"megaboard: giving {len(offer.files)} files", flush=True)
    told = 0
    while True:
        time.sleep(GIVING_TOLD_S)
        if offer.sent != told:
            told = offer.sent
            print(f"megaboard: gave {told} bytes", flush=True)
