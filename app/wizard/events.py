"""Events: one handler for an edit of any field, and those that a script asks for. Each answers with the bundle."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.context import Context

from app.home import with_readable_cluster
from app.services import Services
from app.text.imports import line_json
from app.text.reference import GPU_FIGURES
from app.wizard import hardware, launch, sources
from app.wizard.dependent_keys import chosen_for, no_longer_read, template_of_preset
from app.wizard.fields import OWN, Form, look_up
from app.wizard.hosts import FIELD as HOSTS
from app.wizard.hosts import to_form
from app.wizard.payload import bundle
from app.wizard.pending_edits import unsent_edits
from app.wizard.plans import edits_of
from app.wizard.problems import in_words
from backend.job.presets import gpus
from backend.job.problems import Problem, ProblemsError
from backend.planning.enumerate import EDITED

WATCH_S = 20.0
"""A page that watches the desk hears from it at least this often."""

CARRIER_SCRIPT = (
    "Megaboard.wizard.carrier(element, trigger, props, watch, ['refresh', 'choose', 'apply', 'fetch', 'desk', 'sync'])"
)
"""Gradio takes an event's name from the script that triggers it."""

_EDIT: dict[str, Any] = {
    "queue": False,
    "trigger_mode": "always_last",
    "show_progress": "hidden",
    "api_visibility": "private",
}
# What a script sends carries data, and `always_last` would send the first data again in place of the last.
_ACT = {**_EDIT, "trigger_mode": "multiple"}
_WORK = {**_ACT, "queue": True, "concurrency_limit": None}
_WITH_STEP = "(value) => [value, window.Megaboard.wizard.step()]"
_FOLLOWERS: Mapping[str, tuple[str, ...]] = {
    "cluster.gpu": tuple(f"cluster.gpu.{name}" for name in GPU_FIGURES),
    "model.preset": ("training.template",),
}
"""Fields whose widgets change when another is edited."""

_edit_lock = threading.Lock()
"""Some edits read what they change: no other may come between."""


def wire(form: Form, carrier: gr.HTML, services: Services) -> None:
    """Connect every widget and the carrier's own events."""
    step = gr.Textbox(visible=False)
    # At every event Gradio tells each component that was ever to show the progress of one: outputs, where it is not
    # said, and so every widget. That costs more than an edit; `step` is never drawn.
    unseen: dict[str, Any] = {"show_progress_on": step}
    edit, act, work = _EDIT | unseen, _ACT | unseen, _WORK | unseen
    for path, component in form.components.items():
        followers = [form.components[name] for name in _FOLLOWERS.get(path, ())]
        # Gradio's text box tells of `input` at key presses alone: not when text is pasted, deleted or composed by an
        # input method. `change` tells of all, and of what the server itself wrote, which _edit leaves alone.
        event = component.change if isinstance(component, gr.Textbox) else component.input  # type: ignore[attr-defined]
        event(_edit(form, services, path), [component, step], [carrier, *followers], js=_WITH_STEP, **edit)
    widgets = list(form.components.values())
    plan_widgets = [form.components[path] for path in EDITED]
    carrier.refresh(_refresh(form, services), None, carrier, **act)
    carrier.choose(_choose(form, services), None, [carrier, *plan_widgets], **act)
    carrier.apply(_apply(form, carrier, services), None, [carrier, *widgets], **act)
    carrier.fetch(_fetch(form, carrier, services), None, [carrier, *widgets], **work)
    carrier.desk(_desk(form, services), None, carrier, **work)
    carrier.sync(_sync(form, carrier, services), None, [carrier, *widgets], **act)
    page = Context.root_block
    if page is None:
        raise RuntimeError("the wizard is built inside a page")
    page.load(_load(form, services), [step, step], [carrier, *widgets], js=_WITH_STEP, **act)


def change(services: Services, edits: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Write edits into the draft as one change; what belongs to the hosts' lines goes into their form.

    Answers why nothing was written, where the draft refuses.
    """
    return _change(services, edits)[0]


Span = tuple[int, int]
"""Versions of the draft before and after an edit: what came between two edits of a page was another page's."""


def _change(services: Services, edits: Mapping[str, Any]) -> tuple[tuple[Problem, ...], Span]:
    with _edit_lock:
        before = services.draft.version
        refused = _write(services, edits)
        return refused, (before, services.draft.version)


def _write(services: Services, edits: Mapping[str, Any]) -> tuple[Problem, ...]:
    """`change`; the lock is held."""
    if not edits:
        return ()
    draft = _draft(services)
    plain = {path: value for path, value in edits.items() if not path.startswith(f"{HOSTS}.")}
    hosts = {path.rpartition(".")[2]: value for path, value in edits.items() if path not in plain}
    try:
        if hosts:
            plain[HOSTS] = {**to_form(look_up(draft, HOSTS)), **hosts}
        if plain.get("cluster.gpu") == OWN:
            plain["cluster.gpu"] = _own_gpu(look_up(draft, "cluster.gpu"))
        template = template_of_preset(draft, plain, services.home)
        services.draft.edit_all(plain | no_longer_read(draft, plain) | template)
        if noted := chosen_for(draft, _draft(services), plain, services.home):
            services.draft.edit_all(noted)
    except ProblemsError as error:
        return error.problems
    return ()


def _own_gpu(current: Any) -> Mapping[str, Any]:
    """Figures to start from when the GPU is none of the presets: those of the GPU chosen before."""
    if isinstance(current, Mapping):
        return current
    known = gpus().get(current)
    return {name: getattr(known, name, None) for name in GPU_FIGURES}


def _draft(services: Services) -> Mapping[str, Any]:
    return with_readable_cluster(services.draft.job_mapping(), services.home)


def _edit(form: Form, services: Services, path: str) -> Callable[[Any, str], Any]:
    def edit(raw: Any, step: str) -> Any:
        if form.shown_at(_draft(services), path) == raw:
            return gr.skip()
        refused, span = _change(services, {path: form.value(path, raw)})
        draft = _draft(services)
        return [
            bundle(form, services, step, refused, span=span),
            *(form.shown_at(draft, name) for name in _FOLLOWERS.get(path, ())),
        ]

    return edit


def _load(form: Form, services: Services) -> Callable[[Any, str], list[Any]]:
    def load(_: Any, step: str) -> list[Any]:
        return [bundle(form, services, step, synced=True), *form.shown(_draft(services)).values()]

    return load


def _refresh(form: Form, services: Services) -> Callable[[gr.EventData], str]:
    def refresh(event: gr.EventData) -> str:
        return bundle(form, services, event.step)

    return refresh


def _choose(form: Form, services: Services) -> Callable[[gr.EventData], list[Any]]:
    def choose(event: gr.EventData) -> list[Any]:
        asked = event._data if isinstance(event._data, dict) else {}
        try:
            edits = edits_of(asked.get("plan"))
            refused, span = _change(services, edits)
        except ProblemsError as error:
            edits, refused, span = {}, error.problems, None
        told = bundle(form, services, str(asked.get("step")), refused, ticket=asked.get("ticket"), span=span)
        draft = _draft(services)
        return [told, *(form.shown_at(draft, path) if path in edits else gr.skip() for path in EDITED)]

    return choose


def _apply(form: Form, carrier: gr.HTML, services: Services) -> Callable[[gr.EventData], dict[Component, Any]]:
    def apply(event: gr.EventData) -> dict[Component, Any]:
        asked = event._data
        if "unsent" in asked:
            edits = unsent_edits(form, asked["unsent"])
        else:
            edits = hardware.cluster_edits(asked["cluster"]) if "cluster" in asked else dict(asked["edits"])
        changed, refused, span = _change_shown(form, services, edits)
        told = bundle(form, services, asked["step"], refused, span=span, resent="unsent" in asked)
        return {**changed, carrier: told}

    return apply


def _fetch(form: Form, carrier: gr.HTML, services: Services) -> Callable[[gr.EventData], dict[Component, Any]]:
    def fetch(event: gr.EventData) -> dict[Component, Any]:
        asked = event._data
        found = sources.fetch(services, asked)
        changed, refused, span = _change_shown(form, services, found.edits)
        told = {
            "kind": asked.get("kind"),
            "note": found.note,
            "done": found.done,
            "problems": [in_words(form, problem) for problem in (*found.problems, *refused)],
            "keys": [launch.shown_key(key) for key in found.host_keys],
            "lines": [line_json(line, form.lang) for line in found.lines],
            "table": found.table(form.lang) if found.table else None,
        }
        return {**changed, carrier: bundle(form, services, asked["step"], fetched=told, span=span)}

    return fetch


def _change_shown(
    form: Form, services: Services, edits: Mapping[str, Any]
) -> tuple[dict[Component, Any], tuple[Problem, ...], Span]:
    """Write edits into the draft: the widgets that now show something else, why nothing was written, and the span."""
    before = form.shown(_draft(services))
    refused, span = _change(services, edits)
    after = form.shown(_draft(services))
    return {form.components[path]: value for path, value in after.items() if value != before[path]}, refused, span


def _sync(form: Form, carrier: gr.HTML, services: Services) -> Callable[[gr.EventData], dict[Component, Any]]:
    def sync(event: gr.EventData) -> dict[Component, Any]:
        """Every widget anew, but the one that is being typed into: another page has changed the draft."""
        asked = event._data
        shown = form.shown(_draft(services))
        kept = {path for path in shown if f"field-{path.replace('.', '-')}" == asked.get("typed")}
        told = bundle(form, services, asked["step"], synced=not kept)
        return {carrier: told, **{form.components[path]: shown[path] for path in shown if path not in kept}}

    return sync


def _desk(form: Form, services: Services) -> Callable[[gr.EventData], Iterator[str]]:
    def watch(event: gr.EventData) -> Iterator[str]:
        """Do what was asked, then answer at every change until the desk rests."""
        refusal = None
        try:
            state = launch.act(services, event._data)
        except ProblemsError as error:
            refusal = [in_words(form, problem) for problem in error.problems]
            state = launch.desk(services).state()
        yield bundle(form, services, launch.STEP, refusal=refusal)
        while state.is_busy:
            state = launch.desk(services).wait(state.version, WATCH_S)
            yield bundle(form, services, launch.STEP)

    return watch
