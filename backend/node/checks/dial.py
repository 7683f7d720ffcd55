"""Program on a node, read from standard input. It tries the master port as the ranks do.

    python - free_port|listen|dial JSON --token T

It prints one line, `T{json}`. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
import threading
import time
from typing import Any


def bound(port: int) -> socket.socket:
    """Return a socket that is bound as torch's store binds it. Raises OSError when the port is taken."""
    try:
        return _bound(socket.AF_INET6, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return _bound(socket.AF_INET, port)  # a machine without IPv6


def _bound(family: int, port: int) -> socket.socket:
    sock = socket.socket(family)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", port))
        sock.listen(64)
    except OSError:
        sock.close()
        raise
    return sock


def free_port(request: dict[str, Any]) -> dict[str, Any]:
    """Return the first of `ports` that no program listens on."""
    for port in request["ports"]:
        try:
            bound(port).close()
        except OSError:  # a program listens on it
            continue
        return {"port": port}
    return {"port": None}


def listen(request: dict[str, Any]) -> dict[str, Any]:
    """Answer each caller that sends one of `words` with its word. Dial the port too, as `dial` does.

    It ends when every word has arrived or `seconds` are over. Each launch has its own words, so a caller of another
    launch gets no answer.
    """
    deadline = time.monotonic() + request["seconds"]
    missing = {word.encode() for word in request["words"]}
    try:
        server = bound(request["port"])
    except OSError as error:
        return {"bound": False, "detail": error.strerror}
    dialled: dict[str, Any] = {}
    dialling = threading.Thread(target=lambda: dialled.update(dial(request["dial"])))
    dialling.start()
    with server:
        while missing and time.monotonic() < deadline:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                caller, _ = server.accept()
                with caller:
                    caller.settimeout(1)
                    word = caller.recv(64)
                    if word in missing:
                        caller.sendall(word)
                        missing.remove(word)
            except OSError:  # no caller within the time, or one that is gone
                continue
    dialling.join()
    return {"bound": True, "dialled": dialled}


def dial(request: dict[str, Any]) -> dict[str, Any]:
    """Return whether the listener at `address`:`port` answers with `word` within `seconds`, or why it does not."""
    deadline, detail, is_named = time.monotonic() + request["seconds"], "no answer", True
    while time.monotonic() < deadline:
        try:
            sock = socket.create_connection((request["address"], request["port"]), timeout=3)
        except OSError as error:
            # The listener may start later than this program.
            detail, is_named = str(error), not isinstance(error, socket.gaierror)
            time.sleep(0.1)
            continue
        with sock:
            return check_answer(sock, request["word"].encode())
    return {"reached": False, "detail": detail, "is_named": is_named}


def check_answer(sock: socket.socket, word: bytes) -> dict[str, Any]:
    """Return whether the listener answers with the word. Another program answers differently or not at all."""
    try:
        sock.sendall(word)
        answer = sock.recv(64)
    except OSError:
        answer = b""
    return {"reached": True} if answer == word else {"reached": False, "detail": "another program answers"}


ACTIONS = {"free_port": free_port, "listen": listen, "dial": dial}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    print(token + json.dumps(ACTIONS[action](json.loads(arguments))), flush=True)
