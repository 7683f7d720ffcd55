"""Checks of the packages in the engine's environment, on one node and across nodes."""

import re
from collections.abc import Mapping

from backend.cluster.inventory.software import (
    NodeFacts,
    Origin,
    kernel_modules,
    metric_modules,
    needed_modules,
    optional_modules,
    python_field,
)
from backend.cluster.preflight.broken_versions import (
    BROKEN_VERSIONS,
    DEEPSPEED,
    case_of,
    counts_parameters_in_hooks,
    has_flash_attn,
    outside_ranges,
    transformers_for,
    unasked_transformers,
)
from backend.cluster.preflight.equality import named, usual
from backend.cluster.preflight.fix_commands import BUILT_WITH_TORCH, install_command, install_missing, pip_command
from backend.cluster.preflight.readings import GangReadings, NodeReadings
from backend.cluster.preflight.results import CheckResult
from backend.job.attention import (
    FLASH_ATTENTION,
    asked_of_llamafactory,
    needs_flash_attn,
    takes_flash_attention_if_installed,
)
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.presets import known_model
from backend.job.problems import Problem

SHOWN = ("transformers", "torch", "datasets", "trl", "llamafactory", "deepspeed", "swift")
"""Packages whose versions the texts of BROKEN_VERSIONS name."""


def check_engine(node: NodeReadings) -> list[CheckResult]:
    """Check that the environment has the modules that the engine imports, in versions that train, with fast kernels."""
    names = needed_modules(node.job)
    missing = {module: names[module] for module in names if node.facts.modules.get(module, "") is None}
    if missing:
        return [_lacks_modules(node, missing)]
    versions = {name: version or "" for name, version in node.facts.modules.items()}
    if failure := _breaks(node, versions):
        return [failure]
    # All of them: the user may accept one.
    warnings = [warning for check in _WARNINGS if (warning := check(node, versions))]
    return warnings or [node.checks.ok("engine", **node.facts.modules)]


def _lacks_modules(node: NodeReadings, missing: Mapping[str, str]) -> CheckResult:
    """Return the failure for modules that the engine imports and the node lacks: import name -> distribution."""
    job, checks = node.job, node.checks
    command = install_missing(environment_of(job, checks.rank), node.facts, missing)
    # PyPI's package of this name has no such module.
    is_placeholder = "mcore_adapter" in missing and "mcore_adapter" in node.facts.origins
    code = "engine_placeholder" if is_placeholder else "engine_missing"
    field, values = python_field(job, checks.rank), {"modules": [*missing], "engine": job.engine}
    return checks.wrong("engine", code, field, **values, command=command)


def _breaks(node: NodeReadings, versions: Mapping[str, str]) -> CheckResult | None:
    """Return the failure of the first package with which the job fails or trains wrongly; None without."""
    job, checks = node.job, node.checks
    for code, (is_broken, field, working) in BROKEN_VERSIONS.items():
        if is_broken(job, versions):
            command = pip_command(environment_of(job, checks.rank), node.facts, [working])
            installed = {name: versions.get(name, "") for name in SHOWN}
            return checks.wrong("engine", code, field, **installed, case=case_of(job), command=command)
    return None


def _is_slow(node: NodeReadings, versions: Mapping[str, str]) -> CheckResult | None:
    """Return the warning of a DeepSpeed whose backward passes take much longer than those of others; None without."""
    job, checks = node.job, node.checks
    if not counts_parameters_in_hooks(job, versions):
        return None
    command = pip_command(environment_of(job, checks.rank), node.facts, [DEEPSPEED])
    return checks.warning("engine", "deepspeed_hooks_slow", "engine", deepspeed=versions["deepspeed"], command=command)


def _is_not_of_the_type(node: NodeReadings, versions: Mapping[str, str]) -> CheckResult | None:
    """Return the warning that ms-swift asks for another transformers for the job's model; None if it does not."""
    job, checks = node.job, node.checks
    wanted = unasked_transformers(job, versions)
    if not wanted:
        return None
    environment, package = environment_of(job, checks.rank), f"transformers{transformers_for(wanted, versions)}"
    command = pip_command(environment, node.facts, [package])
    found = {"transformers": versions["transformers"], "wanted": wanted, "command": command}
    return checks.warning("engine", "transformers_of_type", "model.path", **found)


def _is_outside_ranges(node: NodeReadings, versions: Mapping[str, str]) -> CheckResult | None:
    """Return the warning of packages that ms-swift does not take, whatever the model; None without."""
    job, checks = node.job, node.checks
    outside = outside_ranges(job, versions)
    if not outside:
        return None
    packages = [f"{name}{wanted}" for name, wanted in outside.items()]
    command = pip_command(environment_of(job, checks.rank), node.facts, packages)
    installed = [f"{name} {versions[name]} ({wanted})" for name, wanted in outside.items()]
    values = {"swift": versions["swift"], "packages": installed, "command": command}
    return checks.warning("engine", "packages_outside_ranges", python_field(job, checks.rank), **values)


def _loops_over_experts(node: NodeReadings, versions: Mapping[str, str]) -> CheckResult | None:
    """Return the warning that this transformers runs experts one after the other; None if it does not.

    Version 4 has a Python loop (4.57.6 models/qwen3_moe/modeling_qwen3_moe.py). Version 5 has one grouped GEMM (5.6.0
    modeling_utils.py get_correct_experts_implementation).
    """
    job, checks, transformers = node.job, node.checks, versions.get("transformers", "")
    if not transformers.startswith("4.") or job.traits.is_megatron or not known_model(job.model).experts:
        return None
    values = {"transformers": transformers, "engine": job.engine}
    return checks.warning("engine", "experts_looped", python_field(job, checks.rank), **values)


def _lacks_kernels(node: NodeReadings, versions: Mapping[str, str]) -> CheckResult | None:
    """Return the warning of packages with faster kernels that the node lacks; None without."""
    job, checks, kernels = node.job, node.checks, kernel_modules(node.job)
    slow = {name: distribution for name, distribution in kernels.items() if not versions.get(name)}
    if not slow:
        return None
    command = install_missing(environment_of(job, checks.rank), node.facts, slow)
    field = python_field(job, checks.rank)
    return checks.warning("engine", "kernels_missing", field, modules=[*slow], command=command)


def _flash_attention_is_missing(node: NodeReadings, versions: Mapping[str, str]) -> CheckResult | None:
    """Return the warning that LLaMA-Factory trains with another attention than the job asks for; None if it does not.

    It then logs `FlashAttention-2 is not installed`, or -3 (0.9.5 model/model_utils/attention.py; 3: main, ff6d4d12e).
    Only eager attention, and the masks of neat_packing, need more memory than estimated.
    """
    job, checks = node.job, node.checks
    runs = "eager" if case_of(job) == "gemma2" else "SDPA"
    if "flash_attn_interface" in optional_modules(job):
        if versions.get("flash_attn_interface"):
            return None
        values = {"attention": "FlashAttention 3", "package": "flash-attn-3", "case": "fa3"}
        return checks.warning("engine", "flash_attn_not_installed", "extra", runs=runs, command="", **values)
    takes = takes_flash_attention_if_installed(job, known_model(job.model).model_type)
    is_asked = takes and asked_of_llamafactory(job) == FLASH_ATTENTION
    if not is_asked or "flash_attn" not in optional_modules(job) or has_flash_attn(versions):
        return None
    command = install_missing(environment_of(job, checks.rank), node.facts, optional_modules(job))
    values = {"attention": "FlashAttention 2", "package": "flash-attn", "case": runs}
    return checks.warning("engine", "flash_attn_not_installed", "extra", runs=runs, command=command, **values)


_WARNINGS = (
    _is_not_of_the_type,
    _is_outside_ranges,
    _is_slow,
    _loops_over_experts,
    _lacks_kernels,
    _flash_attention_is_missing,
)


def check_metrics(node: NodeReadings) -> list[CheckResult]:
    """Check, for a job that holds rows out, that its evaluation will have BLEU and ROUGE.

    Without them the run trains, and the evaluation has the answers only. So a lack is a note and prevents nothing.
    """
    job, checks = node.job, node.checks
    modules = metric_modules(job, checks.rank)
    if not modules or not (job.eval_size or job.eval_dataset):
        return []
    note = lacking_metrics(job, node.facts, checks.node)
    return [checks.skipped("metrics", note)] if note else [checks.ok("metrics", packages=", ".join(modules.values()))]


def lacking_metrics(job: Job, facts: NodeFacts, node: str) -> Problem | None:
    """Return a note on the packages that node 0 lacks to evaluate the job's model; None if it has all."""
    modules = metric_modules(job, 0)
    lacking = [modules[module] for module in modules if facts.metrics.get(module) is None]
    if not lacking:
        return None
    values = {"node": node, "modules": lacking, "command": pip_command(environment_of(job, 0), facts, lacking)}
    return Problem(code="metrics_missing", field=python_field(job, 0), severity="note", node=node, values=values)


def check_versions(gang: GangReadings) -> list[CheckResult]:
    """Check that all nodes have the same packages. The nodes that differ from most nodes fail."""
    facts = gang.facts
    if not facts:
        return []
    # The engine check reports a module that is missing.
    present = {
        name: {rank: _compared(name, version) for rank, node in facts.items() if (version := node.modules.get(name))}
        for name in next(iter(facts.values())).modules
    }
    # Module -> the first node with the version of most nodes.
    models = {
        name: facts[next(rank for rank, version in versions.items() if version == usual(versions))]
        for name, versions in present.items()
        if versions
    }
    results = []
    for rank, node in facts.items():
        # A table of nodes shows the last status: the failure.
        unlike = [*_packages_on_some_nodes(gang, rank, models), *_other_versions(gang, rank, models)]
        results += unlike or [gang.checks[rank].ok("versions", **node.modules)]
    return results


def _compared(module: str, version: str) -> str:
    """Return the part of a version that nodes must share.

    A local build of such a package names torch and CUDA behind `+`. torch has a version of its own.
    """
    return re.sub(r"\+\S*", "", version) if module in BUILT_WITH_TORCH else version


def _other_versions(gang: GangReadings, rank: int, models: Mapping[str, NodeFacts]) -> list[CheckResult]:
    """Return the failure of a node with other versions than the `models`; nothing if it has the same."""
    node = gang.facts[rank]
    versions = {name: (version, model.modules[name] or "") for name, model in models.items()
                if (version := node.modules.get(name))}  # fmt: skip
    odd = [name for name, (own, other) in versions.items() if _compared(name, own) != _compared(name, other)]
    if not odd:
        return []
    here, there = (", ".join(f"{name} {versions[name][side]}" for name in odd) for side in (0, 1))
    command = install_command(gang.job, rank, node, odd, _origins(models))
    field, case = f"cluster.hosts[{rank}].environments", "" if command else "by_hand"
    values = {"here": here, "others": there, "case": case, "command": command}
    return [gang.checks[rank].wrong("versions", "versions_differ", field, **values)]


def _packages_on_some_nodes(gang: GangReadings, rank: int, models: Mapping[str, NodeFacts]) -> list[CheckResult]:
    """Return a warning for each package of optional_modules that a node lacks and most nodes have, or the reverse.

    Such nodes compute with other kernels than the others. A package that the job needs is never too much.
    """
    results, checks, environment = [], gang.checks, environment_of(gang.job, rank)
    for module, package in optional_modules(gang.job).items():
        has = {node: bool(fact.modules.get(module)) for node, fact in gang.facts.items()}
        wanted = any(has.values()) if needs_flash_attn(gang.job) else usual(has)
        if has[rank] == wanted:
            continue
        if wanted:
            command = install_command(gang.job, rank, gang.facts[rank], [module], _origins(models))
            case = "lacks" if command else "by_hand"
        else:
            command, case = pip_command(environment, gang.facts[rank], ["--yes", package], "uninstall"), "has"
        nodes = [rank, *(node for node in has if node != rank)]
        values = {
            "modules": [package],
            "having": named([checks[node].node for node in nodes if has[node]]),
            "lacking": named([checks[node].node for node in nodes if not has[node]]),
            "case": case,
            "command": command,
        }
        field = python_field(gang.job, rank)
        results.append(checks[rank].warning("versions", "package_on_some_nodes", field, **values))
    return results


def _origins(models: Mapping[str, NodeFacts]) -> dict[str, Origin]:
    return {name: model.origins[name] for name, model in models.items() if name in model.origins}
