"""Step 6: check the nodes, confirm their host keys, start the run; a launch needs a green check of this very draft."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.services import Services
from app.text import t
from app.text.copies import copy_words
from app.wizard import continuing
from app.wizard.draft_state import Reading, read
from app.wizard.fields import Form
from app.wizard.launch_session import Desk, DeskState, desk_of
from app.wizard.layout import place
from app.wizard.problems import in_words
from backend.cluster.preflight.results import CheckResult
from backend.cluster.ssh.host_keys import HostKey
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import PreflightReport

STEP = "launch"
SSH_PORT = 22
_KEY_FILES = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}
"""Key type -> the part of the name of sshd's key file; the rest are ECDSA."""


def build(form: Form) -> None:
    """The step has no widgets of its own."""
    form.start(STEP)
    place("launch")
    place("secrets")


def data(reading: Reading, form: Form, services: Services) -> dict[str, Any]:
    """What the desk knows, seen from the draft as it is now."""
    state = desk(services).state()
    report = state.report
    job, source = reading.job, continuing.chosen(services)
    missing = state.missing_for(job)
    complete = reading.can_launch and not continuing.against(services, job)
    return {
        "launch": {
            "phase": "launched" if state.phase == "queued" and not desk(services).waits(state) else state.phase,
            "elapsed_s": round(services.clock() - state.since, 1),
            "version": state.version,
            "complete": complete,
            "told": list(services.told),
            "same": job is not None and (state.job, state.source) == (job, source),
            "ready": complete and state.is_green_for(job, source),
            "green": report is not None and not report.problems,
            "warnings": len(report.warnings) if report else 0,
            "run": state.run,
            "name": job.name if job else "",
            "nodes": job.cluster.nodes if job else 0,
            "problems": [_in_words(form, services, problem) for problem in state.problems],
            "copy": None if job is None or missing is None else copy_words(job, missing, form.lang),
            "copied": [size >> 20 for size in state.copied],
            "keys": [shown_key(key) for key in report.unknown_host_keys] if report else [],
            "checks": _table(form, services, report.checks) if report and not _waits_for_keys(report) else None,
        }
    }


def act(services: Services, asked: Mapping[str, Any]) -> DeskState:
    """Do what a button asks: check, accept, copy, launch or queue; anything else only looks. Raises ProblemsError."""
    if asked.get("act") == "accept":
        desk(services).accept([str(item) for item in asked.get("fingerprints") or ()])
    if asked.get("act") in ("check", "copy", "launch", "queue"):
        reading = read(services.draft.job_mapping(), services.home)
        unfit = continuing.against(services, reading.job)
        if reading.job is None or not reading.can_launch or unfit:
            raise ProblemsError((*reading.problems, *reading.missing, *unfit))
        at, source = desk(services), continuing.chosen(services)
        if asked["act"] in ("launch", "queue"):
            begin = at.launch if asked["act"] == "launch" else at.queue
            begin(reading.job, source, accepted=asked.get("accepted"))
        else:
            {"check": at.check, "copy": at.copy}[asked["act"]](reading.job, source)
    return desk(services).state()


def desk(services: Services) -> Desk:
    """The server's one launch desk."""
    return desk_of(services.controller, services.clock)


def shown_key(key: HostKey) -> dict[str, Any]:
    """A host key with the command that prints its fingerprint on the node itself.

    At another port than 22 it may be another sshd than the machine's own, with keys elsewhere: that one is asked.
    """
    kind = _KEY_FILES.get(key.key_type, "ecdsa")
    command = f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"
    if key.port != SSH_PORT:
        command = f"ssh-keyscan -t {kind} -p {key.port} 127.0.0.1 2>/dev/null | ssh-keygen -lf -"
    return {"host": key.host, "port": key.port, "type": key.key_type, "fingerprint": key.fingerprint,
            "command": command}  # fmt: skip


def _waits_for_keys(report: PreflightReport) -> bool:
    """Whether unknown host keys are all that is wrong: then nothing was checked yet."""
    return bool(report.unknown_host_keys) and all(p.code == "host_key_unknown" for p in report.problems)


def _table(form: Form, services: Services, checks: Sequence[CheckResult]) -> dict[str, Any]:
    """The checks as a table of check by node, and what there is to say about those that are not well."""
    names = list(dict.fromkeys(check.name for check in checks))
    nodes = {check.rank: check.node for check in checks}
    found = {(check.name, check.rank): check.status for check in checks}
    rows = [
        {"name": _name(form, name), "cells": [found.get((name, rank), "skipped") for rank in nodes]} for name in names
    ]
    return {"nodes": list(nodes.values()), "rows": rows, "findings": _findings(form, services, checks)}


def _findings(form: Form, services: Services, checks: Sequence[CheckResult]) -> list[dict[str, Any]]:
    """What is wrong, once for all nodes where the same is wrong."""
    grouped: dict[Hashable, list[CheckResult]] = {}
    for check in checks:
        if check.problem and check.problem.code != "host_key_unknown":
            values = {name: str(value) for name, value in check.problem.values.items() if name != "node"}
            key = (check.name, check.problem.code, tuple(sorted(values.items())))
            grouped.setdefault(key, []).append(check)
    return [
        {"check": _name(form, alike[0].name), "ranks": ", ".join(str(check.rank) for check in alike),
         **_in_words(form, services, _of_all(alike[0].problem, [check.node for check in alike]))}
        for alike in grouped.values() if alike[0].problem
    ]  # fmt: skip


def _in_words(form: Form, services: Services, problem: Problem) -> dict[str, Any]:
    """As words.in_words, with the run that a node is in use by, where that has a page of its own here."""
    run = str(problem.values.get("run", ""))
    with services.database.read() as reader:
        is_ours = bool(run) and reader.has_run(run)
    return {**in_words(form, problem), "run": run if is_ours else None}


def _of_all(problem: Problem, nodes: Sequence[str]) -> Problem:
    """The problem with the names of all nodes that have it."""
    return replace(problem, values={**problem.values, "node": ", ".join(nodes)})


def _name(form: Form, check: str) -> str:
    return t(form.lang, f"check.{check}")
