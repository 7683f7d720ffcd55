"""Versions of packages with which a job fails, or trains wrongly. preflight/packages.py looks for them on the nodes."""

import re
from collections.abc import Mapping

from backend.engines.swift_models import asked_transformers, swift_names
from backend.job.attention import asked_of_swift, asks_for_flash_attention_3, takes_flash_attention_if_installed
from backend.job.job import Job
from backend.job.presets import known_model, resolve_gpu
from backend.job.rules.sparse import SEE_LATER_TOKENS


def case_of(job: Job) -> str:
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
    return has_flash_attn(versions) and takes_flash_attention_if_installed(job, known_model(job.model).model_type)


def has_flash_attn(versions: Mapping[str, str]) -> bool:
    """Return whether transformers finds FlashAttention 2: flash-attn 2.3.3 or later (5.6.0 utils/import_utils.py
    is_flash_attn_2_available)."""
    return numbers_of(versions.get("flash_attn", "")) >= [2, 3]


def _sees_later_tokens(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether ms-swift trains a model whose tokens see those after them; LLaMA-Factory's jobs have the rule
    tokens_see_only_those_before. 5.19.0 has the fix, 5.8.0 has not."""
    is_swift = job.traits.environment == "swift" and not job.traits.is_megatron
    numbers = numbers_of(versions.get("transformers", ""))
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
    numbers = numbers_of(versions.get("torch", ""))
    is_new = bool(numbers) and numbers >= [2, 12]
    parallel = job.parallel
    folds = bool(known_model(job.model).experts) and parallel.expert_tensor != parallel.tensor
    distributed = parallel.distributed_optimizer or folds or job.extra.get("ckpt_format") == "torch_dist"
    return job.engine == "llamafactory-megatron" and is_new and distributed


def _flash_attention_3_fails(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether LLaMA-Factory knows `flash_attn: fa3` in name alone; job/rules/attention.py has the sources.

    0.9.5 is its newest release, and its main is 0.9.6.dev0 (src/llamafactory/extras/env.py). gpt-oss has a kernel of
    its own.
    """
    is_old = versions.get("llamafactory", "").partition(" ")[0] in ("0.9.4", "0.9.5")
    return is_old and asks_for_flash_attention_3(job) and known_model(job.model).model_type != "gpt_oss"


def _data_sets_fail(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether ms-swift cannot read data.

    4.6.0 dataset/preprocessor/core.py imports datasets.features.Json, which datasets has from 4.7.0 on, although
    ms-swift's metadata allow 4.0 (seen with 4.0.0).
    """
    numbers = numbers_of(versions.get("datasets", ""))
    return job.traits.environment == "swift" and bool(numbers) and numbers < [4, 7]


def _offload_drops_gradients(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether DeepSpeed trains on the first and the last micro-batch of a step alone.

    With the optimizer of ZeRO-1 or 2 on the host, runtime/zero/stage_1_and_2.py async_accumulate_grad_in_cpu_via_gpu
    keeps the gradient of the first micro-batch and adds it to that of each later one, which it does not keep
    (https://github.com/deepspeedai/DeepSpeed/pull/7967; read in 0.15.2 and 0.18.9, seen with 0.18.4; 0.19.0 has the
    fix).
    """
    numbers = numbers_of(versions.get("deepspeed", ""))
    is_offloaded = job.traits.zero_stage == 2 and job.traits.offloads != "none"
    return is_offloaded and bool(numbers) and [0, 15] <= numbers < [0, 19] and job.accumulation > 2


def _gradients_are_divided_twice(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether DeepSpeed divides gradients by the number of micro-batches once more than transformers asks for.

    0.18.3 runtime/engine.py _backward_prologue_per_tensor does not look at scale_wrt_gas
    (https://github.com/deepspeedai/DeepSpeed/pull/7724; seen with 0.18.3; 0.18.4 does). The bound of the gradient norm
    then never acts.
    """
    return (
        bool(job.traits.zero_stage) and _release(versions.get("deepspeed", "")) == [0, 18, 3] and job.accumulation > 1
    )


def _gathers_overwrite_weights(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether ZeRO-3 may overwrite weights that it has just loaded or gathered.

    zero/partition_parameters.py _allgather_params_coalesced waits for the last gather of several only. gloo does not
    run them in order, so a late one overwrites weights (https://github.com/deepspeedai/DeepSpeed/pull/8539; seen with
    0.18.4, read in 0.5.5 and 0.19.7; 0.19.8 waits for all).
    """
    release = _release(versions.get("deepspeed", ""))
    uses_gloo = resolve_gpu(job.cluster).device == "cpu" and job.world_size > 1
    return job.traits.zero_stage == 3 and uses_gloo and bool(release) and release < [0, 19, 8]


def counts_parameters_in_hooks(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether each gradient's hook of DeepSpeed counts all parameters of the backward pass, in Python.

    0.18.5 and 0.18.6 do (runtime/zero/stage3.py and stage_1_and_2.py, count_used_parameters_in_backward). On 8 H100, a
    step of a model with 147 tensors took 0.127 s, and 0.051 s with the fix, which 0.18.7 has
    (https://github.com/deepspeedai/DeepSpeed/pull/7886).
    """
    return bool(job.traits.zero_stage) and _release(versions.get("deepspeed", "")) in ([0, 18, 5], [0, 18, 6])


def _gradients_are_in_bf16(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether ms-swift's Megatron adds up and reduces gradients in bf16, although it asks for fp32.

    From 4.0.0 to 4.3.1, swift/megatron/utils/megatron_lm_utils.py wrap_model gives accumulate_allreduce_grads_in_fp32
    to no field of DistributedDataParallelConfig; 4.3.2 does (https://github.com/modelscope/ms-swift/pull/9590).
    """
    is_bf16 = job.engine == "swift-megatron" and job.training.precision == "bf16"
    return is_bf16 and [4] <= _release(versions.get("swift", "")) < [4, 3, 2]


def _trl_is_too_old(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether ms-swift's GRPO or DPO ends when it starts.

    4.6.0 rlhf_trainers/arguments.py requires trl 0.26 for GRPO. With trl 0.24.0 and transformers 5.6 DPO ends with "No
    module named 'mergekit'"; with 0.29.1 it trains.
    """
    numbers = numbers_of(versions.get("trl", ""))
    is_swift = job.traits.environment == "swift" and not job.traits.is_megatron
    stage, loss = job.training.stage, job.training.dpo.loss
    if not is_swift or not numbers:
        return False
    return (stage == "grpo" and numbers < [0, 26]) or (
        stage == "dpo" and loss not in ("orpo", "simpo") and numbers == [0, 24]
    )


def numbers_of(version: str) -> list[int]:
    """Return the first two numbers of a version; none if it has no such numbers."""
    numbers = version.split(".")[:2]
    return [*map(int, numbers)] if len(numbers) == 2 and all(number.isdecimal() for number in numbers) else []


def _ling_code_fails(job: Job, versions: Mapping[str, str]) -> bool:
    """Return whether the code in the folder of a Ling or Ring model cannot be imported.

    It imports is_torch_fx_available (inclusionAI/Ling @5ccaeae, Ling-V2 @af8837e, Ring-V2.5 @c7facea models/
    modeling_*.py), and its rotary embedding takes ROPE_INIT_FUNCTIONS["default"]. transformers 4.57.6 has both, 5.0.0
    has neither. Megatron in ms-swift 4.6.0 builds the model's class when it saves (megatron/init.py save_weights). For
    version 3, ms-swift adds the function itself (model/models/llm.py BailingHybridLoader), and transformers 5.24 has a
    class, modeling_bailing_hybrid.py. A job that trusts the folder's code gets that code in place of the class
    (models/auto/auto_factory.py from_pretrained).
    """
    numbers, config = numbers_of(versions.get("transformers", "")), job.model.hf_config
    is_third = config.get("short_conv_kernel_size") is not None
    runs_code = job.traits.environment == "swift" or not job.traits.is_megatron
    has_class = numbers >= [5, 24] and job.extra.get("trust_remote_code") is not True
    is_mended = is_third and (job.traits.environment == "swift" or has_class)
    is_ling = known_model(job.model).model_type in ("bailing_moe", "bailing_hybrid")
    return is_ling and runs_code and numbers >= [5, 0] and not is_mended


def unasked_transformers(job: Job, versions: Mapping[str, str]) -> str:
    """Return the versions of transformers that ms-swift asks for, for the job's model, if the node has another; else
    nothing.

    ms-swift says so in the log and goes on (4.6.0 model/model_meta.py check_requires). Such a model mostly fails:
    Kimi-VL's code, for example, imports what later versions do not have. Of the class of Qwen2-Audio, the parts have
    other names since 5.11, so that `all-linear` finds none of them (model/model_arch.py qwen2_audio). Megatron has its
    own classes.
    """
    installed = versions.get("transformers", "")
    if job.traits.environment != "swift" or job.traits.is_megatron or not _release(installed):
        return ""
    wanted = asked_transformers(swift_names(job).get("model_type", ""))
    return "" if all(_meets(installed, part) for part in wanted.split(",") if part) else wanted


SWIFT_RANGES: Mapping[tuple[int, int], Mapping[str, str]] = {
    (4, 0): {"datasets": ">=3.0,<4.0", "peft": ">=0.11,<0.19", "transformers": ">=4.33,<5.3", "trl": ">=0.15,<0.29"},
    (4, 1): {"datasets": ">=3.0,<4.0", "peft": ">=0.11,<0.20", "transformers": ">=4.33,<5.7", "trl": ">=0.15,<0.30"},
    (4, 2): {"datasets": ">=3.0,<4.8.5", "peft": ">=0.11,<0.20", "transformers": ">=4.33,<5.9", "trl": ">=0.15,<1.0"},
    (4, 3): {"datasets": ">=3.0,<4.8.5", "peft": ">=0.11,<0.20", "transformers": ">=4.33,<5.13", "trl": ">=0.15,<1.0"},
    (4, 4): {"datasets": ">=3.0,<4.8.5", "peft": ">=0.11,<0.20", "transformers": ">=4.33,<5.13", "trl": ">=0.15,<1.0"},
    (4, 5): {"datasets": ">=3.0,<4.8.5", "peft": ">=0.11,<0.20", "transformers": ">=4.33,<5.17", "trl": ">=0.15,<1.0"},
    (4, 6): {"datasets": ">=4.0,<4.8.5", "peft": ">=0.11,<0.21", "transformers": ">=4.33,<5.20", "trl": ">=0.15,<1.0"},
}
"""Versions that ms-swift requires, by the first two numbers of its own (Requires-Dist in METADATA of 4.0.0, 4.1.3,
4.2.3, 4.3.2, 4.4.2, 4.5.0 and 4.6.0 on PyPI). It checks none of them when it starts. LLaMA-Factory checks its own
(0.9.5 extras/misc.py check_dependencies), and the preflight runs that check with its parser."""


def outside_ranges(job: Job, versions: Mapping[str, str]) -> dict[str, str]:
    """Return the packages of a node that ms-swift does not take: name -> the versions that it requires."""
    if job.traits.environment != "swift":
        return {}
    return {
        name: wanted
        for name, wanted in _ranges(versions).items()
        if _release(versions.get(name, "")) and not all(_meets(versions[name], part) for part in wanted.split(","))
    }


def transformers_for(wanted: str, versions: Mapping[str, str]) -> str:
    """Return the versions `wanted` of transformers up to the newest that the node's ms-swift takes.

    They have no bound if this ms-swift is unknown, or takes none of them.
    """
    _, _, bound = _ranges(versions).get("transformers", "").partition(",")
    is_open = wanted.startswith(">") and "<" not in wanted
    return f"{wanted},{bound}" if bound and is_open and _meets(wanted.lstrip(">="), bound) else wanted


def _ranges(versions: Mapping[str, str]) -> Mapping[str, str]:
    """Return the versions that the node's ms-swift requires: package -> range; nothing if this ms-swift is unknown."""
    own = numbers_of(versions.get("swift", ""))
    return SWIFT_RANGES.get((own[0], own[1]), {}) if len(own) == 2 else {}


def _meets(version: str, condition: str) -> bool:
    """Return whether a version meets one condition, such as `>=4.57.1`. Marks of pre-releases do not count."""
    name = condition.rstrip("0123456789.dev")
    own, other = _release(version), _release(condition.removeprefix(name))
    width = max(len(own), len(other))
    left, right = ([*numbers, *[0] * (width - len(numbers))] for numbers in (own, other))
    return {">=": left >= right, "<=": left <= right, "==": left == right, ">": left > right, "<": left < right}[name]


def _release(version: str) -> list[int]:
    """Return the numbers of a version before its first mark: 5.0.1 of `5.0.1dev0`."""
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in found[0].split(".")] if found else []


LLAMAFACTORY_MAIN = (
    "llamafactory @ git+https://github.com/hiyouga/LlamaFactory@ff6d4d12eeb035d6ce06805a5733dd7b29f2ac30"
)
"""The commit of its main that the docs describe."""
DEEPSPEED = "deepspeed==0.19.8"
"""The version of the sets in requirements/."""
BROKEN_VERSIONS = {
    # 5.5.4 is the newest version below 5.6.0, which is the newest that LLaMA-Factory 0.9.5 takes (its extras/misc.py).
    "flash_attention_crashes": (_flash_attention_crashes, "extra", "transformers==5.5.4"),
    "later_tokens_seen": (_sees_later_tokens, "extra", "transformers==5.19.0"),
    "flash_attention_3_fails": (_flash_attention_3_fails, "extra", LLAMAFACTORY_MAIN),
    "gpt_oss_fails": (_gpt_oss_fails, "model.path", "transformers==4.57.6"),
    "ling_code_fails": (_ling_code_fails, "model.path", "transformers==4.57.6"),
    "data_sets_fail": (_data_sets_fail, "engine", "datasets==4.8.4"),
    "offload_drops_gradients": (_offload_drops_gradients, "training.gradient_accumulation_steps", DEEPSPEED),
    "gradients_divided_twice": (
        _gradients_are_divided_twice,
        "training.gradient_accumulation_steps",
        DEEPSPEED,
    ),
    "gathers_overwrite_weights": (_gathers_overwrite_weights, "engine", DEEPSPEED),
    "gradients_in_bf16": (_gradients_are_in_bf16, "training.precision", "ms-swift==4.6.0"),
    "trl_too_old": (_trl_is_too_old, "training.stage", "trl==0.29.1"),
    "distributed_save_fails": (_distributed_save_fails, "parallel.distributed_optimizer", "torch==2.11.0"),
}
"""Code of the problem -> (whether it occurs, the field, the version that works)."""
