"""Rules for the implementation of attention: what the model's heads, sinks and bounded scores need."""

from backend.job.attention import (
    AMPERE,
    EAGER_IN_SWIFT,
    FLASH_ATTENTION,
    FLASH_ATTENTION_3,
    FUSED_WITHOUT_PADDING,
    HOPPER,
    NO_FLASH_ATTENTION_3,
    SINKS_KERNEL,
    UNFUSED_BACKENDS,
    asked_of_llamafactory,
    asked_of_swift,
    attention_kind,
    implementation,
    needs_unfused,
    of_llamafactory,
    of_swift,
    swift_backend,
)
from backend.job.batch import padding
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.model.attention_shape import WIDEST_HEAD
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar
from backend.job.traits import TRAITS, sibling

RULES: list[BoundRule] = []
rule = registrar(RULES)

FLASH_FOR_PACKING = tuple(f"flash_attention_{version}" for version in (2, 3, 4))
"""What ms-swift's packing takes (4.6.0 arguments/sft_args.py _check_padding_free)."""
WITHOUT_SINKS = ("sdpa", FLASH_ATTENTION, FLASH_ATTENTION_3)
"""Implementations that transformers refuses for sinks (5.6.0 modeling_gpt_oss.py `_supports_sdpa` and
`_compatible_flash_implementations`; 5.19 modeling_deepseek_v4.py and modeling_hy_v4.py `_supports_flash_attn`)."""


@rule(scopes.swift_megatron)
def wide_heads_need_unfused_attention(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift asks Megatron-Core for `flash` (4.6.0 megatron_args.py attention_backend). Transformer Engine has no
    fused attention for heads 512 wide (https://github.com/NVIDIA/TransformerEngine/issues/3006, version 2.14)."""
    if shape.widest_head <= WIDEST_HEAD or swift_backend(job) in UNFUSED_BACKENDS:
        return None
    return problem("heads_too_wide", "engine", width=shape.widest_head, widest=WIDEST_HEAD, case="megatron",
                   edit=_unfused(job))  # fmt: skip


@rule(scopes.swift_trainer)
def wide_heads_are_not_packed(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """FlashAttention 2 allows "All head dimensions up to 256" (README of github.com/Dao-AILab/flash-attention).
    torch's SDPA has a kernel for every width."""
    if shape.widest_head <= WIDEST_HEAD or not of_swift(job, shape).startswith("flash"):
        return None
    return problem("heads_too_wide", "engine", width=shape.widest_head, widest=WIDEST_HEAD, case="swift",
                   edit={"training.packing": False, "extra": {**job.extra, "attn_impl": "sdpa"}})  # fmt: skip


@rule(scopes.llamafactory_trainer)
def wide_heads_do_without_flash_attention(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """FlashAttention 2 and 3 have no kernel for heads wider than 256 (wide_heads_are_not_packed)."""
    if shape.widest_head <= WIDEST_HEAD or of_llamafactory(job, shape) not in (FLASH_ATTENTION, FLASH_ATTENTION_3):
        return None
    return problem("heads_too_wide", "engine", width=shape.widest_head, widest=WIDEST_HEAD, case="llamafactory",
                   edit={"extra": {**job.extra, "flash_attn": "sdpa"}})  # fmt: skip


@rule(scopes.llamafactory_trainer)
def llamafactory_knows_the_implementation(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory 0.9.5 model/model_utils/attention.py has no branch for `fa3`, although extras/constants.py lists
    it: `NotImplementedError: Unknown attention type: fa3`. Its main has one
    (https://github.com/hiyouga/LlamaFactory/pull/10742). The preflight knows the version of the nodes."""
    if asked_of_llamafactory(job) != FLASH_ATTENTION_3 or of_llamafactory(job, shape) == SINKS_KERNEL:
        return None
    # With `auto`, LLaMA-Factory looks after the bound of Gemma 2's scores alone (llamafactory_bounds_scores).
    chosen = "disabled" if shape.has_softcap and shape.model_type != "gemma2" else "auto"
    return problem("flash_attention_3_unknown", "engine", "note", case=chosen,
                   edit={"extra": {**job.extra, "flash_attn": chosen}})  # fmt: skip


@rule(scopes.hugging_face)
def flash_attention_3_has_kernels_for_this_gpu(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """FlashAttention 3 takes its kernels of Hopper for every later GPU (NO_FLASH_ATTENTION_3)."""
    capability = gpu.compute_capability
    if implementation(job, shape) != FLASH_ATTENTION_3 or capability is None or capability < NO_FLASH_ATTENTION_3:
        return None
    is_swift = job.traits.environment == "swift"
    key, chosen = ("attn_impl", "flash_attn") if is_swift else ("flash_attn", "fa2")
    if shape.widest_head > WIDEST_HEAD:
        chosen = "sdpa"
    elif shape.has_sinks:
        chosen = "eager" if is_swift else "auto"
    return problem("flash_attention_3_needs_hopper", "engine", gpu=gpu.name, capability=f"{capability:.1f}", key=key,
                   chosen=chosen, edit={"extra": {**job.extra, key: chosen}})  # fmt: skip


@rule(scopes.hugging_face)
def flash_attention_has_kernels_from_ampere_on(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """FlashAttention has no kernels for older GPUs (source: AMPERE)."""
    capability = gpu.compute_capability
    runs = implementation(job, shape)
    if not runs.startswith("flash") or capability is None or capability >= AMPERE:
        return None
    is_swift = job.traits.environment == "swift"
    key, chosen = ("attn_impl" if is_swift else "flash_attn"), "sdpa"
    if shape.has_softcap or (is_swift and shape.has_sinks):  # SDPA has neither
        chosen = "eager" if is_swift else "disabled"
    edit = {**(_unpacked(job) if is_swift else {}), "extra": {**job.extra, key: chosen}}
    return problem("flash_attention_not_on_gpu", "engine", version=runs[-1] if runs[-1].isdigit() else "2",
                   gpu=gpu.name, capability=f"{capability:.1f}", needed="≥8.0", key=key, chosen=chosen,
                   edit=edit)  # fmt: skip


@rule(scopes.swift_megatron)
def transformer_engine_takes_the_version_on_this_gpu(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Transformer Engine switches FlashAttention 3 off unless the capability is 9.0, and 4 below 9.0 (NVIDIA/
    TransformerEngine d0067d0 pytorch/attention/dot_product_attention/utils.py get_attention_backend). ms-swift hides
    the other versions from it, so that no backend is left. Before Ampere it has no FlashAttention (AMPERE), which
    ms-swift asks for if nobody asks for another."""
    capability, backend = gpu.compute_capability, swift_backend(job)
    if capability is None or not backend.startswith("flash"):
        return None
    version = backend.removeprefix("flash").removeprefix("_") or "2"
    if capability < AMPERE:
        return problem("flash_attention_not_on_gpu", "engine", version=version, gpu=gpu.name,
                       capability=f"{capability:.1f}", needed="≥8.0", key="attention_backend", chosen="unfused",
                       edit=_unfused(job))  # fmt: skip
    if version == "2" or capability == HOPPER or (version == "4" and capability > HOPPER):
        return None
    return problem("flash_attention_not_on_gpu", "engine", version=version, gpu=gpu.name,
                   capability=f"{capability:.1f}", needed="9.0" if version == "3" else "≥9.0", key="attention_backend",
                   chosen="flash", edit={"extra": {**job.extra, "attention_backend": "flash"}})  # fmt: skip


@rule(scopes.swift_megatron)
def sinks_need_another_backend(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift 4.6.0 megatron/model/utils.py _check_attention_backend: `Attention backend "flash" does not support
    learnable softmax_type.` Attention over compressed keys has a core of its own, which reads no backend."""
    if not shape.has_sinks or shape.is_compressed or not swift_backend(job).startswith("flash"):
        return None
    return problem("sinks_without_flash", "engine", model_type=shape.model_type, case="megatron", edit=_unfused(job))


@rule(scopes.swift_trainer)
def sinks_need_eager_attention(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers raises a ValueError for WITHOUT_SINKS. Packing asks for one of them."""
    if not shape.has_sinks or of_swift(job, shape) not in WITHOUT_SINKS:
        return None
    return problem("sinks_without_flash", "engine", model_type=shape.model_type, case="trainer",
                   edit={**_unpacked(job), "extra": {**job.extra, "attn_impl": "eager"}})  # fmt: skip


@rule(scopes.llamafactory_trainer)
def llamafactory_leaves_sinks_to_eager_attention(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers raises the same error for what a job asks for. LLaMA-Factory's word `auto` asks for nothing, and
    transformers then takes eager attention. For `fa3` see llamafactory_knows_the_implementation."""
    if not shape.has_sinks or of_llamafactory(job, shape) not in ("sdpa", FLASH_ATTENTION):
        return None
    return problem("sinks_without_flash", "engine", model_type=shape.model_type, case="llamafactory",
                   edit={"extra": {**job.extra, "flash_attn": "auto"}})  # fmt: skip


@rule(scopes.swift_trainer)
def packing_keeps_flash_attention(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift 4.6.0 arguments/sft_args.py: `The "packing" feature requires a flash attention implementation.`"""
    if not job.training.packing or of_swift(job, shape) in FLASH_FOR_PACKING:
        return None
    return problem("packing_without_flash", "training.packing", asked=str(job.extra.get("attn_impl")),
                   edit={"training.packing": False})  # fmt: skip


@rule(scopes.llamafactory_trainer)
def sinks_are_trained(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory 0.9.5 model/model_utils/attention.py always takes kernels-community/vllm-flash-attn3 for gpt-oss.
    Its backward pass returns no gradient for the sinks (https://github.com/huggingface/kernels-community
    vllm-flash-attn3/torch-ext/vllm_flash_attn3/flash_attn_interface.py, `s_aux`)."""
    if shape.model_type != "gpt_oss" or job.training.method not in ("full", "partial"):
        return None
    return problem("sinks_not_trained", "training.method", "warning", model_type=shape.model_type,
                   edit={"training.method": "lora"})  # fmt: skip


@rule(scopes.llamafactory_trainer)
def llamafactory_computes_sinks_on_this_gpu(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The kernel computes sinks on Hopper alone (source: HOPPER). LLaMA-Factory takes it for gpt-oss whatever a job
    asks for."""
    if not shape.has_sinks or not _kernel_lacks_sinks(of_llamafactory(job, shape), gpu):
        return None
    swift = f"swift-{job.engine.partition('-')[2]}"
    edit: dict[str, object] = {"engine": swift, **_unpacked(job)}
    if job.training.method not in TRAITS[swift].methods:
        edit["training.method"] = "lora"
    return problem("sinks_need_hopper", "engine", model_type=shape.model_type, gpu=gpu.name,
                   capability=f"{gpu.compute_capability:.1f}", case="llamafactory", edit=edit)  # fmt: skip


@rule(scopes.swift_trainer)
def ms_swift_computes_sinks_on_this_gpu(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The kernel computes sinks on Hopper alone (source: HOPPER)."""
    if not shape.has_sinks or not _kernel_lacks_sinks(of_swift(job, shape), gpu):
        return None
    return problem("sinks_need_hopper", "engine", model_type=shape.model_type, gpu=gpu.name,
                   capability=f"{gpu.compute_capability:.1f}", case="swift",
                   edit={**_unpacked(job), "extra": {**job.extra, "attn_impl": "eager"}})  # fmt: skip


@rule(scopes.llamafactory_trainer)
def llamafactory_keeps_sinks_in_bf16(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The kernel checks it: `We only support bf16 dtype for S aux.` (the file of HOPPER, mha_fwd).

    LLaMA-Factory 0.9.5 loads weights in the type of the model (model/loader.py load_model, `torch_dtype: auto`), which
    is bf16 for gpt-oss, also if the job asks for fp16. model/adapter.py makes trained weights fp32; without DeepSpeed
    or FSDP they stay so, because autocast does not reach this kernel. DeepSpeed (runtime/engine.py) and FSDP make all
    weights fp16 if the job asks for fp16.
    """
    traits, training = job.traits, job.training
    if not shape.has_sinks or of_llamafactory(job, shape) != SINKS_KERNEL:
        return None
    if traits.zero_stage or traits.is_fsdp:
        case, edit = "fp16" if training.precision == "fp16" else "", {"training.precision": "bf16"}
    else:
        trained = training.method in ("full", "partial") and not job.extra.get("pure_bf16")
        case, edit = "trained" if trained else "", {"engine": sibling(traits, "zero2")}
        if training.precision == "fp16":
            edit["training.precision"] = "bf16"
    return _sinks_need_bf16(shape, case, edit)


@rule(scopes.swift_trainer)
def ms_swift_keeps_sinks_in_bf16(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The same check. ms-swift loads the weights in the type of the job (4.6.0 arguments/base_args/model_args.py
    torch_dtype)."""
    is_fp16 = shape.has_sinks and of_swift(job, shape) == SINKS_KERNEL and job.training.precision == "fp16"
    return _sinks_need_bf16(shape, "fp16" if is_fp16 else "", {"training.precision": "bf16"})


def _sinks_need_bf16(shape: ModelShape, case: str, edit: dict[str, str]) -> Problem | None:
    field = "training.precision" if case == "fp16" else "engine"
    return problem("sinks_need_bf16", field, model_type=shape.model_type, case=case, edit=dict(edit)) if case else None


def _unpacked(job: Job) -> dict[str, object]:
    return {"training.packing": False} if job.training.packing else {}


def _kernel_lacks_sinks(implementation: str, gpu: Gpu) -> bool:
    return implementation == SINKS_KERNEL and gpu.compute_capability not in (None, HOPPER)


@rule(scopes.swift_megatron)
def fused_attention_reads_concatenated_samples(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """FUSED_WITHOUT_PADDING says why. Megatron-Core then allows no other kernel (0.16.1
    models/common/language_module/language_module.py _set_attention_backend), and Transformer Engine ends with `No dot
    product attention backend is available`."""
    capability = gpu.compute_capability
    if swift_backend(job) != "fused" or padding(job) != "nothing" or capability is None:
        return None
    if capability >= FUSED_WITHOUT_PADDING:
        return None
    backend = "unfused" if needs_unfused(shape) or capability < AMPERE else "flash"
    flash: dict[str, object] = {"extra": {**job.extra, "attention_backend": "flash"}}
    edit = _unfused(job) if backend == "unfused" else flash
    return problem(
        "fused_needs_hopper", "engine", gpu=gpu.name, capability=f"{capability:.1f}", case=backend, edit=edit
    )


@rule(scopes.megatron)
def unfused_attention_has_no_context_parallelism(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Transformer Engine pytorch/attention/dot_product_attention/utils.py get_attention_backend: `Disabling
    UnfusedDotProductAttention as it does not support context parallelism`."""
    if job.parallel.context == 1 or attention_kind(job, shape, gpu) != "scores":
        return None
    return problem("unfused_without_context", "parallel.context", context=job.parallel.context,
                   edit={"parallel.context": 1})  # fmt: skip


@rule(scopes.swift_megatron)
def unfused_attention_packs_nothing(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift 4.6.0 megatron/model/utils.py _check_padding_free switches padding_free off. Then template/base.py
    data_collator makes one padded batch of all samples of a pack."""
    if not job.training.packing or swift_backend(job) != "unfused":
        return None
    return problem("unfused_packs_nothing", "training.packing", "warning", edit={"training.packing": False})


@rule(scopes.swift_trainer)
def ms_swift_bounds_scores(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers 5.6.0 integrations/sdpa_attention.py ignores `softcap`, which modeling_gemma2.py passes, and SDPA
    is the default (tests/engines/test_attention_implementations.py)."""
    if of_swift(job, shape) != "sdpa":
        return None
    return _softcap_lost(job, shape, "swift", {"attn_impl": "eager"})


@rule(scopes.llamafactory_trainer)
def llamafactory_bounds_scores(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory 0.9.5 model/model_utils/attention.py: `Gemma-2 should use soft-capping attention, while the SDPA
    attention does not support it.` With `auto` it looks after Gemma 2 alone."""
    if of_llamafactory(job, shape) != "sdpa":
        return None
    chooses = shape.model_type == "gemma2"
    case = "llamafactory" if chooses else "llamafactory_eager"
    return _softcap_lost(job, shape, case, {"flash_attn": "auto" if chooses else "disabled"})


def _softcap_lost(job: Job, shape: ModelShape, case: str, edit: dict[str, str]) -> Problem | None:
    if not shape.has_softcap:
        return None
    return problem("softcap_lost", "engine", model_type=shape.model_type, case=case,
                   edit={"extra": {**job.extra, **edit}})  # fmt: skip


@rule(scopes.swift_trainer)
def eager_attention_is_a_choice(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift 4.6.0 swift/model/models/gemma.py: `self.attn_impl or 'eager'`."""
    if shape.model_type not in EAGER_IN_SWIFT or asked_of_swift(job):
        return None
    return problem("swift_stores_scores", "engine", "note", model_type=shape.model_type,
                   edit={"extra": {**job.extra, "attn_impl": "sdpa"}})  # fmt: skip


@rule(scopes.llamafactory_trainer)
def bounded_scores_are_stored(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory 0.9.5 model/model_utils/attention.py: `FlashAttention-2 is not installed, use eager attention.`"""
    if shape.model_type != "gemma2" or asked_of_llamafactory(job):
        return None
    runs_flash = gpu.supports_bf16 and job.training.precision != "fp32"
    edit: dict[str, object] = {"extra": {**job.extra, "flash_attn": "fa2"}} if runs_flash else {}
    return problem("softcap_stores_scores", "engine", "note", model_type=shape.model_type, edit=edit)


def _unfused(job: Job) -> dict[str, object]:
    """Return the edit of a job to unfused attention (unfused_attention_has_no_context_parallelism).

    It sets CP without reading it: the planner leaves out the plans that a rule refuses by a value of theirs.
    """
    return {"extra": {**job.extra, "attention_backend": "unfused"}, "parallel.context": 1}
