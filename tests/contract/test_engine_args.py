"""Real LLaMA-Factory on real nodes: a configuration that it would refuse at the start is refused by preflight, at its
field."""

from collections.abc import Iterator

import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.inventory.software import NodeFacts, read_all_software
from backend.cluster.node import Node
from backend.cluster.node_group import on_all
from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.cluster.preflight.engine_args import check_configuration
from backend.cluster.preflight.results import Checks
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.node import connect
from backend.engines import render
from backend.job.job import Job
from backend.job.problems import Problem
from tests.cluster.jobs import make_job
from tests.engines.jobs import place
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, needs_node_environment]


@pytest.fixture(scope="module")
def node(cluster: LocalNodes, known_hosts: KnownHosts) -> Iterator[Node]:
    connected = on_all(cluster.hosts()[:1], lambda rank, host: connect(host, known_hosts), 30)
    yield connected[0]
    connected[0].close()


def verdict(cluster: LocalNodes, node: Node, **parts: object) -> Problem | None:
    """Return the problem of a job on one CPU node; None if LLaMA-Factory accepts it."""
    mapping = cluster.cluster_mapping(str(NODE_PYTHON))
    machines = {**mapping, "gpu": "cpu", "nodes": 1, "hosts": mapping["hosts"][:1]}
    training = {"precision": "fp32", **dict(parts.pop("training", {}))}  # type: ignore[call-overload]
    job: Job = make_job(nodes=1, cluster=machines, training=training, **parts)
    facts = {rank: fact for rank, fact in read_all_software(job, {0: node}).items() if isinstance(fact, NodeFacts)}
    rendered, accepted = render(job, place(job)), AcceptedConfigurations()
    (result,) = check_configuration(job, {0: Checks(0, node.name)}, {0: node}, facts, rendered, accepted)
    return result.problem


def test_what_llamafactory_takes_passes(cluster: LocalNodes, node: Node) -> None:
    assert verdict(cluster, node, training={"template": "qwen3"}) is None


def test_what_deepspeeds_own_loader_takes_passes(cluster: LocalNodes, node: Node) -> None:
    assert verdict(cluster, node, engine="llamafactory-zero3-offload", training={"template": "qwen3"}) is None


def test_an_unknown_template_and_an_unknown_key_are_refused_at_their_field(cluster: LocalNodes, node: Node) -> None:
    template = verdict(cluster, node, training={"template": "nonsense"})
    assert template is not None
    assert (template.code, template.field, template.node) == ("engine_refuses", "training.template", node.name)
    key = verdict(cluster, node, extra={"no_such_argument": 1})
    assert key is not None
    assert (key.field, "no_such_argument" in str(key.values["said"])) == ("extra.no_such_argument", True)
