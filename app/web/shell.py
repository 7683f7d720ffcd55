"""The frame of the page: the header, the wizard with its stepper, and the monitor."""

import html
from collections.abc import Callable

import gradio as gr

from app.services import Services
from app.text import t
from app.web.login import HTML_LANG
from app.web.shell_parts import STEPS

Part = Callable[[str, Services], object]

_LANGUAGE_NAMES = {"en": "English", "zh": "中文"}

_HEADER = """
<button type="button" class="mb-skip" data-skip>{skip}</button>
<div class="mb-brand"><img src="/static/logo.svg" alt="" width="28" height="28"><h1>{name}</h1></div>
<nav class="mb-areas" aria-label="{areas}">{area_links}</nav>
<div class="mb-tools">
<nav class="mb-languages" aria-label="{language}">{language_links}</nav>
<button type="button" class="mb-tool" data-theme-toggle aria-pressed="false">{dark}</button>
<form method="post" action="/logout?lang={lang}"><button class="mb-tool">{logout}</button></form>
</div>
"""
_AREA = '<a href="#{target}" data-go="{target}" data-area="{area}">{words}</a>'
_LANGUAGE = '<a href="/?lang={code}" data-language="{code}" lang="{tag}"{mark}>{name}</a>'
_CURRENT = ' aria-current="true"'
_STEPPER = '<nav aria-label="{label}"><ol class="mb-steps">{items}</ol></nav>'
_STEP = """
<li><a href="#{step}" data-go="{step}" data-step="{step}">
<span class="mb-number" aria-hidden="true">{number}</span><span>{words}</span></a></li>
"""


def build(lang: str, services: Services) -> gr.Blocks:
    """Return the page in one language, with the wizard and the monitor."""
    import app.monitor.page
    import app.wizard.page

    return frame(lang, services, wizard=app.wizard.page.build, monitor=app.monitor.page.build)


def frame(lang: str, services: Services, *, wizard: Part, monitor: Part) -> gr.Blocks:
    """Return the frame of the page with two areas. `wizard` and `monitor` build their components inside it.

    Both areas stay mounted, so a switch between them keeps fields and charts.
    """
    page: gr.Blocks
    with gr.Blocks(title=t(lang, "app.name"), analytics_enabled=False, fill_width=True) as page:
        gr.HTML(_header(lang), elem_id="mb-header", js_on_load=None, apply_default_css=False)
        with gr.Column(elem_id="area-wizard", elem_classes="mb-area"):
            gr.HTML(_stepper(lang), elem_id="mb-stepper", js_on_load=None, apply_default_css=False)
            wizard(lang, services)
        with gr.Column(elem_id="area-monitor", elem_classes="mb-area"):
            monitor(lang, services)
    return page


def _header(lang: str) -> str:
    keys = ("app.name", "shell.skip", "shell.areas", "shell.language", "shell.dark", "shell.logout")
    words = {key.rpartition(".")[2]: html.escape(t(lang, key)) for key in keys}
    targets = (("wizard", STEPS[0]), ("monitor", "runs"))
    areas = [
        _AREA.format(target=target, area=area, words=html.escape(t(lang, f"shell.area.{area}")))
        for area, target in targets
    ]
    languages = [
        _LANGUAGE.format(code=code, tag=HTML_LANG[code], name=name, mark=_CURRENT if code == lang else "")
        for code, name in _LANGUAGE_NAMES.items()
    ]
    return _HEADER.format(**words, lang=lang, area_links="".join(areas), language_links="".join(languages))


def _stepper(lang: str) -> str:
    items = [
        _STEP.format(step=step, number=number, words=html.escape(t(lang, f"step.{step}")))
        for number, step in enumerate(STEPS, 1)
    ]
    return _STEPPER.format(label=html.escape(t(lang, "shell.steps")), items="".join(items))
