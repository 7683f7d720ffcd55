"""The wizard: six steps that edit one draft; what follows from the draft is drawn by the scripts in static/.

In order: fields.py (widgets from the parameter table), one file a step, reading.py (draft -> job and problems),
payload.py (the bundle that pages draw), events.py (events).
"""

import gradio as gr

from app.services import Services
from app.web.shell_parts import step_column
from app.wizard import hardware, launch, model, plan, review, training
from app.wizard.events import CARRIER_SCRIPT, wire
from app.wizard.fields import Form
from app.wizard.layout import place
from app.wizard.payload import opening

_STEPS = (hardware, model, training, plan, review, launch)


def build(lang: str, services: Services) -> None:
    """The wizard's steps in one language, inside the page that is being built."""
    form = Form(lang)
    carrier = gr.HTML(
        opening(lang),
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
