"""The checks that all nodes are alike: who differs from most is named, with the command that makes it equal."""

import posixpath
from collections.abc import Callable, Hashable, Mapping
from typing import Literal, TypeVar

from backend.cluster.inventory.hardware import Survey
from backend.cluster.inventory.software import NodeFacts, needed_modules, python_field
from backend.cluster.node import NodeError
from backend.cluster.preflight.fix_commands import (
    MCORE_ADAPTER,
    copy_command,
    install_command,
    pip_command,
    remove_command,
)
from backend.cluster.preflight.results import CheckName, CheckResult, Checks
from backend.cluster.program_answers import Prints, Seen
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.presets import resolve_model

_NAMES_SHOWN = 4

T = TypeVar("T", bound=Hashable)


def usual(values: Mapping[int, T]) -> T:
    """What most nodes have; of two that are as frequent that of the first node."""
    counts: dict[T, int] = {}
    for value in values.values():
        counts[value] = counts.get(value, 0) + 1
    return max(counts, key=lambda value: counts[value])


def check_engine(job: Job, checks: Checks, facts: NodeFacts) -> CheckResult:
    """Whether the environment has all that the engine imports, and experts that run together."""
    missing = [module for module, version in facts.modules.items() if version is None]
    if not missing:
        transformers = facts.modules.get("transformers") or ""
        if _loops_over_experts(job, transformers):
            place = python_field(job, checks.rank)
            return checks.warning("engine", "experts_looped", place, transformers=transformers, engine=job.engine)
        return checks.ok("engine", **facts.modules)
    field, values = python_field(job, checks.rank), {"modules": missing, "engine": job.engine}
    names = needed_modules(job)
    wanted = [MCORE_ADAPTER if module == "mcore_adapter" else names[module] for module in missing]
    command = pip_command(environment_of(job, checks.rank), wanted)
    # PyPI's package of this name brings no such module.
    hollow = "mcore_adapter" in missing and "mcore_adapter" in facts.origins
    code = "engine_placeholder" if hollow else "engine_missing"
    return checks.wrong("engine", code, field, **values, command=command)


def _loops_over_experts(job: Job, transformers: str) -> bool:
    """transformers 4 runs experts one after the other, in Python (4.57.6 models/qwen3_moe/modeling_qwen3_moe.py); 5 as
    one product (5.6.0 modeling_utils.py get_correct_experts_implementation: grouped_mm).
    """
    return transformers.startswith("4.") and not job.traits.is_megatron and resolve_model(job.model).experts > 0


def check_versions(job: Job, checks: Mapping[int, Checks], facts: Mapping[int, NodeFacts]) -> list[CheckResult]:
    """Whether all nodes have the same packages; those that differ from most are named."""
    modules = next(iter(facts.values())).modules
    # A module that is missing is the engine check's to tell.
    most = {
        name: usual({rank: version for rank, node in facts.items() if (version := node.modules.get(name))} or {0: ""})
        for name in modules
    }
    models = {name: next((n for n in facts.values() if n.modules.get(name) == most[name]), None) for name in modules}
    results = []
    for rank, node in facts.items():
        odd = [name for name, version in node.modules.items() if version and version != most[name]]
        if not odd:
            results.append(checks[rank].ok("versions", **node.modules))
            continue
        here, there = (", ".join(f"{name} {of[name]}" for name in odd) for of in (node.modules, most))
        origins = {name: model.origins[name] for name in odd if (model := models[name]) and name in model.origins}
        command = install_command(job, rank, odd, origins, node.origins)
        field = f"cluster.hosts[{rank}].environments"
        results.append(
            checks[rank].wrong("versions", "versions_differ", field, here=here, others=there, command=command)
        )
    return results


def check_machines(
    checks: Mapping[int, Checks], facts: Mapping[int, NodeFacts], found: Mapping[int, Survey]
) -> list[CheckResult]:
    """Whether all nodes have the same GPUs, driver, NCCL and Python: the slowest and the oldest hold up the others.

    And whether two of them are one machine that goes by two names.
    """
    if len(facts) < 2:
        return []
    described = {rank: _described(facts[rank], found.get(rank)) for rank in facts}
    keys = next(iter(described.values()))
    most = {key: usual({rank: of[key] for rank, of in described.items()}) for key in keys}
    results = []
    owners: dict[str, int] = {}
    for rank, own in described.items():
        odd = [key for key in keys if own[key] != most[key] and own[key] and most[key]]
        survey, field = found.get(rank), f"cluster.hosts[{rank}].address"
        firsts = [owners.setdefault(gpu.uuid, rank) for gpu in (survey.gpus.gpus if survey else ())]
        first = min(firsts, default=rank)
        if first != rank:
            results.append(checks[rank].warning("machines", "same_machine", field, first=checks[first].node))
        elif odd:
            here, there = (", ".join(of[key] for key in odd) for of in (own, most))
            results.append(checks[rank].warning("machines", "machines_differ", field, here=here, others=there))
        else:
            results.append(checks[rank].ok("machines", **own))
    return results


def _described(facts: NodeFacts, found: Survey | None) -> dict[str, str]:
    gpus = found.gpus.gpus if found else ()
    names = sorted({gpu.name for gpu in gpus})
    return {
        "python": "Python " + ".".join(facts.python.split(".")[:2]),
        "nccl": f"NCCL {facts.nccl}" if facts.nccl else "",
        "gpus": f"{len(gpus)} × {' / '.join(names)}" if gpus else "",
        "driver": f"driver {gpus[0].driver}" if gpus else "",
    }


def check_prints(job: Job, checks: Mapping[int, Checks], prints: Mapping[int, Prints | NodeError]) -> list[CheckResult]:
    """Whether the model and the data are the same files on all nodes; what a node lacks is told by other checks."""
    folder = str(job.model.path)
    results = _check_files(
        job, checks, prints, "model", "model_equal", "model.path", lambda n: posixpath.join(folder, n)
    )
    return results + _check_files(job, checks, prints, "data", "data_equal", "training.dataset", _data_path)


def _data_path(name: str) -> str:
    """A description is told by the file it stands in."""
    return name.partition(": ")[0]


def _check_files(
    job: Job,
    checks: Mapping[int, Checks],
    prints: Mapping[int, Prints | NodeError],
    part: Literal["model", "data"],
    name: CheckName,
    field: str,
    path_of: Callable[[str], str],
) -> list[CheckResult]:
    broken = [checks[rank].raised(name, one) for rank, one in prints.items() if isinstance(one, NodeError)]
    known = {rank: one.get(part) for rank, one in prints.items() if not isinstance(one, NodeError)}
    found = {rank: files for rank, files in known.items() if files}
    if len(found) < 2:
        return broken
    whole = {rank: tuple(sorted(files.items())) for rank, files in found.items()}
    most = usual(whole)
    source = next(rank for rank, files in whole.items() if files == most)
    results = []
    for rank, files in found.items():
        differ = sorted(key for key, _ in set(most) - set(whole[rank]))
        extra = sorted(files.keys() - dict(most).keys())
        if not differ and not extra:
            results.append(checks[rank].ok(name, files=len(files)))
            continue
        paths = list(dict.fromkeys(path_of(key) for key in differ or extra))
        command = copy_command(job.cluster.hosts[source], paths) if differ else remove_command(paths)
        shown = [posixpath.basename(path) for path in paths[:_NAMES_SHOWN]] + ["..."] * (len(paths) > _NAMES_SHOWN)
        code = "model_differs" if name == "model_equal" else "data_differs"
        values = {"names": shown, "count": len(paths), "source": checks[source].node, "command": command}
        results.append(checks[rank].wrong(name, code, field, **values))
    return results + broken


def check_shared(job: Job, checks: Mapping[int, Checks], seen: Mapping[int, Seen | NodeError]) -> list[CheckResult]:
    """Whether all nodes see the file that node 0 has written into output_dir; `seen` is without node 0."""
    results = [checks[0].ok("output_shared")] if seen else []
    for rank, answer in seen.items():
        of = checks[rank]
        if isinstance(answer, NodeError):
            results.append(of.raised("output_shared", answer))
        elif answer["seen"]:
            results.append(of.ok("output_shared"))
        else:
            values = {"path": job.training.output_dir, "first": checks[0].node, "engine": job.engine}
            results.append(of.warning("output_shared", "output_not_shared", "training.output_dir", **values))
    return results
