"""The column of a wizard step: its heading and its buttons."""

import html
from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr

from app.text import t

STEPS = ("hardware", "model", "training", "plan", "review", "launch")


@contextmanager
def step_column(name: str, lang: str) -> Iterator[gr.Column]:
    """Build one step of the wizard: the heading, the components of the `with` block, then Back and Next.

    All steps stay mounted. static/web/shell.js and the style sheet show the step of the page's address and move the
    focus to its heading. Raises ValueError if there is no such step.
    """
    index = STEPS.index(name)
    with gr.Column(elem_id=f"step-{name}", elem_classes="mb-step") as column:
        gr.HTML(
            f'<h2 id="heading-{name}" tabindex="-1">{_words(lang, f"step.{name}")}</h2>'
            f'<p class="mb-lead">{_words(lang, f"step.{name}.lead")}</p>',
            elem_classes="mb-heading",
            js_on_load=None,
            apply_default_css=False,
        )
        yield column
        gr.HTML(_back_and_next(index, lang), elem_classes="mb-turn", js_on_load=None, apply_default_css=False)


def _back_and_next(index: int, lang: str) -> str:
    back = _turn(STEPS[index - 1], "shell.back", "mb-button", lang) if index else "<span></span>"
    next_ = _turn(STEPS[index + 1], "shell.next", "mb-button mb-primary", lang) if index + 1 < len(STEPS) else ""
    return f"{back}{next_}"


def _turn(step: str, key: str, classes: str, lang: str) -> str:
    label = html.escape(t(lang, key, step=t(lang, f"step.{step}")))
    return f'<button type="button" class="{classes}" data-go="{step}">{label}</button>'


def _words(lang: str, key: str) -> str:
    return html.escape(t(lang, key))
