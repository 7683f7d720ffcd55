"""Step 6: check the nodes, confirm their host keys, start the run. A launch needs a passed check of the same draft."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from app.services import Services
from app.text import t
from app.text.alike import as_one, by_likeness, likeness
from app.text.copies import copy_words
from app.text.scheduler import scheduler_words
from app.wizard import continuing
from app.wizard.draft_state import DraftState, read
from app.wizard.fields import Form
from app.wizard.launch_session import LaunchState
from app.wizard.layout import place
from app.wizard.problems import in_words
from backend.cluster.preflight.results import CheckResult
from backend.cluster.ssh.host_keys import HostKey
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import PreflightReport

STEP = "launch"
SSH_PORT = 22
_KEY_FILES = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}
"""Key type -> the part of the name of sshd's key file. Other types are ECDSA."""


def build(form: Form) -> None:
    """Build the step, which has no fields."""
    form.start(STEP)
    place("launch")
    place("secrets")


def data(state: DraftState, form: Form, services: Services) -> dict[str, Any]:
    """Return the state of the launch session for the current draft."""
    session = services.launch_session
    current = session.state()
    report = current.report
    job, source = state.job, continuing.launch_source(services)
    missing = current.missing_for(job)
    complete = state.can_launch and not continuing.load_problems(services, job)
    return {
        "launch": {
            "phase": "launched" if current.phase == "queued" and not session.is_waiting(current) else current.phase,
            "elapsed_s": round(services.clock() - current.since, 1),
            "version": current.version,
            "complete": complete,
            "told": list(services.recipients),
            "same": job is not None and (current.job, current.source) == (job, source),
            "ready": complete and current.is_green_for(job, source),
            "green": report is not None and not report.problems,
            "warnings": len(report.warnings) if report else 0,
            "run": current.run,
            "name": job.name if job else "",
            "nodes": job.cluster.nodes if job else 0,
            "scheduler": _scheduler(form, services, job, current),
            "problems": [_in_words(form, services, as_one(some)) for some in by_likeness(current.problems)],
            "copy": None if job is None or missing is None else copy_words(job, missing, form.lang),
            "install": job is not None and not current.is_busy and current.lacks_engine_for(job),
            "download": repository.id if (repository := current.downloadable_for(job)) else None,
            "pull": current.lacks_image_for(job),
            "pulled": list(current.pulled),
            "copied": list(current.copied) if current.phase == "installing" else [n >> 20 for n in current.copied],
            "keys": [shown_key(key) for key in report.unknown_host_keys] if report else [],
            "checks": _table(form, services, report.checks) if report and not _waits_for_keys(report) else None,
        }
    }


def _scheduler(form: Form, services: Services, job: Job | None, current: LaunchState) -> dict[str, Any] | None:
    """Return what Slurm says of the request, and of the job that it started. None for SSH nodes."""
    if job is None or job.cluster.scheduler is None:
        return None
    checks = current.report.checks if current.report and current.job == job else ()
    start = next((str(check.values["start"]) for check in checks if check.values.get("start")), "")
    said = services.controller.snapshot(current.run).scheduler if current.run else None
    return {
        "login": job.cluster.scheduler.login.host.name,
        "start": start.replace("T", " "),
        "said": scheduler_words(form.lang, said) if said else "",
    }


def act(services: Services, request: Mapping[str, Any]) -> LaunchState:
    """Act on the launch session; an unknown `act` only returns its state. Raises ProblemsError."""
    if request.get("act") == "accept":
        services.launch_session.accept([str(item) for item in request.get("fingerprints") or ()])
    if request.get("act") == "uncordon":
        services.controller.uncordon(str(request.get("node")))
    if request.get("act") == "install":
        state = read(services.draft.job_mapping(), services.home)
        if state.job is None:
            raise ProblemsError((*state.problems, *state.missing))
        services.launch_session.install(state.job, continuing.launch_source(services))
    elif request.get("act") in ("check", "copy", "pull", "download", "launch", "queue"):
        state = read(services.draft.job_mapping(), services.home)
        load_problems = continuing.load_problems(services, state.job)
        if state.job is None or not state.can_launch or load_problems:
            raise ProblemsError((*state.problems, *state.missing, *load_problems))
        session, source = services.launch_session, continuing.launch_source(services)
        if request["act"] in ("launch", "queue"):
            start = session.launch if request["act"] == "launch" else session.queue
            start(state.job, source, accepted=request.get("accepted"))
        else:
            getattr(session, request["act"])(state.job, source)
    return services.launch_session.state()


def shown_key(key: HostKey) -> dict[str, Any]:
    """Return a host key with the command that prints its fingerprint on the node itself.

    A port other than 22 may belong to another sshd with other key files, so the command asks that sshd.
    """
    kind = _KEY_FILES.get(key.key_type, "ecdsa")
    command = f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"
    if key.port != SSH_PORT:
        command = f"ssh-keyscan -t {kind} -p {key.port} 127.0.0.1 2>/dev/null | ssh-keygen -lf -"
    return {"host": key.host, "port": key.port, "type": key.key_type, "fingerprint": key.fingerprint,
            "command": command}  # fmt: skip


def _waits_for_keys(report: PreflightReport) -> bool:
    """Return whether unknown host keys are the only problems. Then nothing was checked yet."""
    return bool(report.unknown_host_keys) and all(p.code == "host_key_unknown" for p in report.problems)


def _table(form: Form, services: Services, checks: Sequence[CheckResult]) -> dict[str, Any]:
    """Return a table of checks by node, and the findings of the checks that did not pass."""
    names = list(dict.fromkeys(check.name for check in checks))
    nodes = {check.rank: check.node for check in checks}
    statuses = {(check.name, check.rank): check.status for check in checks}
    rows = [
        {"name": _name(form, name), "cells": [statuses.get((name, rank), "skipped") for rank in nodes]}
        for name in names
    ]
    return {"nodes": list(nodes.values()), "rows": rows, "findings": _findings(form, services, checks)}


def _findings(form: Form, services: Services, checks: Sequence[CheckResult]) -> list[dict[str, Any]]:
    """Return the findings. Nodes with the same finding share one entry."""
    grouped: dict[Hashable, list[CheckResult]] = {}
    for check in checks:
        if check.problem and check.problem.code != "host_key_unknown":
            grouped.setdefault((check.name, check.status, likeness(check.problem)), []).append(check)
    findings = []
    for alike in grouped.values():
        problem = as_one([check.problem for check in alike if check.problem])
        findings.append(
            {
                "check": _name(form, alike[0].name),
                "ranks": ", ".join(str(check.rank) for check in alike),
                "cordoned": alike[0].node if problem.code == "node_cordoned" and len(alike) == 1 else None,
                **_in_words(form, services, problem),
            }
        )
    return findings


def _in_words(form: Form, services: Services, problem: Problem) -> dict[str, Any]:
    """Return `in_words`, with the run that uses the node if this server knows that run."""
    run = str(problem.values.get("run", ""))
    with services.database.read() as reader:
        is_ours = bool(run) and reader.has_run(run)
    return {**in_words(form, problem), "run": run if is_ours else None}


def _name(form: Form, check: str) -> str:
    return t(form.lang, f"check.{check}")
