"""A report of a run for people who are asked for help: the job, the events, the exits and the ends of the logs.

Secrets, addresses, names of hosts and users, and home folders are replaced, because such a report is posted in public.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping

import backend
from app.anonymous import Names, anonymous_text, anonymous_value, names_in_list
from app.cli.output import to_json_data
from app.services import Services
from backend.job.job import Job
from backend.job.mapping import dump_job
from backend.job.problems import ProblemsError
from backend.runs.api import FileKey, decoded
from backend.runs.records import RunSnapshot
from backend.runs.redact import redact_value
from backend.runs.states import EventKind

LOG_BYTES = 256 << 10
"""Bytes of the end of each log."""


def failure_report(services: Services, run: str) -> bytes:
    """Return a zip with run.json, job.yaml and the logs of the newest attempt. Raises ProblemsError: unknown_run."""
    snapshot = services.controller.snapshot(run)
    buffer = io.BytesIO()
    with services.database.read() as reader:
        try:
            job: Job | None = reader.job(run)
        except ProblemsError:  # a run that was started elsewhere has no job
            job = None
        hostnames = reader.hostnames(run, snapshot.attempt)
    names = Names.of(_slurm_names(snapshot) | _host_names(hostnames, job) | _names(snapshot, job))
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"{run}/run.json", _facts(services, snapshot, names))
        for name, text in _files(services, snapshot, job):
            packed.writestr(f"{run}/{name}", anonymous_text(text, names))
    return buffer.getvalue()


def _facts(services: Services, run: RunSnapshot, names: Names) -> str:
    """Return the JSON of the run. Its texts are replaced before JSON escapes them, which joins `n` to the next word."""
    with services.database.read() as reader:
        software = {node.rank: reader.versions(run.id, run.attempt, node.rank) for node in run.nodes}
    facts = {"megaboard": backend.__version__, "software": software, **to_json_data(run)}
    return json.dumps(anonymous_value(redact_value(facts), names), indent=1, ensure_ascii=False)


def _files(services: Services, run: RunSnapshot, job: Job | None) -> Iterator[tuple[str, str]]:
    if job is not None:
        yield "job.yaml", dump_job(job)
    for node in run.nodes:
        with services.database.read() as reader:
            for file in reader.log_files(run.id, run.attempt, node.rank):
                key = FileKey(run=run.id, attempt=run.attempt, rank=node.rank, file=file)
                _, data = reader.log_tail(key, size=LOG_BYTES)
                yield f"logs/node{node.rank}/{_name_in_zip(file)}", decoded(data)


def _name_in_zip(file: str) -> str:
    """Return the name of a log without characters that lead to another folder. A node may have chosen the name."""
    return re.sub(r"[^\w .,+=@()-]|^\.", "_", file)


def _slurm_names(run: RunSnapshot) -> dict[str, str]:
    """Return each name of a compute node, and each list of nodes, that Slurm gave -> what replaces it."""
    lists = dict.fromkeys(
        str(event.detail.get("nodes") or "") for event in run.events if event.kind is EventKind.SCHEDULER
    )
    names = dict.fromkeys(name for nodes in lists for name in names_in_list(nodes))
    own = {name: f"compute{number}" for number, name in enumerate(names)}
    return {nodes: "compute nodes" for nodes in lists if nodes} | own


def _host_names(hostnames: Mapping[int, str], job: Job | None) -> dict[str, str]:
    """Return each own name of a machine, whole and without its domain -> what replaces it."""
    is_login = job is not None and job.cluster.scheduler is not None
    own = {name: "login" if is_login else f"node{rank}" for rank, name in hostnames.items()}
    own |= {name.partition(".")[0]: replacement for name, replacement in own.items()}
    return {name: replacement for name, replacement in own.items() if name not in ("", "localhost")}


def _names(run: RunSnapshot, job: Job | None) -> dict[str, str]:
    """Return each name of a node, user or key file -> what replaces it."""
    names = {node.address: f"node{node.rank}" for node in run.nodes}
    hosts = [(f"node{rank}", host) for rank, host in enumerate(job.cluster.hosts)] if job else []
    if job and job.cluster.scheduler:
        hosts.append(("login", job.cluster.scheduler.login.host))
        names |= {name: "account" for name in (job.cluster.scheduler.account,) if name}
    for own, host in hosts:
        names |= {host.address: own}
        names |= {name: own for name in (host.fabric_address,) if name}
        names |= {name: "user" for name in (host.user,) if name}
        names |= {name: "key" for name in (host.identity_file,) if name}
        names |= {name: "jump" for name in (host.proxy_jump,) if name}
    return names
