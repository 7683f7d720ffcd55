"""The engine's own word in the preflight: its argument parser reads the rendered files on each node before torchrun.

It takes seconds, most of which the engine needs to be imported, so nodes that are one machine are asked once, and a
configuration that was taken is not asked about again while nothing of it has changed.
"""

import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace

from backend.cluster.inventory.software import NodeFacts, ask_program, needed_environment
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import try_all
from backend.cluster.preflight.results import CheckResult, Checks
from backend.cluster.program_answers import Parsed, Program
from backend.engines import ENGINES, Rendered
from backend.engines.known_keys import programs, read_key
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.problems import Problem

ENGINE_WORD = "engine_args.py"
PARSE_S = 120.0
"""Importing an engine from a slow shared disk takes a minute at times."""
_ONE_RANK = re.compile(r"NCCL_SOCKET_IFNAME|GLOO_SOCKET_IFNAME|.*_FILE")
"""Variables that differ between nodes, and mean nothing to a parser."""
_REMEMBERED = 64
_NAMES_SHOWN = 8

_taken: dict[Hashable, Parsed] = {}
"""What was asked in this process and taken, with the answer."""


def check_configuration(
    job: Job,
    checks: Mapping[int, Checks],
    nodes: Mapping[int, Node],
    facts: Mapping[int, NodeFacts],
    rendered: Rendered,
) -> list[CheckResult]:
    """Whether the engine of each node takes the rendered files, in its own words where it does not."""
    environments = {command.rank: _variables(command.environment) for command in rendered.commands}
    keys = {rank: _key(job, rank, facts[rank], rendered, environments[rank]) for rank in nodes}
    # As it is now: it may be cleared before all have answered.
    taken = dict(_taken)
    first = {key: rank for rank, key in reversed(keys.items()) if key not in taken}

    def work(rank: int, node: Node) -> Parsed:
        wanted = {"engine": job.traits.environment, "environment": environments[rank], "files": dict(rendered.files)}
        environment = needed_environment(job, rank, node)
        return ask_program(node, environment, Parsed, ENGINE_WORD, "parse", wanted, PARSE_S)

    answers, failures = try_all({rank: nodes[rank] for rank in first.values()}, work, PARSE_S + 10)
    _remember({keys[rank]: answer for rank, answer in answers.items() if "error" not in answer})
    heard: dict[Hashable, Parsed | NodeError] = {**taken}
    heard |= {keys[rank]: answer for rank, answer in answers.items()}
    heard |= {keys[rank]: failure for rank, failure in failures.items()}
    return [_judge(job, checks[rank], heard[key]) for rank, key in keys.items()]


def _judge(job: Job, checks: Checks, answer: Parsed | NodeError) -> CheckResult:
    if isinstance(answer, NodeError):
        if answer.code != "timeout":
            return checks.raised("configuration", answer)
        values = {"engine": job.engine, "seconds": round(PARSE_S)}
        return checks.warning("configuration", "engine_slow", "engine", **values)
    if "error" in answer:
        said = " ".join(answer.get("message", "").split()) or answer["error"]
        return checks.wrong("configuration", "engine_refuses", field_of(job, said), engine=job.engine, said=said)
    result = checks.ok("configuration")
    return replace(result, problem=_other_keys(checks.node, answer.get("programs", {})))


def _other_keys(node: str, told: Mapping[str, Program]) -> Problem | None:
    """A note where an installed program takes other keys than the one that the files are written for."""
    for name, program in told.items():
        known = programs().get(name)
        if known is None:
            continue
        there = {key: read_key(entry) for key, entry in program["keys"].items()}
        new, gone = there.keys() - known.keys.keys(), known.keys.keys() - there.keys()
        changed = {key for key in there.keys() & known.keys.keys() if there[key] != known.keys[key]}
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
    """The job path that an engine's words are about: that of the key they name, else the engine's."""
    owned = ENGINES[job.engine].owned
    named = _named_keys(message, {*job.extra, *owned})
    for key in named:
        if key in job.extra:
            return f"extra.{key}"
    return owned[named[0]] if named else "engine"


def _named_keys(message: str, keys: Collection[str]) -> list[str]:
    """The keys in a message: those in quotes first, then in the order of their mention."""
    quoted = [word for word in re.findall(r"[`'\"](?:--)?(\w+)", message) if word in keys]
    plain = [word for word in re.findall(r"\w+", message.lower()) if word in keys]
    return quoted + plain


def _key(job: Job, rank: int, facts: NodeFacts, rendered: Rendered, variables: Mapping[str, str]) -> Hashable:
    """Equal for nodes that must answer the same: one machine, one environment, one configuration."""
    place = (facts.machine, facts.hostname, facts.home) if facts.machine else (rank, job.cluster.hosts[rank])
    texts = (*sorted(rendered.files.items()), *sorted(variables.items()))
    modules = tuple(sorted((name, version or "") for name, version in facts.modules.items()))
    return str(place), environment_of(job, rank), job.engine, texts, modules


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if not _ONE_RANK.fullmatch(name)}


def _remember(answers: Mapping[Hashable, Parsed]) -> None:
    if len(_taken) > _REMEMBERED:
        _taken.clear()
    _taken.update(answers)
