"""Checks of the packages in the engine's environment, on one node and across nodes."""

from collections.abc import Mapping

from backend.cluster.inventory.software import (
    NodeFacts,
    kernel_modules,
    metric_modules,
    needed_modules,
    optional_modules,
    python_field,
)
from backend.cluster.preflight.broken_versions import BROKEN_VERSIONS, case_of, has_flash_attn
from backend.cluster.preflight.equality import named, usual
from backend.cluster.preflight.fix_commands import MCORE_ADAPTER, install_command, pip_command
from backend.cluster.preflight.readings import GangReadings, NodeReadings
from backend.cluster.preflight.results import CheckResult
from backend.job.attention import FLASH_ATTENTION, asked_of_llamafactory, takes_flash_attention_if_installed
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.presets import known_model
from backend.job.problems import Problem


def check_engine(node: NodeReadings) -> list[CheckResult]:
    """Check that the environment has all modules that the engine imports, and runs experts together."""
    job, checks, facts = node.job, node.checks, node.facts
    names = needed_modules(job)
    missing = [module for module in names if facts.modules.get(module, "") is None]
    if not missing:
        versions = {name: version or "" for name, version in facts.modules.items()}
        transformers = versions.get("transformers", "")
        for code, (is_broken, field, working) in BROKEN_VERSIONS.items():
            if is_broken(job, versions):
                command = pip_command(environment_of(job, checks.rank), [working])
                installed = {name: versions.get(name, "") for name in ("transformers", "torch", "datasets", "trl")}
                return [checks.wrong("engine", code, field, **installed, case=case_of(job), command=command)]
        if _loops_over_experts(job, transformers):
            field = python_field(job, checks.rank)
            return [checks.warning("engine", "experts_looped", field, transformers=transformers, engine=job.engine)]
        slow = [module for module in kernel_modules(job) if not versions.get(module)]
        if slow:
            field = python_field(job, checks.rank)
            command = pip_command(environment_of(job, checks.rank), [kernel_modules(job)[module] for module in slow])
            return [checks.warning("engine", "kernels_missing", field, modules=slow, command=command)]
        if missing_attention := _flash_attention_is_missing(node, versions):
            return [missing_attention]
        return [checks.ok("engine", **facts.modules)]
    field, values = python_field(job, checks.rank), {"modules": missing, "engine": job.engine}
    requirements = [MCORE_ADAPTER if module == "mcore_adapter" else names[module] for module in missing]
    command = pip_command(environment_of(job, checks.rank), requirements)
    # PyPI's package of this name has no such module.
    is_placeholder = "mcore_adapter" in missing and "mcore_adapter" in facts.origins
    code = "engine_placeholder" if is_placeholder else "engine_missing"
    return [checks.wrong("engine", code, field, **values, command=command)]


def _flash_attention_is_missing(node: NodeReadings, versions: Mapping[str, str]) -> CheckResult | None:
    """Return the warning that LLaMA-Factory trains with another attention than the job asks for; None if it does not.

    It then logs `FlashAttention-2 is not installed` (0.9.5 model/model_utils/attention.py). Only eager attention needs
    more memory than estimated.
    """
    job, checks = node.job, node.checks
    takes = takes_flash_attention_if_installed(job, known_model(job.model).model_type)
    is_asked = takes and asked_of_llamafactory(job) == FLASH_ATTENTION
    if not is_asked or "flash_attn" not in optional_modules(job) or has_flash_attn(versions):
        return None
    command = pip_command(environment_of(job, checks.rank), ["flash-attn", "--no-build-isolation"])
    runs = "eager" if case_of(job) == "gemma2" else "SDPA"
    return checks.warning("engine", "flash_attn_not_installed", "extra", runs=runs, case=runs, command=command)


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
    values = {"node": node, "modules": lacking, "command": pip_command(environment_of(job, 0), lacking)}
    return Problem(code="metrics_missing", field=python_field(job, 0), severity="note", node=node, values=values)


def _loops_over_experts(job: Job, transformers: str) -> bool:
    """Return whether this transformers runs experts one after the other.

    Version 4 has a Python loop (4.57.6 models/qwen3_moe/modeling_qwen3_moe.py). Version 5 has one grouped GEMM (5.6.0
    modeling_utils.py get_correct_experts_implementation).
    """
    return transformers.startswith("4.") and not job.traits.is_megatron and known_model(job.model).experts > 0


def check_versions(gang: GangReadings) -> list[CheckResult]:
    """Check that all nodes have the same packages. The nodes that differ from most nodes fail."""
    facts = gang.facts
    if not facts:
        return []
    modules = next(iter(facts.values())).modules
    # The engine check reports a module that is missing.
    most = {
        name: usual({rank: version for rank, node in facts.items() if (version := node.modules.get(name))} or {0: ""})
        for name in modules
    }
    models = {name: next((n for n in facts.values() if n.modules.get(name) == most[name]), None) for name in modules}
    results = []
    for rank, node in facts.items():
        odd = [name for name, version in node.modules.items() if version and version != most[name]]
        if not odd:
            on_some = _packages_on_some_nodes(gang, rank)
            results.append(on_some or gang.checks[rank].ok("versions", **node.modules))
            continue
        here, there = (", ".join(f"{name} {versions[name]}" for name in odd) for versions in (node.modules, most))
        origins = {name: model.origins[name] for name in odd if (model := models[name]) and name in model.origins}
        command = install_command(gang.job, rank, odd, origins, node.origins)
        field = f"cluster.hosts[{rank}].environments"
        results.append(
            gang.checks[rank].wrong("versions", "versions_differ", field, here=here, others=there, command=command)
        )
    return results


def _packages_on_some_nodes(gang: GangReadings, rank: int) -> CheckResult | None:
    """Return the warning that a node lacks a package of optional_modules that most nodes have, or has one that most
    lack; None if it is like most nodes. Such nodes compute with other kernels than the others."""
    optional, facts = optional_modules(gang.job), gang.facts
    present = {name: {node: bool(fact.modules.get(name)) for node, fact in facts.items()} for name in optional}
    unlike = {name: has for name, has in present.items() if has[rank] != usual(has)}
    lacking = [name for name, has in unlike.items() if not has[rank]]
    modules = lacking or list(unlike)
    if not modules:
        return None
    has, checks, packages = present[modules[0]], gang.checks, [optional[name] for name in modules]
    nodes = [rank, *(node for node in has if node != rank)]
    having = [node for node in nodes if has[node]]
    environment = environment_of(gang.job, rank)
    if lacking:
        versions = [str(facts[having[0]].modules[name]).partition(" ")[0] for name in lacking]
        wanted = [f"{package}=={version}" for package, version in zip(packages, versions, strict=True)]
        command = pip_command(environment, [*wanted, "--no-build-isolation"])
    else:
        command = pip_command(environment, ["--yes", *packages], "uninstall")
    values = {
        "modules": packages,
        "having": named([checks[node].node for node in having]),
        "lacking": named([checks[node].node for node in nodes if not has[node]]),
        "case": "lacks" if lacking else "has",
        "command": command,
    }
    return checks[rank].warning("versions", "package_on_some_nodes", python_field(gang.job, rank), **values)
