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
from backend.cluster.preflight.equality import usual
from backend.cluster.preflight.fix_commands import MCORE_ADAPTER, install_command, pip_command
from backend.cluster.preflight.readings import GangReadings, NodeReadings
from backend.cluster.preflight.results import CheckResult
from backend.job.attention import (
    FLASH_ATTENTION,
    asked_of_llamafactory,
    asked_of_swift,
    takes_flash_attention_if_installed,
)
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.presets import known_model
from backend.job.problems import Problem
from backend.job.rules.sparse import SEE_LATER_TOKENS


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
                return [checks.wrong("engine", code, field, **installed, case=_case(job), command=command)]
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
    is_asked = asked_of_llamafactory(job) == FLASH_ATTENTION and bool(optional_modules(job))
    if not is_asked or _has_flash_attn(versions):
        return None
    command = pip_command(environment_of(job, checks.rank), ["flash-attn", "--no-build-isolation"])
    runs = "eager" if _case(job) == "gemma2" else "SDPA"
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


def _case(job: Job) -> str:
    """Return the engine and model that decide which setting helps instead of another version."""
    is_gemma = known_model(job.model).model_type == "gemma2"
    return "gemma2" if is_gemma and job.traits.environment == "llamafactory" else job.traits.environment


def _flash_attention_crashes(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether FlashAttention ends every run with an AttributeError.

    In transformers 5.6.0 alone, models without attention sinks crash (integrations/flash_attention.py, `s_aux.to`;
    https://github.com/hiyouga/LlamaFactory/issues/10610). LLaMA-Factory asks for it only where transformers finds
    flash-attn.
    """
    if versions.get("transformers") != "5.6.0" or job.traits.is_megatron:
        return False
    if job.traits.environment == "swift":
        return str(asked_of_swift(job)).startswith("flash")
    return _has_flash_attn(versions) and takes_flash_attention_if_installed(job, known_model(job.model).model_type)


def _has_flash_attn(versions: Mapping[str, str]) -> bool:
    """Return whether transformers finds FlashAttention 2: flash-attn 2.3.3 or later (5.6.0 utils/import_utils.py
    is_flash_attn_2_available)."""
    return _numbers(versions.get("flash_attn", "")) >= [2, 3]


def _sees_later_tokens(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether ms-swift trains a model whose tokens see those after them; LLaMA-Factory's jobs have the rule
    tokens_see_only_those_before. 5.19.0 has the fix, 5.8.0 has not."""
    is_swift = job.traits.environment == "swift" and not job.traits.is_megatron
    numbers = _numbers(versions.get("transformers", ""))
    is_old = bool(numbers) and numbers < [5, 19]
    is_affected = is_swift and is_old and known_model(job.model).model_type in SEE_LATER_TOKENS
    return is_affected and asked_of_swift(job) != "eager"


def _gpt_oss_fails(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether LLaMA-Factory cannot load gpt-oss.

    Its attention.py imports `load_and_register_kernel`, which transformers has only in 4.56 and 4.57
    (https://github.com/hiyouga/LlamaFactory/issues/10256, seen with 0.9.5 and 5.6.0; PR 10804 has the table).
    """
    is_hugging_face = job.traits.environment == "llamafactory" and not job.traits.is_megatron
    is_affected = not versions.get("transformers", "").startswith(("4.56.", "4.57."))
    return is_hugging_face and is_affected and known_model(job.model).model_type == "gpt_oss"


def _distributed_save_fails(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether every distributed checkpoint of mcore_adapter fails at its first save.

    mcore_adapter 0.10.0.dev0 (patcher.py) replaces _validate_global_plan by a function that returns a switch. Since
    torch 2.12 its caller joins a list (https://github.com/pytorch/pytorch/pull/176728; seen with 2.13).
    """
    numbers = _numbers(versions.get("torch", ""))
    is_new = bool(numbers) and numbers >= [2, 12]
    parallel = job.parallel
    folds = bool(known_model(job.model).experts) and parallel.expert_tensor != parallel.tensor
    distributed = parallel.distributed_optimizer or folds or job.extra.get("ckpt_format") == "torch_dist"
    return job.engine == "llamafactory-megatron" and is_new and distributed


def _data_sets_fail(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether ms-swift cannot read data.

    4.6.0 dataset/preprocessor/core.py imports datasets.features.Json, which datasets has from 4.7.0 on, although
    ms-swift's metadata allow 4.0 (seen with 4.0.0).
    """
    numbers = _numbers(versions.get("datasets", ""))
    return job.traits.environment == "swift" and bool(numbers) and numbers < [4, 7]


def _trl_is_too_old(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether ms-swift's GRPO or DPO ends when it starts.

    4.6.0 rlhf_trainers/arguments.py requires trl 0.26 for GRPO. With trl 0.24.0 and transformers 5.6 DPO ends with "No
    module named 'mergekit'"; with 0.29.1 it trains.
    """
    numbers = _numbers(versions.get("trl", ""))
    is_swift = job.traits.environment == "swift" and not job.traits.is_megatron
    stage, loss = job.training.stage, job.training.dpo.loss
    if not is_swift or not numbers:
        return False
    return (stage == "grpo" and numbers < [0, 26]) or (
        stage == "dpo" and loss not in ("orpo", "simpo") and numbers == [0, 24]
    )


def _numbers(version: str) -> list[int]:
    """Return the first two numbers of a version; none if it has no such numbers."""
    numbers = version.split(".")[:2]
    return [*map(int, numbers)] if len(numbers) == 2 and all(number.isdecimal() for number in numbers) else []


BROKEN_VERSIONS = {
    # 5.5.4 is the newest version below 5.6.0, which is the newest that LLaMA-Factory 0.9.5 takes (its extras/misc.py).
    "flash_attention_crashes": (_flash_attention_crashes, "extra", "transformers==5.5.4"),
    "later_tokens_seen": (_sees_later_tokens, "extra", "transformers==5.19.0"),
    "gpt_oss_fails": (_gpt_oss_fails, "model.path", "transformers==4.57.6"),
    "data_sets_fail": (_data_sets_fail, "engine", "datasets==4.8.4"),
    "trl_too_old": (_trl_is_too_old, "training.stage", "trl==0.29.1"),
    "distributed_save_fails": (_distributed_save_fails, "parallel.distributed_optimizer", "torch==2.11.0"),
}
"""Code of the problem -> (whether it occurs, the field, the version that works)."""


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
            results.append(gang.checks[rank].ok("versions", **node.modules))
            continue
        here, there = (", ".join(f"{name} {versions[name]}" for name in odd) for versions in (node.modules, most))
        origins = {name: model.origins[name] for name in odd if (model := models[name]) and name in model.origins}
        command = install_command(gang.job, rank, odd, origins, node.origins)
        field = f"cluster.hosts[{rank}].environments"
        results.append(
            gang.checks[rank].wrong("versions", "versions_differ", field, here=here, others=there, command=command)
        )
    return results
