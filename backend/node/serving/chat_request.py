"""A request for an answer, in the format of OpenAI's chat completions, as LLaMA-Factory takes it."""

from __future__ import annotations

import base64
import io
import re
from typing import Any, NamedTuple

REQUEST_BYTES = 24 << 20
MOST_MESSAGES = 200
MOST_IMAGES = 8
MOST_PIXELS = 64_000_000
PLACEHOLDER = "<image>"
"""LLaMA-Factory's IMAGE_PLACEHOLDER (0.9.5 src/llamafactory/extras/constants.py)."""
_IMAGE = re.compile(r"data:image/(?:png|jpeg|jpg|gif|bmp|webp);base64,(.*)", re.DOTALL)
KINDS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
"""Pillow's names of the kinds in `_IMAGE`. By itself it decodes any kind, whatever the URL says."""
_OPTIONS = (("max_tokens", "max_new_tokens", 1, 8192), ("temperature", "temperature", 0, 2), ("top_p", "top_p", 0, 1))
"""(key of the request, argument of LLaMA-Factory, least, most)."""


class BadRequest(Exception):
    """The request cannot be answered. The message says why."""


class Ask(NamedTuple):
    """What ChatModel.stream_chat takes."""

    messages: list[dict[str, str]]
    system: str | None
    images: list[Any] | None
    options: dict[str, Any]


def parse(body: Any) -> Ask:
    """Read a request. Messages alternate between user and assistant, and the last one is the user's. BadRequest."""
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list) or not 0 < len(messages) <= MOST_MESSAGES:
        raise BadRequest("messages is no list of messages")
    images: list[Any] = []
    turns = [(_role(message), _content(message, images)) for message in messages]
    system = turns.pop(0)[1] if turns[0][0] == "system" else None
    roles = [role for role, _ in turns]
    if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        raise BadRequest("messages must alternate between user and assistant, and end with the user")
    return Ask([{"role": role, "content": content} for role, content in turns], system, images or None, _options(body))


def _role(message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("system", "user", "assistant"):
        raise BadRequest(f"unknown role {role!r}")
    return str(role)


def _content(message: Any, images: list[Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest("content is neither text nor a list of parts")
    return "".join(_part(part, images) for part in content)


def _part(part: Any, images: list[Any]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    url = part.get("image_url") if kind == "image_url" else None
    match = _IMAGE.fullmatch(url.get("url") or "") if isinstance(url, dict) else None
    if match is None:
        raise BadRequest("a part is neither text nor an image as a data URL")
    if len(images) >= MOST_IMAGES:
        raise BadRequest(f"more than {MOST_IMAGES} images")
    images.append(_image(match.group(1)))
    return PLACEHOLDER


def _image(encoded: str) -> Any:
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(base64.b64decode(encoded, validate=True)), formats=KINDS)
        if image.width * image.height > MOST_PIXELS:
            raise BadRequest(f"an image has more than {MOST_PIXELS} pixels")
        return image.convert("RGB")
    except BadRequest:
        raise
    except Exception as error:  # Pillow's decoders raise errors of many types
        raise BadRequest(f"an image cannot be read: {error}") from error


def _options(body: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, argument, least, most in _OPTIONS:
        value = body.get(name)
        if value is None:
            continue
        is_number = isinstance(value, int if argument == "max_new_tokens" else (int, float))
        if isinstance(value, bool) or not is_number or not least <= value <= most:
            raise BadRequest(f"{name} is no number from {least} to {most}")
        options[argument] = value
    return options
