"""The model of the draft from its config.json, on the hub or on the nodes, and from the profile that a node makes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.model_config import FILE, MAXIMUM_BYTES, from_hub, pretty, read_config, refuse_large
from app.services import Services
from app.wizard.fetch_result import FetchResult, ask, job_of
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.job import Job, Model
from backend.job.mapping import with_values
from backend.job.model import ModelShape
from backend.job.problems import Problem, ProblemsError
from backend.job.rules.extra import allow_code
from backend.job.unestimated import UnestimatedModel, shape_or_reason

ReadConfig = tuple[str, Mapping[str, Any], ModelShape | UnestimatedModel]
"""Source, content, and shape of a config.json."""


def from_hub_id(services: Services, request: Mapping[str, Any]) -> FetchResult:
    model_id = str(request.get("id") or "").strip()
    return _config_edits(*read_config(from_hub(model_id), model_id), model_id)


def from_nodes(services: Services, request: Mapping[str, Any]) -> FetchResult:
    """Read config.json on all nodes. The first that can be used becomes the draft's; what is wrong with the others is
    a warning."""
    job = job_of(services)
    reply = ask(services, request, lambda: services.controller.tasks.model_config(job, MAXIMUM_BYTES + 1))
    usable, broken = _configs(reply.answers, reply.nodes, f"{job.model.path}/{FILE}")
    problems = (*broken, *reply.problems)
    if not usable:
        return FetchResult(problems=problems, host_keys=reply.unknown_host_keys)
    (source, config, model), *others = usable
    if others:
        values = {"source": source, "others": [other for other, *_ in others]}
        problems = (*problems, Problem(code="model_config_differs", field="model.path", values=values))
    fetched = replace(
        _config_edits(config, model, source),
        problems=tuple(replace(problem, severity="warning") for problem in problems),
        host_keys=reply.unknown_host_keys,
    )
    if not isinstance(model, UnestimatedModel):
        return fetched
    profiled = _profile(services, request, replace(job.model, preset=None, hf_config=config), job)
    return replace(profiled, edits={**fetched.edits, **profiled.edits}, note=profiled.note or fetched.note,
                   problems=(*fetched.problems, *profiled.problems),
                   host_keys=profiled.host_keys or fetched.host_keys)  # fmt: skip


def _configs(
    answers: Mapping[int, bytes], names: Mapping[int, str], path: str
) -> tuple[list[ReadConfig], list[Problem]]:
    """Return the usable configurations with their sources, and what is wrong with the others; one for equal files."""
    nodes: dict[bytes, list[str]] = {}
    for rank, data in answers.items():
        nodes.setdefault(data, []).append(names[rank])
    usable: list[ReadConfig] = []
    broken: list[Problem] = []
    for data, owners in nodes.items():
        source = f"{', '.join(owners)}: {path}"
        try:
            refuse_large(len(data), source)
            usable.append((source, *read_config(data.decode("utf-8", errors="replace"), source)))
        except ProblemsError as error:
            broken += error.problems
    return usable, broken


def profile_on_node(services: Services, request: Mapping[str, Any]) -> FetchResult:
    """Build the draft's model on a node. With `allow` the code in its folder runs, and the draft allows it."""
    job = job_of(services)
    choice = allow_code(job).get("allow") if request.get("allow") is True else None
    if choice is None:
        return _profile(services, request, job.model, job)
    allowed = with_values(job, choice)
    profiled = _profile(services, request, job.model, allowed)
    return replace(profiled, edits={**choice, **profiled.edits})


def _profile(services: Services, request: Mapping[str, Any], model: Model, job: Job) -> FetchResult:
    """Build a model on a node to measure it, because its config.json is not enough for an estimate."""
    reply = ask(services, request, lambda: services.controller.tasks.model_profile(replace(job, model=model)))
    for rank, profile in reply.answers.items():
        shape = shape_or_reason(model.hf_config, profile)
        total = profile["parameters"]["total"]
        note = {"node": reply.nodes[rank], "class": profile["architecture"], "parameters": f"{total:,}"}
        if isinstance(shape, UnestimatedModel):
            # The draft keeps the profile, so that it says why there are no figures, as long as the model stays.
            return FetchResult(edits={"model.profile": profile}, note=note, done="done_no_estimate")
        counted = model_parameters(model_layers(shape))
        if counted != total:
            values = {"difference": counted - total}
            problem = Problem(code="profile_differs", field="model.profile", severity="warning", values=values)
            return FetchResult(note=note, done="done_no_estimate", problems=(problem,))
        return FetchResult(edits={"model.profile": profile}, note=note, done="done_profile")
    problems = tuple(replace(problem, severity="warning", choices=_choices(problem, job)) for problem in reply.problems)
    return FetchResult(problems=problems, host_keys=reply.unknown_host_keys)


def _choices(problem: Problem, job: Job) -> Mapping[str, Mapping[str, object]]:
    """Return the choice to allow the model's own code, if it was refused."""
    is_refused = problem.values.get("case") == "remote_code"
    return allow_code(job) if is_refused and job.model.path is not None else {}


def _config_edits(config: Mapping[str, Any], model: ModelShape | UnestimatedModel, source: str) -> FetchResult:
    # The draft keeps the config as text, in the form that a user would paste.
    edits: dict[str, Any] = {"model.preset": None, "model.hf_config": pretty(config), "model.profile": {}}
    return FetchResult(edits=edits, note={"source": source, "type": model.model_type or "-"})
