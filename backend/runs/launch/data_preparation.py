"""Preparation of the data before the ranks start: tokenisation, and the order of the seed where the job requests it.

Each node runs it before torchrun, under the same supervisor. So it is monitored and stopped like the training, and
survives the end of this process. Nodes that share node 0's disk wait for it; the others prepare their own data.
"""

import hashlib
import json
import posixpath
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from backend.cluster.inventory.software import NodeFacts, ask_program, needed_environment, outside
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import GroupError, on_all
from backend.cluster.node_programs import node_program
from backend.cluster.preflight.files import dataset_names
from backend.cluster.program_answers.data import Digest
from backend.engines import CONFIG, NodeCommand, Placement, Rendered
from backend.engines.data_keys import data_part
from backend.engines.yaml_text import to_yaml
from backend.job.job import Job
from backend.job.problems import ProblemsError

PROGRAMS = ("prepare_data.py", "tokenise.py")
FOLDER = "tokenized"
"""Below the job's output_dir, which nodes of a cluster usually share."""
CALL_S = 60.0
SKEW_S = 1800
"""Greatest delay between two nodes that both prepare their data. Supervisors treat a longer delay as a stall."""
VERSION = 1
"""Part of the hash in the data's name. Raise it when the same job is to be tokenised differently."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """The place of the data of a launch, and the nodes that prepare it if it is missing."""

    target: str
    """Folder of the tokenised data, absolute, equal on all nodes."""
    makers: Mapping[int, int]
    """Node rank -> the rank whose data it uses: its own or 0."""
    shuffle: int | None
    """Seed of the order; None: the order of the file."""


def prepared(
    job: Job, rendered: Rendered, placement: Placement, nodes: Mapping[int, Node], facts: Mapping[int, NodeFacts]
) -> Rendered:
    """Return the commands of the nodes, with the preparation first if the job requests it. Raises ProblemsError."""
    if not job.prepares_data:
        return rendered
    try:
        plan = make_plan(job, rendered, placement, nodes, facts)
    except NodeError as error:
        raise ProblemsError([error.problem]) from error
    except GroupError as error:
        raise ProblemsError(error.problems) from error
    return with_preparation(rendered, placement, plan)


def make_plan(
    job: Job, rendered: Rendered, placement: Placement, nodes: Mapping[int, Node], facts: Mapping[int, NodeFacts]
) -> Preparation:
    """Return where the data is prepared: its name is a hash of its inputs, and nodes that see node 0's disk share it.

    Raises NodeError.
    """
    base = f"{str(job.training.output_dir).rstrip('/')}/{FOLDER}"
    seed = job.training.seed if job.training.prepare.shuffle else None
    name = data_name(job, rendered, _digest_of_data(job, nodes[0]), facts[0].modules, seed)
    sharing = _nodes_that_see(base, nodes)
    makers = {rank: 0 if rank in sharing else rank for rank in nodes}
    return Preparation(target=f"{base}/{name}", makers=makers, shuffle=seed)


def data_name(job: Job, rendered: Rendered, digest: str, modules: Mapping[str, str | None], seed: int | None) -> str:
    """Return a hash of the inputs: files, configuration keys of the data, programs and order."""
    config = yaml.safe_load(rendered.files[CONFIG])
    inputs = (VERSION, digest, data_part(config, job.extra), job.traits.is_megatron, seed, sorted(modules.items()))
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def with_preparation(rendered: Rendered, placement: Placement, plan: Preparation) -> Rendered:
    """Run prepare_data.py before each command, and make the engine use its result."""
    settings = {"target": plan.target, "run": f"{placement.run_id}-{placement.attempt}", "shuffle": plan.shuffle}
    files = dict(rendered.files)
    files[CONFIG] += to_yaml({"tokenized_path": plan.target})
    files["prepare.json"] = json.dumps(settings, indent=1)
    files |= {name: node_program(name).decode() for name in PROGRAMS}
    alone = len(set(plan.makers.values())) == 1
    commands = tuple(
        _with_preparation(command, placement, plan.makers[command.rank], alone) for command in rendered.commands
    )
    return replace(rendered, files=files, commands=commands)


def _with_preparation(command: NodeCommand, placement: Placement, maker: int, alone: bool) -> NodeCommand:
    folder, python = placement.nodes[command.rank].folder, command.argv[0]
    gang = command.argv
    if not alone:  # torchrun waits 600 s for its other nodes
        gang = (*gang[:3], "--rdzv_conf", f"timeout={SKEW_S}", *gang[3:])
    argv = (python, f"{folder}/{PROGRAMS[0]}", folder, str(command.rank), str(maker), *gang)
    return replace(command, argv=argv)


def _digest_of_data(job: Job, node: Node) -> str:
    evaluated = str(job.eval_dataset or "")
    names = [*dataset_names(job), *(name.strip() for name in evaluated.split(",") if name.strip())]
    settings: dict[str, Any] = {
        "dataset_dir": job.training.dataset_dir, "datasets": names, "model": job.model.path
    }  # fmt: skip
    environment = outside(needed_environment(job, 0, node))
    return ask_program(node, environment, Digest, PROGRAMS[0], "digest", settings, CALL_S)["digest"]


def _nodes_that_see(base: str, nodes: Mapping[int, Node]) -> set[int]:
    """Return the nodes that see a file that node 0 has just written."""
    probe = posixpath.join(base, f".{secrets.token_hex(8)}")
    nodes[0].make_folder(base)
    nodes[0].write(probe, b"")
    try:
        answers = on_all(nodes, lambda rank, node: node.exists(probe), CALL_S)
    finally:
        nodes[0].run(["rm", "-f", "--", probe], timeout_s=CALL_S)
    return {rank for rank, is_there in answers.items() if is_there}
