"""Check that the engine's own argument parser accepts the rendered files on each node.

The parser takes seconds, mostly for the engine's import. So it runs once per machine, and an accepted configuration is
not parsed again while nothing of it changes.
"""

import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace

from backend.cluster.inventory.software import NodeFacts, ask_program, needed_environment
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import try_all
from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.cluster.preflight.readings import GangReadings
from backend.cluster.preflight.results import CheckResult, Checks
from backend.cluster.program_answers.checks import Parsed, Program
from backend.engines import ENGINES, Rendered
from backend.engines.known_keys import programs, read_key
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.problems import Problem
from backend.job.rules.extra import allow_code

PROGRAM = "engine_args.py"
PARSE_S = 120.0
"""The import of an engine from a slow shared disk can take a minute."""
_ONE_RANK = re.compile(r"NCCL_SOCKET_IFNAME|GLOO_SOCKET_IFNAME|.*_FILE")
"""Variables that differ between nodes and that no parser reads."""
_OF_IMPORTS = ("ImportError", "OSError", "RuntimeError")
_LIBRARY = re.compile(r"\.so\b")
_FAULTS = frozenset({"error", "packages", "gpu", "generation", "architecture"})
_NAMES_SHOWN = 8


def check_engine_args(gang: GangReadings) -> list[CheckResult]:
    """Check the files of a launch on the nodes whose engine check passed, once every node is ready."""
    able = {result.rank for result in gang.results if result.name == "engine" and result.status == "ok"}
    size = gang.job.cluster.nodes if gang.job.cluster.scheduler is None else 1  # the others are spares
    if gang.render is None or not able or not set(range(size)) <= gang.nodes.keys():
        return []
    nodes = {rank: gang.nodes[rank] for rank in able}
    return check_configuration(gang.job, gang.checks, nodes, gang.facts, gang.render(), gang.accepted)


def check_configuration(
    job: Job,
    checks: Mapping[int, Checks],
    nodes: Mapping[int, Node],
    facts: Mapping[int, NodeFacts],
    rendered: Rendered,
    accepted: AcceptedConfigurations,
) -> list[CheckResult]:
    """Check that the engine of each node accepts the rendered files. A failure has the engine's message."""
    environments = {command.rank: _variables(command.environment) for command in rendered.commands}
    environments |= {rank: environments[0] for rank in nodes if rank not in environments}  # of spares
    keys = {rank: _key(job, rank, facts[rank], rendered, environments[rank]) for rank in nodes}
    known_answers = accepted.answers()
    first = {key: rank for rank, key in reversed(keys.items()) if key not in known_answers}

    def work(rank: int, node: Node) -> Parsed:
        question = {"engine": job.traits.environment, "environment": environments[rank], "files": dict(rendered.files)}
        environment = needed_environment(job, rank, node)
        return ask_program(node, environment, Parsed, PROGRAM, "parse", question, PARSE_S)

    answers, failures = try_all({rank: nodes[rank] for rank in first.values()}, work, PARSE_S + 10)
    accepted.add({keys[rank]: answer for rank, answer in answers.items() if not _FAULTS & answer.keys()})
    by_key: dict[Hashable, Parsed | NodeError] = {**known_answers}
    by_key |= {keys[rank]: answer for rank, answer in answers.items()}
    by_key |= {keys[rank]: failure for rank, failure in failures.items()}
    return [_judge(job, checks[rank], by_key[key]) for rank, key in keys.items()]


def _judge(job: Job, checks: Checks, answer: Parsed | NodeError) -> CheckResult:
    if isinstance(answer, NodeError):
        if answer.code != "timeout":
            return checks.raised("configuration", answer)
        values = {"engine": job.engine, "seconds": round(PARSE_S)}
        return checks.warning("configuration", "engine_slow", "engine", **values)
    packages = "; ".join(f"{name}: {said}" for name, said in answer.get("packages", {}).items())
    if "error" in answer:
        message = " ".join(answer.get("message", "").split()) or answer["error"]
        if answer["error"] in _OF_IMPORTS and (packages or _LIBRARY.search(message)):
            return checks.wrong("configuration", "package_broken", "engine", packages=packages or message)
        if answer["error"] == "ClassMissingError":
            return checks.wrong("configuration", "model_class_missing", "model.path", path=job.model.path)
        if answer["error"] == "ArchitectureUnknownError":
            return checks.wrong("configuration", "architecture_unknown", "model.path", **_unknown(job, message))
        if answer["error"] == "CodeNotAllowedError":
            return checks.failed("configuration", _code_not_allowed(job, checks.node, message))
        field = field_of(job, message)
        return checks.wrong("configuration", "engine_refuses", field, engine=job.engine, said=message)
    if gpu := answer.get("gpu"):
        have, _, known = gpu.partition(": ")
        return checks.wrong("configuration", "gpu_without_code", "engine", gpu=have, known=known)
    if generation := answer.get("generation"):
        said = " ".join(generation.split())
        return checks.wrong("configuration", "generation_config_refused", "model.path", path=job.model.path, said=said)
    if architecture := answer.get("architecture"):  # A package of the model may register it.
        return checks.warning("configuration", "architecture_unknown", "model.path", **_unknown(job, architecture))
    if packages:  # The run may not need them.
        return checks.warning("configuration", "package_broken", "engine", packages=packages)
    result = checks.ok("configuration")
    return replace(result, problem=_other_keys(checks.node, answer.get("programs", {})))


def _unknown(job: Job, answer: str) -> dict[str, str | None]:
    """Return the values of the problem that transformers does not know an architecture."""
    version, _, model_type = answer.partition(" ")
    return {"path": job.model.path, "version": version, "model_type": model_type}


def _code_not_allowed(job: Job, node: str, code: str) -> Problem:
    values = {"node": node, "path": job.model.path, "code": code}
    return Problem(code="model_code_not_allowed", field="extra.trust_remote_code", node=node, values=values,
                   choices=allow_code(job))  # fmt: skip


def _other_keys(node: str, installed: Mapping[str, Program]) -> Problem | None:
    """Return a note where an installed program has other keys than the version that the files are for."""
    for name, program in installed.items():
        known = programs().get(name)
        if known is None:
            continue
        keys = {key: read_key(entry) for key, entry in program["keys"].items()}
        new, gone = keys.keys() - known.keys.keys(), known.keys.keys() - keys.keys()
        changed = {key for key in keys.keys() & known.keys.keys() if keys[key] != known.keys[key]}
        if new or gone or changed:
            values = {"program": name, "version": program["version"], "known": known.version, "node": node}
            names = {"new": _some(new), "gone": _some(gone), "changed": _some(changed)}
            return Problem(
                code="engine_keys_differ", field="engine", node=node, severity="note", values={**values, **names}
            )
    return None


def _some(names: Collection[str]) -> str:
    shown = sorted(names)[:_NAMES_SHOWN]
    return ", ".join([*shown, "..."] if len(names) > len(shown) else shown) or "-"


def field_of(job: Job, message: str) -> str:
    """Return the job path of the key that an engine's message names, or else the engine's."""
    owned = ENGINES[job.engine].owned
    keys = _named_keys(message, {*job.extra, *owned})
    for key in keys:
        if key in job.extra:
            return f"extra.{key}"
    return owned[keys[0]] if keys else "engine"


def _named_keys(message: str, keys: Collection[str]) -> list[str]:
    """Return the keys in a message: first those in quotes, then the others, each in the order of the message."""
    quoted = [word for word in re.findall(r"[`'\"](?:--)?(\w+)", message) if word in keys]
    plain = [word for word in re.findall(r"\w+", message.lower()) if word in keys]
    return quoted + plain


def _key(job: Job, rank: int, facts: NodeFacts, rendered: Rendered, variables: Mapping[str, str]) -> Hashable:
    """Return a key that is equal for nodes with one machine, one environment and one configuration."""
    machine = (
        (facts.machine, facts.hostname, facts.home) if facts.machine else (rank, job.cluster.connected_hosts[rank])
    )
    texts = (*sorted(rendered.files.items()), *sorted(variables.items()))
    modules = tuple(sorted((name, version or "") for name, version in facts.modules.items()))
    return str(machine), environment_of(job, rank), job.engine, texts, modules


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if not _ONE_RANK.fullmatch(name)}
