"""HTTP server of one model, on 127.0.0.1."""

from __future__ import annotations

import hmac
import json
import os
import select
import socket
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable

from .chat_request import REQUEST_BYTES, BadRequest, parse
from .model import Model

CHAT = "/v1/chat/completions"
READ_S = 60.0


def serve(folder: str, name: str, load: Callable[[], Model], backend: str) -> None:
    """Load a model, write FOLDER/server.<name>.json, and answer until the process is ended."""
    key = os.environ.pop("API_KEY")
    server = ModelServer(load(), key, f"{folder}/active.{name}")
    mark_active(server.active)
    record = {"port": server.server_address[1], "backend": backend}
    with open(f"{folder}/server.{name}.part", "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.replace(f"{folder}/server.{name}.part", f"{folder}/server.{name}.json")
    print("megaboard: serving", name, "with", backend, flush=True)
    server.serve_forever()


class ModelServer(ThreadingHTTPServer):
    """Serves one model on a free port. `active` is the file whose time says when somebody with the key last asked."""

    daemon_threads = True

    def __init__(self, model: Model, key: str, active: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = model
        self.key = key
        self.active = active


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: ModelServer
    timeout = READ_S

    def do_POST(self) -> None:
        body = self._read()
        if body is None:
            return
        mark_active(self.server.active)
        try:
            ask = parse(json.loads(body))
        except (BadRequest, ValueError, RecursionError) as error:
            self._refuse(400, str(error))
            return
        self._stream(self.server.model.answer(ask, lambda: has_closed(self.connection)))

    def _read(self) -> bytes | None:
        """Return the body of an allowed request. Any other request is answered here."""
        given = self.headers.get("Authorization", "")
        length = self.headers.get("Content-Length", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.key}".encode()):
            self._refuse(401, "the key is wrong")
        elif self.path != CHAT:
            self._refuse(404, "unknown path")
        elif not length.isdigit() or int(length) > REQUEST_BYTES:
            self._refuse(413, f"the request is longer than {REQUEST_BYTES} bytes")
        else:
            return self.rfile.read(int(length))
        return None

    def _refuse(self, status: int, reason: str) -> None:
        body = json.dumps({"error": reason}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, pieces: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        begun, count = time.monotonic(), 0
        try:
            for piece in pieces:
                count += 1
                mark_active(self.server.active)
                self._event({"choices": [{"delta": {"content": piece}}]})
            self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        except OSError:
            print("megaboard: the reader left", flush=True)
        except Exception as error:
            traceback.print_exc()
            self._event({"error": f"{type(error).__name__}: {error}"[:2000]})
        finally:
            pieces.close()
        print(f"megaboard: {count} pieces in {time.monotonic() - begun:.1f} s", flush=True)

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *args: Any) -> None:
        """Write nothing: prompts stay out of the log."""


def mark_active(path: str) -> None:
    """Record that somebody asks now."""
    with open(path, "w", encoding="utf-8"):
        pass


def has_closed(connection: socket.socket) -> bool:
    """Return whether the reader has closed its connection."""
    reader = select.poll()  # select.select refuses descriptors from 1024 on
    reader.register(connection, select.POLLIN)
    if not reader.poll(0):
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True
