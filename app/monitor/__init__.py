"""The monitor: the list of runs and the view of one run, live.

One gr.HTML that static/monitor/monitor.js draws. Its script asks (`poll`) and acts (`act`); the answer is one JSON
string, or nothing at all when nothing changed. It is no gr.Timer: a script asks at once when a run is opened or a tab
comes back, rests while the monitor is not on screen, and sends nothing to a server that is gone.
"""

import json
from typing import Any

import gradio as gr

from app.monitor import actions
from app.monitor.compare import Compare
from app.monitor.exports import exports_of
from app.monitor.poll_request import Question
from app.monitor.poll_response import Bundler
from app.monitor.resuming import resuming_of
from app.monitor.storage import storage_of
from app.monitor.watch import run_cache_of
from app.services import Services
from app.text import catalogue

TICK_S = 2.0

_TEMPLATE = '<section aria-live="off"></section>'
_ON_LOAD = "window.Megaboard.attachMonitor(element, (name, data) => trigger(name, data), props, watch); // 'poll' 'act'"
_WORDS = "monitor."


def build(lang: str, services: Services, tick_s: float = TICK_S) -> gr.HTML:
    """Build the monitor in the current Blocks context."""
    run_cache = run_cache_of(services.controller, services.database, services.clock)
    compare = Compare(services, lang)
    offers = {"export": exports_of(services.controller).of, "resume": resuming_of(services.controller).of}
    bundler = Bundler(run_cache, services.database, lang, services.clock, compare.of, offers, storage_of(services))

    def poll(event: gr.EventData) -> Any:
        answer = bundler.answer(_question(event), services.clock())
        return gr.skip() if answer is None else answer

    def act(event: gr.EventData) -> Any:
        question, values = _question(event), event._data.get("values")
        values = values if isinstance(values, dict) else {}
        # A button of the list says which run it means; one of a run's own view need not.
        named = values.get("run")
        run = named if isinstance(named, str) else question.run or ""
        refused = actions.act(services, compare, event._data.get("name"), run, values)
        run_cache.forget(run)
        answer = bundler.answer(question, services.clock(), refused)
        return gr.skip() if answer is None else answer

    panel = gr.HTML(
        "{}",
        html_template=_TEMPLATE,
        js_on_load=_ON_LOAD,
        apply_default_css=False,
        elem_id="mb-monitor",
        lang=lang,
        words=json.dumps(_words(lang), ensure_ascii=False),
        interval_ms=round(1000 * tick_s),
    )
    quiet = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    # The script asks one question at a time. "always_last" would send a held-back one with the data of the first.
    asked = panel.poll(poll, None, panel, trigger_mode="multiple", **quiet)
    asked.then(None, js="() => window.Megaboard.monitor.answered()", **quiet)
    panel.act(act, None, panel, trigger_mode="once", **quiet)
    return panel


def _question(event: gr.EventData) -> Question:
    return Question.of(event._data.get("question"))


def _words(lang: str) -> dict[str, str]:
    return {key: words for key, words in catalogue(lang).items() if key.startswith(_WORDS)}
