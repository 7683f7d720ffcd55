"""Pieces of the page frame that the wizard and the monitor build with."""

import html
from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr

from app.text import t

STEPS = ("hardware", "model", "training", "plan", "review", "launch")


@contextmanager
def step_column(name: str, lang: str) -> Iterator[gr.Column]:
    """One step of the wizard: heading, the content built inside the `with`, then Back and Next.

    All steps stay mounted; static/web/shell.js and the style sheet show the one the location names, and move the
    focus to its heading. Raises ValueError for a name that is no step.
    """
    place = STEPS.index(name)
    with gr.Column(elem_id=f"step-{name}", elem_classes="mb-step") as column:
        gr.HTML(
            f'<h2 id="heading-{name}" tabindex="-1">{_words(lang, f"step.{name}")}</h2>'
            f'<p class="mb-lead">{_words(lang, f"step.{name}.lead")}</p>',
            elem_classes="mb-heading",
            js_on_load=None,
            apply_default_css=False,
        )
        yield column
        gr.HTML(_back_and_next(place, lang), elem_classes="mb-turn", js_on_load=None, apply_default_css=False)


def _back_and_next(place: int, lang: str) -> str:
    back = _turn(STEPS[place - 1], "shell.back", "mb-button", lang) if place else "<span></span>"
    onward = _turn(STEPS[place + 1], "shell.next", "mb-button mb-primary", lang) if place + 1 < len(STEPS) else ""
    return f"{back}{onward}"


def _turn(step: str, key: str, classes: str, lang: str) -> str:
    label = html.escape(t(lang, key, step=t(lang, f"step.{step}")))
    return f'<button type="button" class="{classes}" data-go="{step}">{label}</button>'


def _words(lang: str, key: str) -> str:
    return html.escape(t(lang, key))
