"""Requests of a page for data: a model's config.json, the nodes' memory, the size of the data, a whole job."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from app.home import named_cluster, with_readable_cluster
from app.services import Services
from app.text.detected import table
from app.text.scheduler import partition_table
from app.wizard import continuing, data_preview, dataset_info, read_model, speed, start
from app.wizard.detected_hardware import hardware_edits, power_notes, proposals
from app.wizard.fetch_result import FetchResult, ask, job_of
from app.wizard.hosts import to_form, with_gpu_memory
from backend.job.problems import Problem, ProblemsError

_log = logging.getLogger(__name__)


def fetch(services: Services, request: Mapping[str, Any]) -> FetchResult:
    """Do the request `kind`, which is one of KINDS.

    hub has `id`, profile `allow`, recipe `key`, import `text`, continue `run` and `checkpoint` (a step). Presets have
    `name`, and `replace` to overwrite one. `accept` holds confirmed fingerprints.
    """
    try:
        return KINDS[str(request.get("kind"))](services, request)
    except ProblemsError as error:
        return FetchResult(problems=tuple(error.problems))
    except Exception:  # the page waits for an answer to every request
        _log.exception("fetching for the wizard failed")
        return FetchResult(problems=(Problem(code="internal_error"),))


def _memory(services: Services, request: Mapping[str, Any]) -> FetchResult:
    job = job_of(services)
    reply = ask(services, request, lambda: services.controller.tasks.memory(job))
    if not reply.answers:
        return FetchResult(problems=reply.problems, host_keys=reply.unknown_host_keys)
    # Every node's value is kept: the smallest decides, and the page shows the result without that node.
    gpu_memory = {job.cluster.hosts[rank].name: memory.gpu_gib for rank, memory in reply.answers.items()}
    known = [gib for gib in gpu_memory.values() if gib is not None]
    hosts = with_gpu_memory(to_form(_hosts(services)), gpu_memory) if known else _hosts(services)
    lowest = round(min(memory.host_gib for memory in reply.answers.values()), 1)
    edits = hardware_edits(job, reply.answers)
    notes = power_notes(job, reply.answers, edits.get("cluster.gpu", job.cluster.gpu))
    return FetchResult(
        edits={**edits, **({"cluster.hosts": hosts} if known else {})},
        note={"least": lowest, "nodes": len(reply.answers), **({"gpus": f"{min(known):.1f}"} if known else {})},
        done="done" if known else "done_cpu",
        problems=(*reply.problems, *notes, *proposals(job, reply.answers, hosts)),
        host_keys=reply.unknown_host_keys,
        table=lambda lang: table(job, reply.answers, lang),
    )


def _partitions(services: Services, request: Mapping[str, Any]) -> FetchResult:
    job = job_of(services)
    reply = ask(services, request, lambda: services.controller.tasks.partitions(job))
    if 0 not in reply.answers:
        return FetchResult(problems=reply.problems, host_keys=reply.unknown_host_keys)
    partitions = reply.answers[0]
    note = {"node": reply.nodes[0], "partitions": len({partition.name for partition in partitions})}
    return FetchResult(note=note, table=lambda lang: partition_table(partitions, lang))


def _samples(services: Services, request: Mapping[str, Any]) -> FetchResult:
    job = job_of(services)
    reply = ask(services, request, lambda: services.controller.tasks.data_size(job))
    for rank, size in reply.answers.items():
        rows = ", ".join(f"{name} {count:,}" for name, count in size.rows.items())
        edits: dict[str, Any] = {"training.samples": size.samples or None,
                                 "training.samples_from": f"{reply.nodes[rank]}: {job.training.dataset}"}  # fmt: skip
        note = {"node": reply.nodes[rank], "samples": f"{size.samples:,}", "rows": rows}
        if size.tokens is None:
            values = {"node": reply.nodes[rank], "reason": size.unmeasured}
            unmeasured = Problem(code="samples_not_measured", field="training.sample_tokens", severity="warning",
                                 values=values)  # fmt: skip
            return FetchResult(edits=edits, note=note, done="done_counted", problems=(unmeasured,))
        edits["training.sample_tokens"] = size.tokens
        return FetchResult(edits=edits, note={**note, "tokens": f"{size.tokens:,}"})
    return FetchResult(problems=reply.problems, host_keys=reply.unknown_host_keys)


def _data_preview(services: Services, request: Mapping[str, Any]) -> FetchResult:
    job, seed = job_of(services), request.get("seed")
    seed = seed % (1 << 31) if type(seed) is int else 0
    reply = ask(services, request, lambda: services.controller.tasks.data_preview(job, seed))
    for rank, answer in reply.answers.items():
        rows = sum(read["rows"] for read in answer.get("datasets", []))
        note = {"node": reply.nodes[rank], "rows": f"{rows:,}"}
        return FetchResult(
            edits=data_preview.edits(answer),
            note=note,
            done="done_faults" if data_preview.has_faults(answer) else "done",
            preview=partial(data_preview.shown, answer, job),
        )
    return FetchResult(problems=reply.problems, host_keys=reply.unknown_host_keys)


def _speed(services: Services, request: Mapping[str, Any]) -> FetchResult:
    job = job_of(services)
    reply = ask(services, request, lambda: speed.measure(services, job))
    note = {"nodes": job.cluster.nodes} if reply.speeds else {}
    return FetchResult(note=note, problems=reply.problems, host_keys=reply.unknown_host_keys)


def _recipe(services: Services, request: Mapping[str, Any]) -> FetchResult:
    key = str(request.get("key"))
    return FetchResult(edits=start.from_recipe(key, services.demo).edits, note={"key": key})


def _import(services: Services, request: Mapping[str, Any]) -> FetchResult:
    imported = start.from_text(services, str(request.get("text") or ""))
    in_file = [line for line in imported.lines if line.outcome != "default"]
    note = {"name": imported.name, "kept": sum(line.outcome == "kept" for line in in_file), "all": len(in_file)}
    return FetchResult(edits=imported.edits, note=note, lines=imported.lines)


def _preset(services: Services, request: Mapping[str, Any]) -> FetchResult:
    name = str(request.get("name"))
    return FetchResult(edits=start.from_preset(services, name).edits, note={"name": name})


def _continue(services: Services, request: Mapping[str, Any]) -> FetchResult:
    run, step, fix = str(request.get("run")), request.get("checkpoint"), request.get("fix")
    # -1 replaces a value that is not a number. No run has a checkpoint of this step.
    fix = fix if type(fix) is int and fix >= 0 else None
    is_measured = request.get("measured") is True
    step = step if type(step) is int else -1
    job_edits = continuing.continue_run(services, run, step, fix, is_measured=is_measured)
    return FetchResult(edits=job_edits.edits, note={"run": run})


def _clear_source(services: Services, request: Mapping[str, Any]) -> FetchResult:
    services.draft.set_source(None)
    return FetchResult()


def _change_preset(services: Services, request: Mapping[str, Any]) -> FetchResult:
    name, replace = str(request.get("name") or "").strip(), request.get("replace") is True
    if request["kind"] == "preset_save":
        start.save_draft(services, name, replace=replace)
    elif request["kind"] == "preset_import":
        name = start.save_text(services, name, str(request.get("text") or ""), replace=replace)
    else:
        start.remove_preset(services, name)
    return FetchResult(note={"name": name})


def _cluster(services: Services, request: Mapping[str, Any]) -> FetchResult:
    """Choose, save or delete a named cluster."""
    name = str(request.get("name") or "").strip()
    edits: Mapping[str, Any] = {"cluster": name}
    if request["kind"] == "cluster_save":
        start.save_cluster(services, name, replace=request.get("replace") is True)
    elif request["kind"] == "cluster_delete":
        edits = start.remove_cluster(services, name)
    else:
        named_cluster(services.home, name)
    return FetchResult(edits=edits, note={"name": name})


def _hosts(services: Services) -> Any:
    """Return the draft's hosts, as a form or as a job file's list."""
    cluster = with_readable_cluster(services.draft.job_mapping(), services.home).get("cluster")
    return cluster.get("hosts") if isinstance(cluster, Mapping) else None


KINDS: Mapping[str, Callable[[Services, Mapping[str, Any]], FetchResult]] = {
    "hub": read_model.from_hub_id,
    "node": read_model.from_nodes,
    "profile": read_model.profile_on_node,
    "memory": _memory,
    "partitions": _partitions,
    "samples": _samples,
    "data_preview": _data_preview,
    **dataset_info.KINDS,
    "recipe": _recipe,
    "import": _import,
    "preset": _preset,
    "preset_save": _change_preset,
    "preset_import": _change_preset,
    "preset_delete": _change_preset,
    "cluster": _cluster,
    "cluster_save": _cluster,
    "cluster_delete": _cluster,
    "continue": _continue,
    "begin_anew": _clear_source,
    "speed": _speed,
    "keep_speed": lambda services, request: FetchResult(note=speed.keep(services)),
    "forget_calibration": lambda services, request: FetchResult(note=speed.forget(services)),
}
