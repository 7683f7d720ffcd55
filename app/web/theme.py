"""Gradio's theme, and the head of the page with its style sheets and scripts."""

import hashlib
from functools import cache

import gradio as gr
import plotly
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.login import HTML_LANG
from backend.job.data_folder import data_folder

# System fonts only, because the page must look the same offline. Each platform has its own Chinese font.
_FONT = (
    "ui-sans-serif",
    "system-ui",
    "-apple-system",
    "Segoe UI",
    "PingFang SC",
    "Microsoft YaHei",
    "Noto Sans SC",
    "Noto Sans CJK SC",
    "sans-serif",
)
_MONO = ("ui-monospace", "SFMono-Regular", "Consolas", "DejaVu Sans Mono", "Noto Sans Mono CJK SC", "monospace")

THEME = gr.themes.Default(
    primary_hue="blue",
    secondary_hue="slate",
    neutral_hue="slate",
    radius_size="sm",
    text_size="md",
    spacing_size="sm",
    font=_FONT,
    font_mono=_MONO,
).set(
    body_background_fill="*neutral_50",
    body_background_fill_dark="*neutral_950",
    # Contrast on a light page: 7:1. The theme's own colour has 2.6:1, which is too low.
    body_text_color_subdued="*neutral_600",
    body_text_color_subdued_dark="*neutral_400",
    color_accent="*primary_600",
    button_large_text_size="*text_md",
    block_shadow="none",
    block_label_text_weight="500",
    block_title_text_weight="500",
    button_primary_background_fill="*primary_600",
    button_primary_background_fill_hover="*primary_700",
    button_primary_text_color="white",
    input_background_fill="white",
    input_background_fill_dark="*neutral_900",
)


class WithHead:
    """Adds style sheets, scripts and the language to Gradio's HTML at the given paths.

    Gradio's own `head=` is added by a script when the page already runs. Then the page would first show without style,
    and scripts would load after the components that need them.
    """

    def __init__(self, app: ASGIApp, pages: dict[str, str]) -> None:
        self._app = app
        self._pages = pages
        self._head = head().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lang = self._pages.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if lang is None:
            await self._app(scope, receive, send)
            return
        uncompressed = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        start: Message = {}
        body = b""

        async def replace_body(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
            if message["type"] != "http.response.body":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                if Headers(raw=start["headers"]).get("content-type", "").startswith("text/html"):
                    body = self._with_head(body, lang)
                MutableHeaders(scope=start)["content-length"] = str(len(body))
                await send(start)
                await send({"type": "http.response.body", "body": body})

        await self._app({**scope, "headers": uncompressed}, receive, replace_body)

    def _with_head(self, page: bytes, lang: str) -> bytes:
        page = page.replace(b'lang="en"', f'lang="{HTML_LANG[lang]}"'.encode(), 1)
        return page.replace(b'<meta charset="utf-8" />', b'<meta charset="utf-8" />' + self._head, 1)


def head() -> str:
    """Return the tags that load the page's own files: the icon, every style sheet, plotly and the module main.js.

    The tags list all modules, so the browser loads them at the same time. The scripts run after the document is parsed
    and before Gradio's, in the order of their tags.
    """
    base = f"/static/{version()}"
    styles, modules = (_names(f"{folder}/*.{kind}") for folder, kind in (("styles", "css"), ("*", "js")))
    tags = ['<link rel="icon" href="/static/logo.svg">']
    tags += [f'<link rel="stylesheet" href="{base}/{name}">' for name in styles]
    tags += [f'<link rel="modulepreload" href="{base}/{name}">' for name in modules if name != "web/login.js"]
    tags.append(f'<script src="{base}/plotly.min.js" defer></script>')
    tags.append(f'<script type="module" src="{base}/main.js"></script>')
    return "".join(tags)


@cache
def version() -> str:
    """Return the digest of all files in static/ and of plotly's version.

    It is part of the URL. So browsers may cache a file forever, and never use an old file on a newer page.
    """
    digest = hashlib.sha256(plotly.__version__.encode())
    for name in _names("**/*.*"):
        digest.update(name.encode() + (data_folder("static") / name).read_bytes())
    return digest.hexdigest()[:12]


def _names(pattern: str) -> list[str]:
    folder = data_folder("static")
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))
