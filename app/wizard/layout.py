"""Layout of the steps: titled sections, collapsible parts, tabs, and elements that scripts draw in."""

import html
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import gradio as gr

from app.text import has, t


@contextmanager
def section(lang: str, key: str) -> Iterator[None]:
    """Build a titled card with the words `wizard.<key>` and, if it exists, `wizard.<key>.lead`."""
    name = f"wizard.{key}"
    lead = f"<p>{html.escape(t(lang, f'{name}.lead'))}</p>" if has(lang, f"{name}.lead") else ""
    with gr.Column(elem_classes="mb-card mb-section", elem_id=name.replace(".", "-")):
        gr.HTML(f"<h3>{html.escape(t(lang, name))}</h3>{lead}", js_on_load=None, elem_classes="mb-section-head")
        yield


@contextmanager
def card() -> Iterator[None]:
    """Build a section without a title."""
    with gr.Column(elem_classes="mb-card mb-section"):
        yield


@contextmanager
def grid() -> Iterator[None]:
    """Show widgets side by side, as many as fit."""
    with gr.Column(elem_classes="mb-fields"):
        yield


@contextmanager
def more(lang: str, key: str) -> Iterator[None]:
    """Build a part that starts closed. It stays mounted, so that problems in it are shown and counted."""
    name = f"wizard-{key}".replace(".", "-")
    label = html.escape(t(lang, f"wizard.{key}"))
    gr.HTML(
        f'<button type="button" class="mb-more-button" data-more="{name}" aria-expanded="false" '
        f'aria-controls="{name}"><span>{label}</span></button>',
        js_on_load=None,
        elem_classes="mb-more-head",
    )
    with gr.Column(elem_classes="mb-more", elem_id=name):
        yield


def tabs(lang: str, key: str, names: Sequence[str]) -> None:
    """Build elements under a row of tabs that shows one at a time. The words of a tab are `wizard.tab.<name>`.

    static/wizard/tabs.js shows and hides them, and does not draw hidden ones.
    """
    buttons = [
        f'<button type="button" role="tab" id="tab-{name}" data-tab="{name}" aria-controls="place-{name}" '
        f'aria-selected="false" tabindex="-1">{html.escape(t(lang, f"wizard.tab.{name}"))}</button>'
        for name in names
    ]
    label = html.escape(t(lang, f"wizard.{key}"))
    gr.HTML(
        f'<div class="mb-tabs" role="tablist" data-tabs="{key}" aria-label="{label}">{"".join(buttons)}</div>',
        js_on_load="Megaboard.tabs.mounted(element)",
        elem_classes="mb-tabs-head",
        apply_default_css=False,
    )
    for name in names:
        place(name)


def place(name: str) -> gr.HTML:
    """Build an empty element that the script `Megaboard.panels[name]` draws in."""
    return gr.HTML(
        f'<div class="mb-place" data-panel="{name}"></div>',
        js_on_load="Megaboard.wizard.mounted(element)",
        elem_id=f"place-{name}",
        apply_default_css=False,
    )
