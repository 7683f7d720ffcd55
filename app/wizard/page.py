"""Builds the wizard."""

import gradio as gr

from app.services import Services
from app.web.shell_parts import step_column
from app.wizard import hardware, launch, model, plan, review, training
from app.wizard.events import CARRIER_SCRIPT, wire
from app.wizard.fields import Form
from app.wizard.layout import place
from app.wizard.payload import initial_value

_STEPS = (hardware, model, training, plan, review, launch)


def build(lang: str, services: Services) -> None:
    """Build the wizard's steps in one language, in the current Blocks context."""
    form = Form(lang)
    carrier = gr.HTML(
        initial_value(lang),
        html_template='<div data-panel="summary"></div>',
        js_on_load=CARRIER_SCRIPT,
        elem_id="mb-carrier",
        apply_default_css=False,
    )
    place("continuing")
    for step in _STEPS:
        with step_column(step.STEP, lang):
            step.build(form)
    wire(form, carrier, services)
