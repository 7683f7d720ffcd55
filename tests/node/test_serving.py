"""Parts of the program that serves models on a node, without a model."""

import base64
import http.client
import io
import json
import os
import resource
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from backend.node.serving.backends import choose_backend
from backend.node.serving.chat_request import BadRequest, parse
from backend.node.serving.server import CHAT, ModelServer, has_closed

USER = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize(
    ("devices", "is_quantized", "has_adapter", "installed", "backend"),
    [
        ("", False, False, {"vllm", "sglang"}, "huggingface"),
        ("0", False, False, {"vllm", "sglang"}, "vllm"),
        ("0,1", False, True, {"vllm"}, "vllm"),
        ("0", True, False, {"vllm", "sglang"}, "huggingface"),
        ("0", False, False, {"sglang"}, "sglang"),
        ("0", False, True, {"sglang"}, "huggingface"),
        ("0", False, False, set(), "huggingface"),
    ],
)
def test_the_fastest_program_that_the_node_has_serves(devices, is_quantized, has_adapter, installed, backend):
    assert choose_backend(devices, is_quantized, has_adapter, installed.__contains__) == backend


def test_a_conversation_has_its_system_text_and_options():
    system = {"role": "system", "content": "short"}
    ask = parse({"messages": [system, USER, ANSWER, USER], "max_tokens": 5, "temperature": 0.5})
    assert (ask.system, ask.images, len(ask.messages)) == ("short", None, 3)
    assert ask.options == {"max_new_tokens": 5, "temperature": 0.5}


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"messages": []},
        {"messages": [ANSWER]},
        {"messages": [USER, USER]},
        {"messages": [USER, ANSWER]},
        {"messages": [{"role": "root", "content": "x"}]},
        {"messages": [{"role": "user", "content": 3}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
            ]
        },
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}]},
        {"messages": [USER], "max_tokens": 0},
        {"messages": [USER], "max_tokens": 5.5},
        {"messages": [USER], "temperature": True},
        {"messages": [USER], "temperature": 3},
    ],
)
def test_a_request_that_cannot_be_answered_is_refused(body: Any):
    """Images come in the request only: a server that opened addresses or files would read them for anyone."""
    with pytest.raises(BadRequest):
        parse(body)


@pytest.mark.parametrize("kind", ["EPS", "PPM", "TIFF"])
def test_only_the_named_kinds_of_images_are_decoded(kind: str):
    """Pillow decides by the content, and gives EPS to Ghostscript (EpsImagePlugin.py)."""
    assert parse(asked_of(image_of("PNG"))).images
    with pytest.raises(BadRequest):
        parse(asked_of(image_of(kind)))


def test_an_image_that_is_far_too_large_is_refused():
    """Pillow has an exception of its own for it (Image.py, DecompressionBombError)."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = [chunk(b"IHDR", header), chunk(b"IDAT", b""), chunk(b"IEND", b"")]
    with pytest.raises(BadRequest):
        parse(asked_of(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def image_of(kind: str) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, kind)
    return data.getvalue()


def asked_of(image: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


def test_a_request_with_deep_lists_is_refused(server: ModelServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("POST", CHAT, "[" * 100_000, {"Authorization": "Bearer right"})
    assert connection.getresponse().status == 400
    connection.close()


def test_a_reader_is_seen_whatever_the_number_of_its_connection() -> None:
    """`select` takes numbers below 1024 only (select(2)). Other users of the node may hold many connections open."""
    ours, other = socket.socketpair()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 1101:
        pytest.skip("this user may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 1101), limits[1]))
    try:
        with socket.socket(fileno=os.dup2(ours.fileno(), 1100)) as high:
            assert not has_closed(high)
            other.send(b"x")
            assert not has_closed(high)
            high.recv(1)
            other.close()
            assert has_closed(high)
    finally:
        ours.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Echo:
    """Stands for a model: it answers with one piece."""

    def answer(self, ask: Any, has_left: Any) -> Iterator[str]:
        yield "hi"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ModelServer]:
    server = ModelServer(Echo(), "right", str(tmp_path / "active"))  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("key", "path", "status", "is_active"),
    [("wrong", CHAT, 401, False), ("right", "/other", 404, False), ("right", CHAT, 200, True)],
)
def test_only_a_question_with_the_key_keeps_a_chat_active(
    server: ModelServer, tmp_path: Path, key: str, path: str, status: int, is_active: bool
) -> None:
    """A chat that nobody uses is stopped. Any process of the node can reach the port."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("POST", path, json.dumps({"messages": [USER]}), {"Authorization": f"Bearer {key}"})
    response = connection.getresponse()
    response.read()
    connection.close()
    assert (response.status, (tmp_path / "active").exists()) == (status, is_active)
