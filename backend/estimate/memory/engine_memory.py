"""The bytes of weights, gradients, optimizer and logits of an engine, with the options of a job."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backend.estimate.array_ops import choose
from backend.estimate.memory.fp8 import fp8_of_job
from backend.job.extra_values import mapping_of
from backend.job.job import Job
from backend.job.liger import kernels_of
from backend.job.memory_traits import FOREACH_ADAM_MOVED, LIGER_LOSS_MOVED, SINGLE_SCALES_BYTES, MemoryTraits, Offload
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem, ProblemsError

FUSED_LOSS_MOVED = (22, 6)
"""loss_forward_moved and loss_backward_moved of megatron-core's fused cross entropy (MEGATRON_LM_MEMORY)."""
TE_LOSS_BYTES, TE_LOSS_MOVED = 6, (8, 14)
"""The same of Transformer Engine's cross entropy from 2.18 on (pull request 3193), and bytes per logit at the peak.

The gradient is an fp32 tensor beside the 16-bit logits. Backward scales it, and torch casts it to the precision of the
logits. benchmarks/habits.py has the figures of earlier versions.
"""
EIGHT_BIT_ADAM = ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit")
EIGHT_BIT_MOMENTS = 2 * (1 + 4 / 256)
"""Bytes of Adam's two moments in bitsandbytes' 8-bit optimizers: a byte, and an fp32 scale for 256 of them (0.50.2
optim/optimizer.py, Optimizer2State.init_state).

Only for adapters: transformers leaves the moments of embeddings in 32 bits (5.6.0 trainer.py register_module_override).
A paged optimizer needs the same as long as the GPU has room: CUDA moves its states to the host only under pressure, and
those of tensors under 100,000 elements are not paged (get_state_buffer).
"""


def memory_traits(job: Job, shape: ModelShape, gpu: Gpu) -> MemoryTraits:
    """Return the engine's memory traits with the job's options; raise estimate_not_modelled."""
    training, traits, parallel = job.training, job.traits, job.parallel
    if traits.memory is None:
        raise _not_modelled("engine", job.engine)
    if training.method not in traits.methods:
        raise _not_modelled("training.method", f"{training.method}, {job.engine}")
    memory, extra = traits.memory, job.extra
    if training.precision != "bf16":
        memory = _in_precision(memory, training.precision, megatron=traits.is_megatron)
    if job.has_fp8_products:
        memory = replace(memory, fp8=fp8_of_job(job, gpu))
    if traits.is_megatron and parallel.cross_entropy_fusion and memory.fused_logits_bytes:
        # mcore_adapter's fused loss works only with TP 1.
        fusable = (parallel.tensor == 1) | (traits.environment == "swift")
        names = ("logits_forward_bytes", "logits_backward_bytes", "loss_forward_moved", "loss_backward_moved")
        fused = (memory.fused_logits_bytes, memory.fused_logits_bytes, *FUSED_LOSS_MOVED)
        if extra.get("cross_entropy_fusion_impl") == "te":
            fused = (TE_LOSS_BYTES, TE_LOSS_BYTES, *TE_LOSS_MOVED)
        # Traits are declared as plain numbers; like the sizes of a job, they may be arrays of plans.
        chosen: dict[str, Any] = {
            name: choose(fusable, value, getattr(memory, name)) for name, value in zip(names, fused, strict=True)
        }
        memory = replace(memory, **chosen)
    if training.method == "full" and memory.frozen_beside_full_bytes is not None:
        memory = replace(memory, frozen_bytes=memory.frozen_beside_full_bytes)
    if training.stage in ("kto", "rm"):
        memory = _in_stage(job, memory)
    if kernels_of(job, shape.model_type).loss:
        forward, backward = LIGER_LOSS_MOVED
        memory = replace(memory, loss_forward_moved=forward, loss_backward_moved=backward)
    if extra.get("optim") == "adamw_torch" and not traits.is_megatron:
        # torch 2.13 optim/adam.py _multi_tensor_adam, exp_avg_sq_sqrt; the default, adamw_torch_fused, has none.
        held = memory.step_gradient_bytes if traits.zero_stage else 4
        moved = memory.step_moved_bytes + FOREACH_ADAM_MOVED
        memory = replace(memory, step_gradient_bytes=held, step_moved_bytes=moved)
    if training.method == "qlora" and extra.get("double_quantization") is False:
        memory = replace(memory, scale_bytes=SINGLE_SCALES_BYTES)
    if training.method in ("lora", "qlora") and str(extra.get("optim")) in EIGHT_BIT_ADAM:
        memory = replace(memory, optimizer_bytes=memory.optimizer_bytes - 8 + EIGHT_BIT_MOMENTS)
    if traits.zero_stage:
        memory = replace(memory, offloads=job.offloads)
    return _fsdp_memory(job, memory) if job.traits.is_fsdp else memory


def check_modelled(job: Job, shape: ModelShape) -> None:
    """Raise estimate_not_modelled if the engine builds layers that these shapes do not describe.

    Megatron-Core's latent attention over chosen keys is described (model/chosen_keys.py), but not the loss with which a
    job may train its indexer, and not Qwen4's choice of blocks. Of mcore-bridge's models with a separate gate of
    attention, Muse Glimmer is described, which has one gate for each channel.

    Megatron's hyper-connections (DeepSeek-V4, GLM-5.3) are in no release of Megatron-Core.

    Ling's own code runs its layers for multi-token prediction, whose work and logits are not counted. What the linear
    attention of Ling 2.5 saves is described for ms-swift's Megatron alone, and that of Ling 3 for no engine.
    """
    megatron = job.traits.is_megatron
    if shape.is_only_counted or (shape.has_connections if megatron else shape.has_lightning_attention):
        raise _not_modelled("model", f"{shape.model_type}, {job.engine}")
    if shape.own_mtp and shape.runs_mtp and not megatron:
        raise _not_modelled("model", f"{shape.model_type}, num_nextn_predict_layers: {shape.own_mtp}")
    is_other = shape.is_sparse and (not shape.mla or shape.mla.gate != "none")
    if megatron and (is_other or shape.has_gate_of_heads):
        raise _not_modelled("model", f"{shape.model_type}, {job.engine}")
    if megatron and shape.is_sparse and job.extra.get("dsa_indexer_loss_coeff"):
        raise _not_modelled("extra", f"dsa_indexer_loss_coeff, {job.engine}")


def _in_stage(job: Job, memory: MemoryTraits) -> MemoryTraits:
    """Return the bytes of logits in KTO and of a reward model.

    KTO on Hugging Face engines also keeps the reference model's fp32 logits of the samples while that model evaluates
    the KL batch (train/kto/trainer.py concatenated_forward; counted by benchmarks/pair_logits.py). ms-swift joins four
    16-bit outputs, so three of them and the joined one are present besides (swift/megatron/trainers/kto_trainer.py
    forward_step; read from its code, not measured).

    A reward model of LLaMA-Factory computes logits and casts them to fp32, but its loss does not read them (trl 0.24.0
    models/modeling_value_head.py forward). ms-swift's has a head with one output.
    """
    stage, megatron = job.training.stage, job.traits.is_megatron
    if stage == "kto" and megatron:
        return replace(memory, logits_forward_bytes=memory.logits_forward_bytes + 2 * (3 + 4))
    if stage == "kto":
        return replace(memory, pairs_kept_bytes=memory.pairs_kept_bytes + 4)
    if stage == "rm":
        forward = 0 if megatron else 4 if job.training.precision == "fp32" else 2 + 4
        return replace(
            memory,
            logits_forward_bytes=forward,
            logits_backward_bytes=0,
            loss_forward_moved=forward,
            loss_backward_moved=0,
        )
    return memory


def _fsdp_memory(job: Job, memory: MemoryTraits) -> MemoryTraits:
    fsdp = job.parallel.fsdp
    live = memory.live_elements if fsdp.reshard_after_forward else float("inf")
    offloads: Offload = "everything" if fsdp.offload else memory.offloads
    # accelerate 1.11 utils/fsdp_utils.py fsdp2_prepare_model: all weights, and DPO's reference, become fp32.
    frozen = 4 if fsdp.version == 2 else memory.frozen_bytes
    # LLaMA-Factory 0.9.5 model/model_utils/checkpointing.py: never reentrant with FSDP 2.
    keeps = fsdp.version == 1 and job.extra.get("use_reentrant_gc") is not False
    return replace(
        memory,
        live_elements=live,
        offloads=offloads,
        frozen_bytes=frozen,
        keeps_inputs=keeps,
        accumulates_whole=not _reduces_each_batch(job.extra.get("accelerator_config")),
    )


def _reduces_each_batch(config: object) -> bool:
    """Return whether transformers' accelerator_config asks for reduced gradients in every micro-batch.

    transformers 5.6.0 trainer.py then does not use accelerate's no_sync. With FSDP 2, accelerate before 1.11 had no
    such context, so gradients were reduced in every micro-batch as well
    (https://github.com/huggingface/accelerate/pull/3762).
    """
    accumulation = mapping_of(config).get("gradient_accumulation_kwargs")
    return isinstance(accumulation, Mapping) and accumulation.get("sync_each_batch") is True


def _not_modelled(field: str, feature: str) -> ProblemsError:
    problem = Problem(code="estimate_not_modelled", field=field, severity="warning", values={"what": feature})
    return ProblemsError([problem])


def _in_precision(memory: MemoryTraits, precision: str, *, megatron: bool) -> MemoryTraits:
    """Return the engine's bytes in a precision other than bf16.

    fp32 needs neither master copies nor autocast, and has no flash attention. Megatron accumulates fp16 gradients in
    fp16, because mcore_adapter asks for fp32 only with bf16.
    """
    if precision == "fp32":
        single = replace(memory, weight_bytes=4, gradient_bytes=4, optimizer_bytes=8, autocast_bytes=0)
        return replace(single, logits_forward_bytes=8, logits_backward_bytes=8) if megatron else single
    if precision == "fp16" and megatron:
        return replace(memory, gradient_bytes=2)
    return memory
