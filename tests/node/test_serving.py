"""Parts of the program that serves models on a node, without a model."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.node.serving.backends import choose_backend
from backend.node.serving.chat_request import BadRequest, parse
from backend.node.serving.server import CHAT, ModelServer

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
