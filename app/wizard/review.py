"""Step 5: preview of exactly what will run: the job file, the engine's files, each node's command."""

import io
import json
import shlex
import zipfile
from collections.abc import Mapping
from typing import Any

from app.services import Services
from app.text import t
from app.wizard.draft_state import DraftState
from app.wizard.fields import Form
from app.wizard.hosts import node_name
from app.wizard.layout import place
from app.wizard.problems import in_words
from backend.engines import NodeCommand, NodePlacement, Placement, export, render
from backend.engines.slurm import MASTER_ADDRESS, MASTER_PORT, SCRIPT, with_allocation
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.mapping import dump_job, to_mapping
from backend.job.problems import ProblemsError
from backend.runs.api import batch_of

STEP = "review"
RUN = "RUN-ID"
"""Placeholder of the run's id in the preview. The launch makes the real id."""


def build(form: Form) -> None:
    """Build the step, which has no fields."""
    form.start(STEP)
    place("review")


def data(state: DraftState, form: Form, services: Services) -> dict[str, Any]:
    """Return job file, engine files, environment and one command per node, or the problems that prevent them."""
    job = state.job
    if job is None or not state.is_sound:
        return {"review": None}
    # YAML has dates, JSON does not.
    as_json = json.dumps(to_mapping(job), ensure_ascii=False, indent=2, default=str)
    review: dict[str, Any] = {"job": dump_job(job), "json": as_json, "complete": False}
    if state.can_launch:
        try:
            source = services.draft.source
            placement = sample_placement(job, source.folder if source else None)
            rendered = render(job, placement)
        except ProblemsError as error:
            return {"review": {**review, "problems": [in_words(form, problem) for problem in error.problems]}}
        files, commands = dict(rendered.files), rendered.commands
        if job.cluster.scheduler is not None:
            files[SCRIPT] = batch_of(job, placement, [placement.master_port])
            commands = with_allocation(rendered).commands[:1]
        review |= {
            "complete": True,
            "files": [{"name": name, "text": text} for name, text in files.items()],
            "scheduler": job.cluster.scheduler is not None,
            "commands": [_command(job, command, form.lang) for command in commands],
            "environment": [list(item) for item in sorted(_common_environment(rendered.commands).items())],
            "notes": [in_words(form, note) for note in rendered.notes],
        }
    return {"review": review}


def sample_placement(job: Job, checkpoint: str | None = None) -> Placement:
    """Return the placement of a run of this job, with `RUN-ID` as its id and the first port of the range."""
    nodes = []
    for rank, host in enumerate(job.cluster.connected_hosts):
        environment = environment_of(job, rank)
        if environment is None:
            raise ProblemsError([])
        folder = f"{job.cluster.run_root}/{RUN}/1/node{rank}"
        nodes.append(NodePlacement(rank=rank, folder=folder, python=environment.python, setup=environment.setup,
                               address=host.address))  # fmt: skip
    master = job.cluster.connected_hosts[0].dialled_address
    port = job.cluster.port_range[0]
    return Placement(
        run_id=RUN, attempt=1, master_address=master, master_port=port, nodes=tuple(nodes), checkpoint=checkpoint
    )


def archive(job: Job, checkpoint: str | None = None) -> bytes:
    """Return a zip of the job file and the files that launch it without Megaboard.

    Raises ProblemsError from `export`.
    """
    files = {"job.yaml": dump_job(job), **export(job, checkpoint=checkpoint)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in files.items():
            entry = zipfile.ZipInfo(f"{job.name}/{name}")
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            packed.writestr(entry, text)
    return buffer.getvalue()


def _command(job: Job, command: NodeCommand, lang: str) -> dict[str, Any]:
    is_by_slurm = job.cluster.scheduler is not None
    node = t(lang, "wizard.review.each_node") if is_by_slurm else node_name(job.cluster.hosts[command.rank])
    label = node if is_by_slurm else f"{command.rank} · {node}"
    text = shlex.join(command.argv)
    if is_by_slurm:
        for variable in (MASTER_ADDRESS, MASTER_PORT):
            text = text.replace(variable, f'"${variable}"')
        text = text.replace(f"/node{command.rank}", '/node"$SLURM_NODEID"')
    return {"rank": command.rank, "node": node, "label": label, "text": text}


def _common_environment(commands: tuple[NodeCommand, ...]) -> Mapping[str, str]:
    return commands[0].environment if commands else {}
