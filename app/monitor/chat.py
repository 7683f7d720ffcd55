"""Chats with the models of a run, for the browser: the state of the newest chat, and streamed answers."""

import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse

from app.services import Services
from app.text import LANGUAGES, render_problem
from backend.cluster.node import NodeError
from backend.job.job import Job
from backend.job.presets import known_model
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import WATCHED, ChatStream, ModelChat, has_chat
from backend.runs.records import RunSnapshot

_log = logging.getLogger(__name__)

_OPTIONS = ("messages", "max_tokens", "temperature", "top_p")
"""Keys of a request that are passed to the server of a model, which checks them (backend/node/serving)."""


class ChatView:
    """What the page shows of the newest chat of a run."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def view(self, run: RunSnapshot, lang: str) -> Mapping[str, Any] | None:
        """Return the offer, the progress, the chat or its end. None for a run whose model does not chat."""
        chat = self._services.controller.chats.newest(run.id)
        if chat is None and not (run.state.can_resume or run.state.is_final):
            return None  # its own training uses the node
        with self._services.database.read() as reader:
            job = reader.job(run.id)
        if run.engine == WATCHED or job.cluster.scheduler is not None or not has_chat(job):
            return None
        offer = {"phase": "offer", "sees_images": sees_images(job), "has_model": run.step is not None}
        return offer if chat is None else {**offer, **_shown(chat, lang)}


def _shown(chat: ModelChat, lang: str) -> dict[str, Any]:
    return {
        "phase": chat.phase,
        "run": chat.run,
        "models": list(chat.models),
        "checkpoint": chat.checkpoint,
        "node": chat.node,
        "why": render_problem(lang, chat.why) if chat.why else None,
        "left": chat.left,
        "backends": dict(chat.backends),
        "is_ours": chat.is_ours,
    }


def sees_images(job: Job) -> bool:
    """Return whether the model takes images."""
    try:
        return bool(known_model(job.model).vision)
    except ProblemsError:
        return False


def chat_routes(services: Services) -> APIRouter:
    """Return the route POST /api/chat/CHAT/MODEL?lang=en: an answer as lines of JSON.

    Each line is {text}. The last one is {end}, {problem}, or {stopped} if somebody ended the chat. The end of the
    request ends the generation on the node.
    """
    router = APIRouter()

    @router.post("/api/chat/{chat}/{model}")
    async def answer(chat: str, model: str, request: Request, lang: str = "en") -> StreamingResponse:
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError) as error:
            raise HTTPException(400) from error
        if not isinstance(body, dict):
            raise HTTPException(400)
        asked = {name: body[name] for name in _OPTIONS if name in body}
        lines = _lines(services, chat, model, asked, lang if lang in LANGUAGES else LANGUAGES[0])
        return StreamingResponse(lines, media_type="application/x-ndjson")

    return router


async def _lines(services: Services, chat: str, model: str, asked: Mapping[str, Any], lang: str) -> AsyncIterator[str]:
    stream: ChatStream | None = None
    try:
        stream = await to_thread.run_sync(services.controller.chats.ask, chat, model, asked)
        pieces = stream.pieces()
        while (text := await to_thread.run_sync(_next, pieces, abandon_on_cancel=True)) is not None:
            yield _line({"text": text})
        yield _line({"end": True})
    except ProblemsError as error:
        yield _line({"problem": render_problem(lang, error.problems[0])})
    except NodeError as error:
        is_stopped = await to_thread.run_sync(services.controller.chats.was_stopped, chat)
        yield _line({"stopped": True} if is_stopped else {"problem": render_problem(lang, error.problem)})
    except Exception:  # the edge of a request: the page must show every error
        _log.exception("an answer of %s", chat)
        yield _line({"problem": render_problem(lang, Problem(code="internal_error"))})
    finally:
        if stream is not None:
            stream.close()


def _next(pieces: Iterator[str]) -> str | None:
    return next(pieces, None)


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"
