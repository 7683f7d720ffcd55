"""Builds the monitor.

static/monitor/monitor.js draws one gr.HTML. Its script sends the events `poll` and `act`. The answer is one JSON
string, or nothing if nothing changed. A gr.Timer would not do: the script polls at once when the user opens a run or
returns to the tab, pauses while the monitor is hidden, and sends nothing to a server that does not answer.
"""

import json
from typing import Any

import gradio as gr

from app.monitor import actions
from app.monitor.cause_fixes import CauseFixes
from app.monitor.chat import ChatView
from app.monitor.compare import Compare
from app.monitor.evaluation import EvaluationView
from app.monitor.poll_request import PollRequest
from app.monitor.poll_response import Offer, PollResponder
from app.services import Services
from app.text import catalogue

TICK_S = 2.0

_TEMPLATE = '<section aria-live="off"></section>'
_ON_LOAD = "window.Megaboard.attachMonitor(element, (name, data) => trigger(name, data), props, watch); // 'poll' 'act'"
_WORDS = "monitor."
_COPY = ("wizard.copy", "wizard.copied", "wizard.copy_failed")
"""Words of the buttons that copy a command (static/lib/commands.js)."""


def build(lang: str, services: Services, tick_s: float = TICK_S) -> gr.HTML:
    """Build the monitor in the current Blocks context."""
    run_cache, database, clock = services.run_cache, services.database, services.clock
    compare = Compare(services, lang)
    views: dict[str, Offer] = {
        "export": services.exports.view,
        "resume": services.resuming.view,
        "fixes": CauseFixes(services).view,
        "chat": ChatView(services).view,
        "evaluation": EvaluationView(services).view,
    }
    responder = PollResponder(run_cache, database, lang, clock, compare.comparison, views, services.storage)

    def poll(event: gr.EventData) -> Any:
        answer = responder.answer(_request(event), clock())
        return gr.skip() if answer is None else answer

    def act(event: gr.EventData) -> Any:
        request, values = _request(event), event._data.get("values")
        values = values if isinstance(values, dict) else {}
        # A button of the list names its run. A button of a run's own view does not.
        run_of_button = values.get("run")
        run = run_of_button if isinstance(run_of_button, str) else request.run or ""
        refusal = actions.act(services, compare, event._data.get("name"), run, values)
        run_cache.forget(run)
        answer = responder.answer(request, services.clock(), refusal)
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
    # The script sends one poll at a time. "always_last" would send a delayed poll with the data of the first.
    polled = panel.poll(poll, None, panel, trigger_mode="multiple", **quiet)
    polled.then(None, js="() => window.Megaboard.monitor.answered()", **quiet)
    panel.act(act, None, panel, trigger_mode="once", **quiet)
    return panel


def _request(event: gr.EventData) -> PollRequest:
    return PollRequest.from_json(event._data.get("question"))


def _words(lang: str) -> dict[str, str]:
    return {key: words for key, words in catalogue(lang).items() if key.startswith(_WORDS) or key in _COPY}
