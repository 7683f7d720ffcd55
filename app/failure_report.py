"""A report of a run for people who are asked for help: the job, the events, the exits and the ends of the logs.

Secrets, addresses, user names and home folders are replaced, because such a report is posted in public.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping

import backend
from app.cli.output import to_json_data
from app.services import Services
from backend.job.job import Job
from backend.job.mapping import dump_job
from backend.job.problems import ProblemsError
from backend.runs.api import FileKey, decoded
from backend.runs.records import RunSnapshot
from backend.runs.redact import redact

LOG_BYTES = 256 << 10
"""Bytes of the end of each log."""
_HOME = re.compile(r"/(?:home|Users)/[^/\s\"']+")
_ADDRESS = re.compile(r"\b(?!127\.0\.0\.1\b)(?:\d{1,3}\.){3}\d{1,3}\b(?!\.\d)")


def failure_report(services: Services, run: str) -> bytes:
    """Return a zip with run.json, job.yaml and the logs of the newest attempt. Raises ProblemsError: unknown_run."""
    snapshot = services.controller.snapshot(run)
    buffer = io.BytesIO()
    with services.database.read() as reader:
        try:
            job: Job | None = reader.job(run)
        except ProblemsError:  # a run that was started elsewhere has no job
            job = None
    names = _names(snapshot, job)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in _files(services, snapshot, job):
            packed.writestr(f"{run}/{name}", _anonymous(text, names))
    return buffer.getvalue()


def _files(services: Services, run: RunSnapshot, job: Job | None) -> Iterator[tuple[str, str]]:
    with services.database.read() as reader:
        software = {node.rank: reader.versions(run.id, run.attempt, node.rank) for node in run.nodes}
    facts = {"megaboard": backend.__version__, "software": software, **to_json_data(run)}
    yield "run.json", json.dumps(facts, indent=1, ensure_ascii=False, default=str)
    if job is not None:
        yield "job.yaml", dump_job(job)
    for node in run.nodes:
        with services.database.read() as reader:
            for file in reader.log_files(run.id, run.attempt, node.rank):
                key = FileKey(run=run.id, attempt=run.attempt, rank=node.rank, file=file)
                _, data = reader.log_tail(key, size=LOG_BYTES)
                yield f"logs/node{node.rank}/{file}", decoded(data)


def _names(run: RunSnapshot, job: Job | None) -> Mapping[str, str]:
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


def _anonymous(text: str, names: Mapping[str, str]) -> str:
    text = redact(text)
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", names[name], text)
    return _ADDRESS.sub("<address>", _HOME.sub("/home/user", text))
