"""What a step fetches when asked: a model's config.json, the nodes' memory, the size of the data, a whole job."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.home import named_cluster, with_readable_cluster
from app.model_config import MAXIMUM_BYTES, from_hub, pretty, read_config, refuse_large
from app.services import A, Services, ask_nodes
from app.text.detected import table
from app.wizard import continuing, speed, start
from app.wizard.detected_hardware import hardware_edits, power_notes, proposals
from app.wizard.draft_state import read
from app.wizard.hosts import to_form, with_gpu_memory
from backend.cluster.ssh.host_keys import HostKey
from backend.engines.importing import ImportLine
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.job import Job, Model
from backend.job.model import ModelShape
from backend.job.problems import Problem, ProblemsError
from backend.job.unestimated import UnestimatedModel, shape_or_reason

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """What came of it: edits of the draft, or what stands in the way."""

    edits: Mapping[str, Any] = field(default_factory=dict)
    note: Mapping[str, object] = field(default_factory=dict)
    """Values of the sentence `wizard.fetch.<kind>.<done>`; empty where nothing was read."""
    done: str = "done"
    problems: tuple[Problem, ...] = ()
    lines: Sequence[ImportLine] = ()
    """What an import did with each key."""
    host_keys: tuple[HostKey, ...] = ()
    """To be confirmed by the user, then asked again with their fingerprints."""
    table: Callable[[str], Mapping[str, Any]] | None = None
    """What was found, in a language: titles as `head`, `rows` of texts."""


def fetch(services: Services, asked: Mapping[str, Any]) -> Fetched:
    """Do what `asked` says: `kind` is one of KINDS (hub with `id`, recipe with `key`, import with `text`, the presets'
    with `name`, and `replace` where one is overwritten; continue with `run` and `checkpoint`, a step).

    `accept` holds confirmed fingerprints.
    """
    try:
        return KINDS[str(asked.get("kind"))](services, asked)
    except ProblemsError as error:
        return Fetched(problems=tuple(error.problems))
    except Exception:  # the page waits for an answer, whatever happens
        _log.exception("fetching for the wizard failed")
        return Fetched(problems=(Problem(code="internal_error"),))


def _from_hub(services: Services, asked: Mapping[str, Any]) -> Fetched:
    model_id = str(asked.get("id") or "").strip()
    return _config_edits(*read_config(from_hub(model_id), model_id), model_id)


def _from_node(services: Services, asked: Mapping[str, Any]) -> Fetched:
    job = _job(services)
    found = _look(services, asked, lambda: services.controller.model_config(job, MAXIMUM_BYTES + 1))
    for rank, data in found.answers.items():
        source = f"{found.nodes[rank]}:{job.model.path}"
        refuse_large(len(data), source)
        config, model = read_config(data.decode("utf-8", errors="replace"), source)
        fetched = _config_edits(config, model, source)
        if not isinstance(model, UnestimatedModel):
            return fetched
        profiled = _profile(services, asked, replace(job.model, preset=None, hf_config=config), job)
        return replace(profiled, edits={**fetched.edits, **profiled.edits}, note=profiled.note or fetched.note)
    return Fetched(problems=found.problems, host_keys=found.unknown_host_keys)


def _profile_on_node(services: Services, asked: Mapping[str, Any]) -> Fetched:
    job = _job(services)
    return _profile(services, asked, job.model, job)


def _profile(services: Services, asked: Mapping[str, Any], model: Model, job: Job) -> Fetched:
    """Have a node build the model whose config.json is not enough for an estimate."""
    found = _look(services, asked, lambda: services.controller.model_profile(replace(job, model=model)))
    for rank, profile in found.answers.items():
        shape = shape_or_reason(model.hf_config, profile)
        total = profile["parameters"]["total"]
        note = {"node": found.nodes[rank], "class": profile["architecture"], "billions": f"{total / 1e9:.3f}"}
        if isinstance(shape, UnestimatedModel):
            return Fetched(note=note, done="done_no_estimate", problems=(shape.reason,))
        counted = model_parameters(model_layers(shape))
        if counted != total:
            values = {"difference": counted - total}
            problem = Problem(code="profile_differs", field="model.profile", severity="warning", values=values)
            return Fetched(note=note, done="done_no_estimate", problems=(problem,))
        return Fetched(edits={"model.profile": profile}, note=note, done="done_profile")
    problems = tuple(replace(problem, severity="warning") for problem in found.problems)
    return Fetched(problems=problems, host_keys=found.unknown_host_keys)


def _memory(services: Services, asked: Mapping[str, Any]) -> Fetched:
    job = _job(services)
    found = _look(services, asked, lambda: services.controller.memory(job))
    if not found.answers:
        return Fetched(problems=found.problems, host_keys=found.unknown_host_keys)
    # Of GPUs every node's is kept: the smallest decides, and the page says what would be without it.
    read = {job.cluster.hosts[rank].name: memory.gpu_gib for rank, memory in found.answers.items()}
    known = [gib for gib in read.values() if gib is not None]
    hosts = with_gpu_memory(to_form(_hosts(services)), read) if known else _hosts(services)
    least = round(min(memory.host_gib for memory in found.answers.values()), 1)
    edits = hardware_edits(job, found.answers)
    held = power_notes(job, found.answers, edits.get("cluster.gpu", job.cluster.gpu))
    return Fetched(
        edits={**edits, **({"cluster.hosts": hosts} if known else {})},
        note={"least": least, "nodes": len(found.answers), **({"gpus": f"{min(known):.1f}"} if known else {})},
        done="done" if known else "done_cpu",
        problems=(*found.problems, *held, *proposals(job, found.answers, hosts)),
        host_keys=found.unknown_host_keys,
        table=lambda lang: table(job, found.answers, lang),
    )


def _samples(services: Services, asked: Mapping[str, Any]) -> Fetched:
    job = _job(services)
    found = _look(services, asked, lambda: services.controller.data_size(job))
    for rank, size in found.answers.items():
        rows = ", ".join(f"{name} {count:,}" for name, count in size.rows.items())
        edits: dict[str, Any] = {"training.samples": size.samples or None,
                                 "training.samples_from": f"{found.nodes[rank]}: {job.training.dataset}"}  # fmt: skip
        note = {"node": found.nodes[rank], "samples": f"{size.samples:,}", "rows": rows}
        if size.tokens is None:
            values = {"node": found.nodes[rank], "reason": size.unmeasured}
            unmeasured = Problem(code="samples_not_measured", field="training.sample_tokens", severity="warning",
                                 values=values)  # fmt: skip
            return Fetched(edits=edits, note=note, done="done_counted", problems=(unmeasured,))
        edits["training.sample_tokens"] = size.tokens
        return Fetched(edits=edits, note={**note, "tokens": f"{size.tokens:,}"})
    return Fetched(problems=found.problems, host_keys=found.unknown_host_keys)


def _speed(services: Services, asked: Mapping[str, Any]) -> Fetched:
    job = _job(services)
    found = _look(services, asked, lambda: speed.measure(services, job))
    note = {"nodes": job.cluster.nodes} if found.speeds else {}
    return Fetched(note=note, problems=found.problems, host_keys=found.unknown_host_keys)


def _recipe(services: Services, asked: Mapping[str, Any]) -> Fetched:
    key = str(asked.get("key"))
    return Fetched(edits=start.from_recipe(key, services.demo).edits, note={"key": key})


def _import(services: Services, asked: Mapping[str, Any]) -> Fetched:
    begun = start.from_text(services, str(asked.get("text") or ""))
    in_file = [line for line in begun.lines if line.outcome != "default"]
    kept = sum(line.outcome == "kept" for line in in_file)
    return Fetched(edits=begun.edits, note={"name": begun.name, "kept": kept, "all": len(in_file)}, lines=begun.lines)


def _preset(services: Services, asked: Mapping[str, Any]) -> Fetched:
    name = str(asked.get("name"))
    return Fetched(edits=start.from_preset(services, name).edits, note={"name": name})


def _continue(services: Services, asked: Mapping[str, Any]) -> Fetched:
    run, step = str(asked.get("run")), asked.get("checkpoint")
    # No run has a checkpoint of the step that stands for what is no number.
    begun = continuing.begin(services, run, step if type(step) is int else -1)
    return Fetched(edits=begun.edits, note={"run": run})


def _begin_anew(services: Services, asked: Mapping[str, Any]) -> Fetched:
    services.draft.begin_with(None)
    return Fetched()


def _preset_act(services: Services, asked: Mapping[str, Any]) -> Fetched:
    name, replace = str(asked.get("name") or "").strip(), asked.get("replace") is True
    if asked["kind"] == "preset_save":
        start.keep_draft(services, name, replace=replace)
    elif asked["kind"] == "preset_import":
        name = start.keep_text(services, name, str(asked.get("text") or ""), replace=replace)
    else:
        start.forget_preset(services, name)
    return Fetched(note={"name": name})


def _cluster(services: Services, asked: Mapping[str, Any]) -> Fetched:
    """Choose, keep or delete a named cluster."""
    name = str(asked.get("name") or "").strip()
    edits: Mapping[str, Any] = {"cluster": name}
    if asked["kind"] == "cluster_save":
        start.keep_cluster(services, name, replace=asked.get("replace") is True)
    elif asked["kind"] == "cluster_delete":
        edits = start.forget_cluster(services, name)
    else:
        named_cluster(services.home, name)
    return Fetched(edits=edits, note={"name": name})


def _look(services: Services, asked: Mapping[str, Any], nodes: Callable[[], A]) -> A:
    return ask_nodes(services.controller, nodes, {str(one) for one in asked.get("accept") or ()})


def _config_edits(config: Mapping[str, Any], model: ModelShape | UnestimatedModel, source: str) -> Fetched:
    # The draft keeps it as the text that one would paste.
    edits: dict[str, Any] = {"model.preset": None, "model.hf_config": pretty(config), "model.profile": {}}
    return Fetched(edits=edits, note={"source": source, "type": model.model_type or "-"})


def _hosts(services: Services) -> Any:
    """The draft's, as the page or a job file writes them."""
    cluster = with_readable_cluster(services.draft.job_mapping(), services.home).get("cluster")
    return cluster.get("hosts") if isinstance(cluster, Mapping) else None


def _job(services: Services) -> Job:
    reading = read(services.draft.job_mapping(), services.home)
    if reading.job is None:
        raise ProblemsError((*reading.problems, *reading.missing))
    return reading.job


KINDS: Mapping[str, Callable[[Services, Mapping[str, Any]], Fetched]] = {
    "hub": _from_hub,
    "node": _from_node,
    "profile": _profile_on_node,
    "memory": _memory,
    "samples": _samples,
    "recipe": _recipe,
    "import": _import,
    "preset": _preset,
    "preset_save": _preset_act,
    "preset_import": _preset_act,
    "preset_delete": _preset_act,
    "cluster": _cluster,
    "cluster_save": _cluster,
    "cluster_delete": _cluster,
    "continue": _continue,
    "begin_anew": _begin_anew,
    "speed": _speed,
    "keep_speed": lambda services, asked: Fetched(note=speed.keep(services)),
    "forget_calibration": lambda services, asked: Fetched(note=speed.forget(services)),
}
