"""Event handlers: one for an edit of any field, and one for each request of a script. Each returns the payload."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.context import Context

from app.home import with_readable_cluster
from app.services import Services
from app.text.alike import as_one, by_likeness
from app.text.imports import line_json
from app.text.reference import GPU_FIGURES
from app.wizard import hardware, launch, sources
from app.wizard.dependent_keys import learning_rate_batch_edit, samples_source_edit, template_edit
from app.wizard.fields import OWN, Form, look_up
from app.wizard.hosts import FIELD as HOSTS
from app.wizard.hosts import SPARES, to_form
from app.wizard.payload import payload_json
from app.wizard.pending_edits import pending_edits
from app.wizard.plans import row_edits
from app.wizard.problems import in_words
from app.wizard.scheduler import KIND as SCHEDULER_KIND
from backend.job.presets import gpus
from backend.job.problems import Problem, ProblemsError
from backend.planning.enumerate import EDITED

WATCH_S = 20.0
"""A page that watches a launch gets an answer at least this often."""

CARRIER_SCRIPT = (
    "Megaboard.wizard.carrier(element, trigger, props, watch,"
    " ['refresh', 'choose', 'apply', 'fetch', 'launch', 'sync'])"
)
"""Gradio takes an event's name from the script that triggers it."""

_EDIT: dict[str, Any] = {
    "queue": False,
    "trigger_mode": "always_last",
    "show_progress": "hidden",
    "api_visibility": "private",
}
# A script sends data with its event, and `always_last` would send the first data again instead of the last.
_ACT = {**_EDIT, "trigger_mode": "multiple"}
_WORK = {**_ACT, "queue": True, "concurrency_limit": None}
_WITH_STEP = "(value) => [value, window.Megaboard.wizard.step()]"
_FOLLOWERS: Mapping[str, tuple[str, ...]] = {
    "cluster.gpu": tuple(f"cluster.gpu.{name}" for name in GPU_FIGURES),
    "model.preset": ("training.template",),
}
"""Fields whose widgets change when another is edited."""


def wire(form: Form, carrier: gr.HTML, services: Services) -> None:
    """Connect every widget and the carrier's own events."""
    step = gr.Textbox(visible=False)
    # By default every output, so every widget, shows the progress of each event, which costs more than an edit.
    # `step` is never drawn.
    no_progress: dict[str, Any] = {"show_progress_on": step}
    edit, act, work = _EDIT | no_progress, _ACT | no_progress, _WORK | no_progress
    for path, component in form.components.items():
        followers = [form.components[name] for name in _FOLLOWERS.get(path, ())]
        # Gradio's text box sends `input` only at key presses: not when text is pasted, deleted or composed by an
        # input method. `change` is sent for all of these, and for values of the server, which _edit ignores.
        event = component.change if isinstance(component, gr.Textbox) else component.input  # type: ignore[attr-defined]
        event(_edit(form, services, path), [component, step], [carrier, *followers], js=_WITH_STEP, **edit)
    widgets = list(form.components.values())
    plan_widgets = [form.components[path] for path in EDITED]
    carrier.refresh(_refresh(form, services), None, carrier, **act)
    carrier.choose(_choose(form, services), None, [carrier, *plan_widgets], **act)
    carrier.apply(_apply(form, carrier, services), None, [carrier, *widgets], **act)
    carrier.fetch(_fetch(form, carrier, services), None, [carrier, *widgets], **work)
    carrier.launch(_launch(form, services), None, carrier, **work)
    carrier.sync(_sync(form, carrier, services), None, [carrier, *widgets], **act)
    page = Context.root_block
    if page is None:
        raise RuntimeError("the wizard is built inside a page")
    page.load(_load(form, services), [step, step], [carrier, *widgets], js=_WITH_STEP, **act)


def change(services: Services, edits: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Write edits into the draft as one change. Edits below `cluster.hosts` go into the form of the hosts.

    Returns the reasons if the draft refuses the edits.
    """
    return _change(services, edits)[0]


Span = tuple[int, int]
"""Versions of the draft before and after an edit. A gap between two edits of a page is an edit of another page."""


def _change(services: Services, edits: Mapping[str, Any]) -> tuple[tuple[Problem, ...], Span]:
    with services.draft.edit_lock:
        before = services.draft.version
        refused = _write(services, edits)
        return refused, (before, services.draft.version)


def _write(services: Services, edits: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Do what `change` does. The caller holds the lock."""
    if not edits:
        return ()
    draft = _draft(services)
    plain = {path: value for path, value in edits.items() if not path.startswith(f"{HOSTS}.")}
    hosts = {path.rpartition(".")[2]: value for path, value in edits.items() if path not in plain}
    try:
        if hosts or SCHEDULER_KIND in plain:  # the form keeps the hosts while a scheduler takes their place
            plain[HOSTS] = {**to_form(look_up(draft, HOSTS)), **hosts}
            if SCHEDULER_KIND in plain:
                plain[SPARES] = look_up(draft, SPARES)
        if plain.get("cluster.gpu") == OWN:
            plain["cluster.gpu"] = _own_gpu(look_up(draft, "cluster.gpu"))
        template = template_edit(draft, plain, services.home)
        services.draft.edit_all(plain | samples_source_edit(draft, plain) | template)
        if batch_edit := learning_rate_batch_edit(draft, _draft(services), plain, services.home):
            services.draft.edit_all(batch_edit)
    except ProblemsError as error:
        return error.problems
    return ()


def _own_gpu(current: Any) -> Mapping[str, Any]:
    """Return the first figures of a GPU that is not a preset: the figures of the GPU chosen before."""
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
            payload_json(form, services, step, refused, span=span),
            *(form.shown_at(draft, name) for name in _FOLLOWERS.get(path, ())),
        ]

    return edit


def _load(form: Form, services: Services) -> Callable[[Any, str], list[Any]]:
    def load(_: Any, step: str) -> list[Any]:
        return [payload_json(form, services, step, synced=True), *form.shown(_draft(services)).values()]

    return load


def _refresh(form: Form, services: Services) -> Callable[[gr.EventData], str]:
    def refresh(event: gr.EventData) -> str:
        return payload_json(form, services, event.step)

    return refresh


def _choose(form: Form, services: Services) -> Callable[[gr.EventData], list[Any]]:
    def choose(event: gr.EventData) -> list[Any]:
        data = event._data if isinstance(event._data, dict) else {}
        try:
            edits = row_edits(data.get("plan"))
            refused, span = _change(services, edits)
        except ProblemsError as error:
            edits, refused, span = {}, error.problems, None
        payload = payload_json(form, services, str(data.get("step")), refused, ticket=data.get("ticket"), span=span)
        draft = _draft(services)
        return [payload, *(form.shown_at(draft, path) if path in edits else gr.skip() for path in EDITED)]

    return choose


def _apply(form: Form, carrier: gr.HTML, services: Services) -> Callable[[gr.EventData], dict[Component, Any]]:
    def apply(event: gr.EventData) -> dict[Component, Any]:
        request = event._data
        if "pending" in request:
            edits = pending_edits(form, request["pending"])
        else:
            edits = hardware.cluster_edits(request["cluster"]) if "cluster" in request else dict(request["edits"])
        changed, refused, span = _change_widgets(form, services, edits)
        payload = payload_json(form, services, request["step"], refused, span=span, resent="pending" in request)
        return {**changed, carrier: payload}

    return apply


def _fetch(form: Form, carrier: gr.HTML, services: Services) -> Callable[[gr.EventData], dict[Component, Any]]:
    def fetch(event: gr.EventData) -> dict[Component, Any]:
        request = event._data
        result = sources.fetch(services, request)
        changed, refused, span = _change_widgets(form, services, result.edits)
        fetched = {
            "kind": request.get("kind"),
            "note": result.note,
            "done": result.done,
            "problems": [in_words(form, as_one(some)) for some in by_likeness((*result.problems, *refused))],
            "keys": [launch.shown_key(key) for key in result.host_keys],
            "lines": [line_json(line, form.lang) for line in result.lines],
            "table": result.table(form.lang) if result.table else None,
            "datasets": result.datasets(form.lang) if result.datasets else None,
            "preview": result.preview(form.lang) if result.preview else None,
        }
        return {**changed, carrier: payload_json(form, services, request["step"], fetched=fetched, span=span)}

    return fetch


def _change_widgets(
    form: Form, services: Services, edits: Mapping[str, Any]
) -> tuple[dict[Component, Any], tuple[Problem, ...], Span]:
    """Write edits into the draft. Return the widgets with new values, the refusals and the span."""
    before = form.shown(_draft(services))
    refused, span = _change(services, edits)
    after = form.shown(_draft(services))
    return {form.components[path]: value for path, value in after.items() if value != before[path]}, refused, span


def _sync(form: Form, carrier: gr.HTML, services: Services) -> Callable[[gr.EventData], dict[Component, Any]]:
    def sync(event: gr.EventData) -> dict[Component, Any]:
        """Update every widget except the one that the user types into. Another page has changed the draft."""
        request = event._data
        shown = form.shown(_draft(services))
        typed = {path for path in shown if f"field-{path.replace('.', '-')}" == request.get("typed")}
        payload = payload_json(form, services, request["step"], synced=not typed)
        return {carrier: payload, **{form.components[path]: shown[path] for path in shown if path not in typed}}

    return sync


def _launch(form: Form, services: Services) -> Callable[[gr.EventData], Iterator[str]]:
    def watch(event: gr.EventData) -> Iterator[str]:
        """Do the requested action, then send a payload at every change until the session is idle."""
        refusal = None
        try:
            launch_state = launch.act(services, event._data)
        except ProblemsError as error:
            refusal = [in_words(form, problem) for problem in error.problems]
            launch_state = services.launch_session.state()
        yield payload_json(form, services, launch.STEP, refusal=refusal)
        while launch_state.is_busy:
            launch_state = services.launch_session.wait(launch_state.version, WATCH_S)
            yield payload_json(form, services, launch.STEP)

    return watch
