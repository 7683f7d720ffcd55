"""The lines of an answer that a browser reads, when the node of the chat is lost or the chat is ended."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from app.monitor.chat import _lines
from app.services import Services
from backend.cluster.node import NodeError
from backend.runs.launch.derived_start import chat_request
from backend.runs.states import EventKind
from backend.runs.store import derived_runs, run_store
from backend.runs.store.derived_runs import DerivedRun
from tests.engines.jobs import ddp

CHAT = "20261126-000000-chat-abcd"


class BrokenAnswer:
    """An answer whose connection ends after its first word."""

    def pieces(self) -> Iterator[str]:
        yield "Seven"
        raise NodeError("lost", "10.0.0.1", detail="the connection ended before the answer")

    def close(self) -> None:
        """Nothing is open."""


async def read(services: Services) -> list[dict[str, Any]]:
    return [json.loads(line) async for line in _lines(services, CHAT, "tuned", {}, "en")]


@pytest.mark.parametrize("is_ended", [True, False])
def test_an_answer_that_breaks_off_has_failed_unless_somebody_ended_the_chat(
    services: Services, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    def broken(chat: str, model: str, request: Mapping[str, Any]) -> BrokenAnswer:
        return BrokenAnswer()

    def record(connection: Any) -> None:
        request = chat_request(ddp(), ["tuned"], None)
        derived_runs.create(connection, DerivedRun(run=CHAT, kind="chat", trained="t", request=request), ddp(), now=1.0)
        kinds = [EventKind.PREFLIGHT, EventKind.STARTING, EventKind.STARTED]
        for kind in [*kinds, EventKind.STOP_REQUESTED] if is_ended else kinds:
            run_store.append(connection, CHAT, kind, time=2.0)

    services.database.store.write(record)
    monkeypatch.setattr(services.controller.chats, "ask", broken)
    first, last = asyncio.run(read(services))
    assert first == {"text": "Seven"}
    if is_ended:
        assert last == {"stopped": True}
    else:
        assert last["problem"]["code"] == "lost"
