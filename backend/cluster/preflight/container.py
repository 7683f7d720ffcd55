"""Check of the container image that has the engine: every node has it, with the same content."""

from backend.cluster.inventory.software import container_command, needed_environment, refused_container, with_setup
from backend.cluster.node import Node, NodeError, ask
from backend.cluster.node_group import ends_of_all
from backend.cluster.preflight.equality import usual
from backend.cluster.preflight.readings import GangReadings
from backend.cluster.preflight.results import CheckResult
from backend.cluster.program_answers.checks import Image
from backend.cluster.typed_json import answer_of
from backend.job.job import Job
from backend.job.launch_rules import environment_of

IMAGE_S = 60.0
"""The runtime is asked twice, and may take 20 s each time."""


def check_image(gang: GangReadings) -> list[CheckResult]:
    """Check that the image has the same content on all nodes. The nodes that differ from most nodes fail."""
    environments = {rank: environment_of(gang.job, rank) for rank in gang.nodes}
    nodes = {
        rank: gang.nodes[rank] for rank, environment in environments.items() if environment and environment.container
    }
    answers = ends_of_all(nodes, lambda rank, node: ask_image(gang.job, rank, node), IMAGE_S + 10)
    images = {rank: answer["image"] for rank, answer in answers.items() if not isinstance(answer, NodeError)}
    most = usual(images) if images else ""
    results = []
    for rank, answer in answers.items():
        checks = gang.checks[rank]
        if isinstance(answer, NodeError):
            results.append(checks.raised("container", answer))
        elif images[rank] != most:
            values = {"here": images[rank], "others": most}
            results.append(checks.wrong("container", "container_image_differs", "cluster.environments", **values))
        else:
            results.append(checks.ok("container", image=images[rank]))
    return results


def ask_image(job: Job, rank: int, node: Node) -> Image:
    """Return which image a node has. Raises NodeError if it has none, or if its runtime does not answer."""
    environment = needed_environment(job, rank, node)
    container = environment.container
    if container is None:
        return {"image": ""}
    argv = with_setup(environment, container_command("container-facts", container))
    answer = answer_of(node.name, Image, ask(node, argv, timeout_s=IMAGE_S))
    if error := refused_container(environment, node.name, answer.get("refusal"), answer.get("detail", "")):
        raise error
    return answer
